"""How the shards of a stage meet, as kernels see it. The runtime has implementations."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class Collectives(Protocol):
    """The processes that hold the shards of a stage. Each of them calls the same methods in the same order."""

    @property
    def size(self) -> int:
        """How many they are."""
        ...

    @property
    def rank(self) -> int:
        """Which of them this one is: the number of its shard."""
        ...

    def all_reduce(self, x: Tensor) -> Tensor:
        """The sum of every shard's `x`, the same bits on each."""
        ...

    def all_gather(self, x: Tensor, axis: int) -> Tensor:
        """Every shard's `x` one behind the other along an axis, in the order of ranks."""
        ...
