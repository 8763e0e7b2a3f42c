"""Which rows of session state an op reads and writes, told from what the op is given: its step, sizes, a selection.

Only what it uses counts: rows that its masks hide are not read. Kinds of ops that touch no session state have none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from dsv41c.kernels.reference.groups import group_numbers, visible_groups
from dsv41c.kernels.step import Step

NOTHING = -1  # the number of a row that holds nothing


@dataclass(frozen=True, slots=True)
class Given:
    """What an op is given: `count` is the size of axis 1 of its first read, `size` the rows that a slot has.

    `ratio`: the op's compress ratio, None where it has none. `topk` int64 [B, T, K] where it is known.
    """

    step: Step
    count: int
    size: int
    ratio: Any = None
    topk: Tensor | None = None

    def around(self, first: int, count: int) -> Tensor:
        """Positions from `first` on, counted from that of the step's first token: int64 [B, count]."""
        return self.step.positions[:, None] + torch.arange(first, first + count, device=self.step.positions.device)

    def places(self, numbers: Tensor) -> Tensor:
        """0, 1, 2 ... for each column of numbers [B, n]."""
        return torch.arange(numbers.shape[1], device=numbers.device).expand(numbers.shape)


@dataclass(frozen=True, slots=True)
class Touch:
    """Rows of a pool, [B, n]: int64 `rows` within the slot, what their `numbers` are, and which are `used`.

    The number of a row is the position, or the group, that it holds.
    """

    rows: Tensor
    numbers: Tensor
    used: Tensor


def _ring(given: Given) -> Touch:
    """The window before the step's first token."""
    numbers = given.around(1 - given.size, given.size - 1)
    return Touch(numbers % given.size, numbers, numbers >= given.step.window_begin)


def _stored(given: Given) -> Touch:
    """The last tokens of the step, as many as the ring holds."""
    kept = min(given.count, given.size)
    numbers = given.around(given.count - kept, kept)
    return _all(numbers % given.size, numbers)


def _visible(given: Given) -> Touch:
    """The groups that the step's last token sees."""
    count = min(given.size, given.step.context // given.ratio)
    numbers = torch.arange(count, device=given.step.positions.device).expand(given.step.positions.shape[0], count)
    seen = visible_groups(given.step, given.count, given.ratio)[:, -1:]
    return Touch(numbers, numbers, numbers < seen)


def _selected(given: Given) -> Touch:
    """The selected groups, token by token; all visible ones where the selection is not known."""
    if given.topk is None:
        return _visible(given)
    seen = visible_groups(given.step, given.count, given.ratio)[..., None]
    used = ((given.topk >= 0) & (given.topk < seen)).flatten(1)
    numbers = given.topk.flatten(1)
    return Touch(numbers.clamp(0, max(given.size - 1, 0)), numbers, used)


def _appended(given: Given, count: int) -> Touch:
    """So many groups from the open one on. One that stays open is written as well; what has no room is not kept."""
    numbers = group_numbers(given.step, count, given.ratio)
    return Touch(numbers.clamp(max=max(given.size - 1, 0)), numbers, numbers < given.size)


def _tail(given: Given) -> Touch:
    """The tokens of the open group."""
    waiting = given.step.positions[:, None] % given.ratio
    numbers = given.around(0, given.size) - waiting
    places = given.places(numbers)
    return Touch(places, numbers, places < waiting)


def _tail_left(given: Given) -> Touch:
    """The tokens of the group that the step leaves open; the rest of the tail then holds nothing."""
    left = (given.step.positions[:, None] + given.count) % given.ratio
    numbers = given.around(given.count, given.size) - left
    places = given.places(numbers)
    return _all(places, numbers.masked_fill(places >= left, NOTHING))


def _history(given: Given) -> Touch:
    """The tokens before the step's first one."""
    numbers = given.around(-given.size, given.size)
    return Touch(given.places(numbers), numbers, numbers >= 0)


def _history_left(given: Given) -> Touch:
    """The last tokens, with those of the step; what lies before the first position is nothing."""
    numbers = given.around(given.count - given.size, given.size)
    return _all(given.places(numbers), numbers.clamp(min=NOTHING))


def _all(rows: Tensor, numbers: Tensor) -> Touch:
    return Touch(rows, numbers, torch.ones_like(rows, dtype=torch.bool))


Touches = Mapping[str, Mapping[str, Callable[[Given], Touch]]]
# By op kind, and port.
READS: Touches = MappingProxyType(
    {
        "attend": {"window_kv": _ring, "compress_kv": _selected},
        "index_score": {"index_k": _visible},
        "compress": {"group_tail": _tail},
        "engram_ids": {"token_history": _history},
    }
)
WRITES: Touches = MappingProxyType(
    {
        "window_store": {"window_kv": _stored},
        "compress": {
            "compress_kv": lambda given: _appended(given, (given.ratio - 1 + given.count) // given.ratio),
            "group_tail": _tail_left,
        },
        "index_keys": {"index_k": lambda given: _appended(given, given.count)},  # it is given groups, not tokens
        "engram_ids": {"token_history": _history_left},
    }
)
