"""Steps of arms whose rows of stored tables are read ahead, as those of an engine's steps are.

Tokens of a real step come of the step before. So a step begins when that one is over: rows that were asked for sooner
would be there sooner than they can be.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from dsv41c.runtime.engine import Engine
from dsv41c.runtime.prefetch import Fetched, Prefetch
from dsv41c.runtime.stages.crossing import Rows


class BegunStep(NamedTuple):
    """A step on the host: the token of each session, whose they are, and rows on their way, None where they are not."""

    ids: list[int]
    rows: Rows
    fetched: Fetched | None


class ReadAhead:
    """Begins the steps of one arm for the inputs of a cell."""

    def __init__(
        self, engine: Engine, prefetch: Prefetch, ids: Tensor, slots: Tensor, positions: Tensor, context: int
    ) -> None:
        """`ids` int64 [K, B, 1], `slots` [B] and `positions` [K, B], which steps come round to; below `context`."""
        self.prefetch = prefetch
        self._device = engine.device
        self._ids, self._positions = ids.tolist(), positions.tolist()
        self._slots = tuple(slots.tolist())
        self._epochs = tuple(engine.epochs[slot] for slot in self._slots)
        self._context = context
        self._next = -1

    def begin(self, index: int) -> BegunStep:
        """Wait for what is under way, then begin. A step that does not follow the last one takes histories anew."""
        follows, self._next = index == self._next, index + 1
        self._device.synchronize()
        place = index % len(self._ids)
        epochs = self._epochs if follows else ()  # without, nothing that is known of a session counts
        rows = Rows(self._slots, tuple(self._positions[place]), 1, self._context, epochs=epochs)
        return BegunStep([token for (token,) in self._ids[place]], rows, self.prefetch.begin(self._ids[place], rows))
