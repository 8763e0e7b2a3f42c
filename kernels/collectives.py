"""How the shards of a stage meet, as kernels see it. The runtime has implementations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Mailboxes:
    """Memory of each of `size` processes into which the others write, on devices that reach each other's.

    One mailbox a process, int64 [2, size, capacity]: words for the sender's value and the number of the exchange, which
    `kernels.triton.exchange` explains. `addresses` int64 [size]: where they are, as this process sees them. `sequence`
    int32 [1]: the number of the last exchange. `memory` is whatever keeps it all.
    """

    rank: int
    size: int
    capacity: int
    addresses: Tensor
    sequence: Tensor
    memory: object = None


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

    def all_reduce(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """The sum of every shard's `x`, rounded once, to `dtype`; the same bits on each. `x` may be written over."""
        ...

    def all_gather(self, x: Tensor, axis: int) -> Tensor:
        """Every shard's `x` one behind the other along an axis, in the order of ranks."""
        ...

    def mailboxes(self, values: int) -> Mailboxes | None:
        """Mailboxes for so many values; None where the processes' devices do not reach each other's memory.

        Always the same ones: captured graphs hold their addresses. The first call must not be captured.
        """
        ...


def connected(together: Collectives | None, shards: int) -> Collectives:
    """What connects a stage's processes. Raises ValueError where they are not as many as the plan's shards."""
    size = together.size if together is not None else 1
    if together is None or size != shards:
        raise ValueError(f"the plan's stages have {shards} shards, and {size} processes run this one")
    return together
