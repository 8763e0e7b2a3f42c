"""Selections by score. Where scores tie, the lower number wins."""

from __future__ import annotations

import torch
from torch import Tensor

from dsv41c.kernels.reference.groups import visible_groups
from dsv41c.kernels.step import Step

_SORT_ELEMENTS = 1 << 24  # scores sorted at once: their int64 indices take 128 MiB


def best(scores: Tensor, count: int) -> Tensor:
    """The indices of the `count` largest scores along the last axis, best first; ties in favour of the lower index.

    A stable sort, because the order of ties in a top-k is undefined and differs between devices.
    """
    return torch.sort(scores, dim=-1, descending=True, stable=True).indices[..., :count]


def select_candidates(step: Step, index_score: Tensor, *, ratio: int, block_size: int, blocks: int) -> Tensor:
    """The blocks of groups that later index sources may select from, bool [B, T, ceil(N / block_size)].

    index_score f32 [B, T, N]. A block scores its largest group; the block of the newest visible group is always kept;
    a block with nothing visible never is.
    """
    batch, tokens, count = index_score.shape
    total = -(-count // block_size)
    padded = torch.nn.functional.pad(index_score, (0, total * block_size - count), value=float("-inf"))
    score = padded.reshape(batch, tokens, total, block_size).amax(-1) if total else padded
    newest = (visible_groups(step, tokens, ratio) - 1).div(block_size, rounding_mode="floor")  # -1: nothing visible
    pinned = torch.arange(total, device=score.device) == newest[..., None]
    score = score.masked_fill(pinned, float("inf"))
    kept = torch.zeros_like(score, dtype=torch.bool).scatter_(-1, best(score, blocks), True)
    return kept & (score != float("-inf"))


def select_topk(index_score: Tensor, *, k: int) -> Tensor:
    """The k best groups of each token in ascending order, then -1; int64 [B, T, min(k, N)].

    index_score f32 [B, T, N]; a group at -inf is never selected.
    """
    batch, tokens, count = index_score.shape
    block = max(1, _SORT_ELEMENTS // max(1, batch * count))
    parts = []
    for start in range(0, tokens, block):
        score = index_score[:, start : start + block]
        chosen = best(score, k)
        chosen = chosen.masked_fill(score.gather(-1, chosen) == float("-inf"), count)
        ascending = chosen.sort(-1).values
        parts.append(ascending.masked_fill(ascending == count, -1))
    return torch.cat(parts, dim=1)
