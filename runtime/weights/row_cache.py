"""A cache of table rows in memory: the rows of frequent n-grams come again and again, for every session.

It is cut into sets of a few rows each. A row has its set by its number; where that is full, the row in it that was
asked for longest ago makes room. So all lookups of a step are a few array operations, and its size is known.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dsv41c.runtime.memory import ROW_WAYS as WAYS
from dsv41c.runtime.memory import row_cache_sets

_ABSENT = -1


@dataclass(frozen=True, slots=True)
class Lookups:
    """How often rows were looked up, each once a step, and found."""

    hits: int = 0
    misses: int = 0

    @property
    def rate(self) -> float | None:
        """The share that was found; None before the first lookup."""
        return self.hits / (self.hits + self.misses) if self.hits + self.misses else None

    def since(self, before: Lookups | None) -> Lookups:
        """What came after another count; all of it where there was none."""
        return self if before is None else self - before

    def __add__(self, other: Lookups) -> Lookups:
        return Lookups(self.hits + other.hits, self.misses + other.misses)

    def __sub__(self, other: Lookups) -> Lookups:
        return Lookups(self.hits - other.hits, self.misses - other.misses)


class RowCache:
    """Rows of one table, `width` bytes each, in at most `budget` bytes. For any number of threads."""

    def __init__(self, budget: int, width: int, rows: int) -> None:
        sets = row_cache_sets(budget, width, rows)
        self._numbers = np.full((sets, WAYS), _ABSENT, dtype=np.int64)
        self._asked = np.zeros((sets, WAYS), dtype=np.int64)
        self._rows = np.empty((sets, WAYS, width), dtype=np.uint8)  # takes memory as it fills
        self._lock = Lock()
        self._steps = 0
        self.lookups = Lookups()

    @property
    def bytes(self) -> int:
        """What it takes when it is full."""
        return self._numbers.nbytes + self._asked.nbytes + self._rows.nbytes

    def read(self, ids: Tensor, fetch: Callable[[Tensor], Tensor]) -> Tensor:
        """The rows uint8 [n, width] of int64 ids [n], no two the same; `fetch` gives those that are not here.

        Other threads may look up rows while one fetches.
        """
        if not len(self._numbers):
            return fetch(ids)
        numbers = ids.numpy()
        place = numbers % len(self._numbers)
        with self._lock:
            equal = self._numbers[place] == numbers[:, None]
            ways = equal.argmax(axis=1)
            here = equal[np.arange(len(numbers)), ways]
            hits = int(np.count_nonzero(here))
            self._steps += 1
            self.lookups += Lookups(hits, len(numbers) - hits)
            if hits == len(numbers):  # as mostly; then one look-up gives all
                self._asked[place, ways] = self._steps
                return torch.from_numpy(self._rows[place, ways])
            sets, ways = place[here], ways[here]
            self._asked[sets, ways] = self._steps
            found = self._rows[sets, ways]
        fresh = fetch(torch.from_numpy(numbers[~here])).numpy()
        rows = np.empty((len(numbers), self._rows.shape[2]), dtype=np.uint8)
        rows[here], rows[~here] = found, fresh
        with self._lock:
            self._keep(numbers[~here], fresh)
        return torch.from_numpy(rows)

    def _keep(self, numbers: Any, rows: Any) -> None:
        """Put each row where, in its set, the one lies that was asked for longest ago; WAYS new ones a set at most."""
        place = numbers % len(self._numbers)
        absent = ~(self._numbers[place] == numbers[:, None]).any(axis=1)  # another thread may have been faster
        numbers, rows, place = numbers[absent], rows[absent], place[absent]
        for _ in range(WAYS):
            if not len(numbers):
                break
            sets, first = np.unique(place, return_index=True)
            ways = self._asked[sets].argmin(axis=1)
            self._numbers[sets, ways], self._rows[sets, ways] = numbers[first], rows[first]
            self._asked[sets, ways] = self._steps
            left = np.ones(len(numbers), dtype=bool)
            left[first] = False
            numbers, rows, place = numbers[left], rows[left], place[left]
