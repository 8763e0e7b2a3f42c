"""The hash of n-grams on the host: `kernels.reference.engram.engram_ids` on arrays, in a quarter of the time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from dsv41c.kernels.reference.engram import DEAD

CONSTANTS = ("token_map", "multipliers", "primes", "offsets")


class NgramHash:
    """Of one model. `constants` by name (CONSTANTS), with the shapes of `engram_ids`; `pad_id` is a raw id."""

    def __init__(self, constants: Mapping[str, Tensor], pad_id: int) -> None:
        tables = (constants[name].cpu().numpy() for name in CONSTANTS)
        self._token_map, self._multipliers, self._primes, self._offsets = tables
        self._pad = int(self._token_map[pad_id])
        self.before = self._multipliers.shape[1] - 1  # tokens of a history

    def compressed(self, ids: Sequence[int]) -> list[int]:
        """Compressed ids of raw ones; DEAD for negative ones."""
        return [int(self._token_map[token]) if token >= 0 else DEAD for token in ids]

    def rows(self, ids: Sequence[Sequence[int]], history: Sequence[Sequence[int]], positions: Sequence[int]) -> Any:
        """Table rows of every n-gram that ends at each token, an int64 array [B, T, E, columns].

        ids [B, T], raw; history [B, n-1], compressed, newest last, of what stands before each row's position.
        """
        raw = np.asarray(ids, dtype=np.int64)
        tokens, size = raw.shape[1], self.before + 1
        compressed = np.where(raw < 0, DEAD, self._token_map[np.maximum(raw, 0)])
        known = np.asarray(history, dtype=np.int64).reshape(len(raw), self.before)
        older = np.asarray(positions, dtype=np.int64)[:, None] + np.arange(-self.before, 0)
        line = np.concatenate([np.where(older < 0, DEAD, known), compressed], axis=1)
        heads = self._primes.shape[1] // self.before
        found = np.empty((*raw.shape, *self._primes.shape), dtype=np.int64)
        ended = np.zeros(raw.shape, dtype=bool)
        mixed = np.zeros((*raw.shape, len(self._primes)), dtype=np.int64)
        for back in range(size):
            token = line[:, self.before - back : self.before - back + tokens]
            ended |= token == DEAD
            mixed ^= np.where(ended, self._pad, token)[..., None] * self._multipliers[:, back]
            if back:
                part = slice((back - 1) * heads, back * heads)
                found[..., part] = mixed[..., None] % self._primes[:, part] + self._offsets[:, part]
        return found
