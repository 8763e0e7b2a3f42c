"""A session: a slot of the engine's pools, how many tokens it holds, and an epoch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from dsv41c.runtime.engine import Engine


class Session:
    """A sequence of tokens and the state they left. Opened by `Engine.open`; usable as a context manager.

    `length` is the number of tokens fed so far, which is the position of the next one. `epoch` counts the starts of its
    slot: a handle whose epoch is not the slot's is stale. `broken` is set when a step failed half-way: the state in
    place is then neither the old one nor the new one, and only `reset` or `close` are possible.
    """

    __slots__ = ("broken", "engine", "epoch", "length", "slot")

    def __init__(self, engine: Engine, slot: int, epoch: int, length: int = 0) -> None:
        self.engine = engine
        self.slot = slot
        self.epoch = epoch
        self.length = length
        self.broken = False

    @property
    def closed(self) -> bool:
        """Whether the slot was given back."""
        return self.engine.epochs[self.slot] != self.epoch

    @property
    def room(self) -> int:
        """How many tokens can still be fed."""
        return self.engine.manifest.runtime.max_context - self.length

    def feed(self, ids: Iterable[int], *, all_logits: bool = False, chunk: int | None = None) -> Tensor:
        """Append tokens; f32 logits [V] of the last one, or [T, V] of all with `all_logits`. See `Engine.feed`."""
        return self.engine.feed(self, ids, all_logits=all_logits, chunk=chunk)

    def fork(self) -> Session:
        """A new session that holds the same tokens and state."""
        return self.engine.fork(self)

    def reset(self) -> None:
        """Forget every token."""
        self.engine.reset(self)

    def close(self) -> None:
        """Give the slot back; closing twice does nothing."""
        self.engine.close(self)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self.closed else "broken" if self.broken else f"{self.length} tokens"
        return f"Session(slot={self.slot}, epoch={self.epoch}, {state})"
