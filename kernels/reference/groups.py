"""Groups of `ratio` consecutive tokens, as the compressed branch counts them.

Group j holds positions j*ratio to j*ratio + ratio-1 and stands at its first one. A query at position p sees the groups
complete by then: j < (p+1) // ratio.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dsv41c.kernels.step import Step


def visible_groups(step: Step, tokens: int, ratio: int) -> Tensor:
    """How many groups each query of this call sees, int64 [B, T]."""
    return (step.token_positions(tokens) + 1) // ratio


def group_numbers(step: Step, count: int, ratio: int) -> Tensor:
    """The numbers of the `count` groups from the open one on, int64 [B, count]."""
    return step.positions[:, None] // ratio + torch.arange(count, device=step.positions.device)


def append_groups(step: Step, pool: Tensor, rows: Tensor, ratio: int) -> Tensor:
    """Write group rows [B, G, C] at their numbers into pool [slots, capacity, C], in place; returns the pool.

    All G possible groups are written, so that shapes are static. A group that stays open writes a row that no query
    sees before the call that completes the group overwrites it; one beyond the capacity goes to the spare slot.
    """
    capacity = pool.shape[1]
    if capacity == 0 or rows.shape[1] == 0:
        return pool
    number = group_numbers(step, rows.shape[1], ratio)
    slot = torch.where(number < capacity, step.slots[:, None], pool.shape[0] - 1)
    pool[slot, number.clamp(max=capacity - 1)] = rows.to(pool.dtype)
    return pool
