"""Sums over the shards of a stage inside a kernel that ends in one, through mailboxes in each other's memory.

A program that has some values of its shard's part writes them to the other shards and waits for theirs. A word of 64
bits holds a value's f32 bits and, above them, the number of the exchange: it arrives as a whole, so that nothing else
has to say that it is there (as in NCCL's low-latency protocol). All shards run the same programs in the same order, and
a program waits for its counterpart only, so the earliest that waits is always answered.

Mailboxes have two sides, used in turn. A shard that writes into a side for exchange n + 2 has read the others' words of
n + 1, which they sent after they were done with n.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from dsv41c.kernels.collectives import Mailboxes


@triton.jit
def next_exchange(sequence, first, SHARDS: tl.constexpr):
    """Count the exchange that a later launch makes, in the program that is the `first`; nothing without shards."""
    if SHARDS > 1:
        tl.store(sequence, tl.load(sequence) + 1, mask=first)


@triton.jit
def exchanged(
    value, place, addresses, sequence, RANK: tl.constexpr, SHARDS: tl.constexpr, CAPACITY: tl.constexpr
):  # fmt: skip
    """The sum of every shard's `value`, f32, in the order of shards: the same bits on each. One value a `place`."""
    number = tl.load(sequence)
    side = (number & 1) * SHARDS
    word = (value.to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF) | (number.to(tl.int64) << 32)
    for shard in tl.static_range(SHARDS):
        if shard != RANK:
            other = tl.load(addresses + shard).to(tl.pointer_type(tl.int64))
            tl.store(other + (side + RANK) * CAPACITY + place, word)
    own = tl.load(addresses + RANK).to(tl.pointer_type(tl.int64))
    total = tl.zeros_like(value)
    for shard in tl.static_range(SHARDS):
        if shard == RANK:
            total += value
        else:
            at = own + (side + shard) * CAPACITY + place
            got = tl.load(at, volatile=True)
            while tl.max(tl.max(((got >> 32).to(tl.int32) != number).to(tl.int32), 1), 0) > 0:
                got = tl.load(at, volatile=True)
            total += got.to(tl.int32).to(tl.float32, bitcast=True)
    return total


def exchange(boxes: Mailboxes | None, unused: Tensor) -> dict[str, Any]:
    """A kernel's arguments for an exchange; for none without mailboxes, with any tensor in the place of theirs."""
    if boxes is None:
        return {"addresses": unused, "sequence": unused, "RANK": 0, "SHARDS": 1, "CAPACITY": 0}
    shards = {"RANK": boxes.rank, "SHARDS": boxes.size, "CAPACITY": boxes.capacity}
    return {"addresses": boxes.addresses, "sequence": boxes.sequence, **shards}
