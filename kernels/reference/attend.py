"""Sparse attention: the window and the selected groups under one softmax, with a sink for each head."""

from __future__ import annotations

import torch
from torch import Tensor

from dsv41c.kernels.reference.groups import visible_groups
from dsv41c.kernels.reference.rope import apply_rope
from dsv41c.kernels.reference.rows import unpack
from dsv41c.kernels.reference.window import rows_before
from dsv41c.kernels.step import Step

_GATHER_ELEMENTS = 1 << 24  # elements of gathered rows held at once: 64 MiB of f32


def attend(
    step: Step,
    query: Tensor,
    window_kv: Tensor,
    window_rows: Tensor,
    rope: Tensor,
    sink: Tensor,
    *,
    compress_kv: Tensor | None = None,
    topk: Tensor | None = None,
    window: int,
    ratio: int,
    rope_dim: int,
) -> Tensor:
    """sum exp(s-m) v / (sum exp(s-m) + exp(sink-m)), s = query . key * C^-0.5, rope undone; [B, T, H, C].

    query [B, T, H, C]; window_kv [slots, W, C], the ring as it was before this call; window_rows [B, T, C];
    rope f32 [rope_dim / 2]; sink f32 [H]; compress_kv [slots, capacity, C]; topk int64 [B, T, K], -1 = none. A row is
    key and value in one; both caches may hold packed rows instead, u8 [..., bytes]. A query at p sees window positions
    p-W+1 to p, from `step.window_begin` on, and its selected groups; with nothing to see it returns 0. Long chunks are
    taken in blocks of queries, which bounds memory.
    """
    batch, tokens, _, channels = query.shape
    before, exists = rows_before(step, window_kv, window)
    # Row i stands at position start - (W-1) + i, so query t sees rows t to t+W-1. Views: nothing is copied yet.
    near = torch.cat([before.to(query.dtype), window_rows], dim=1).unfold(1, window, 1).transpose(2, 3)
    near_there = torch.cat([exists, exists.new_ones(batch, tokens)], dim=1).unfold(1, window, 1)
    selected = 0
    if topk is not None:
        selected = topk.shape[2]
        topk = topk.masked_fill(topk >= visible_groups(step, tokens, ratio)[..., None], -1)
    block = max(1, _GATHER_ELEMENTS // (batch * channels * (window + selected)))
    parts = []
    for start in range(0, tokens, block):
        part = slice(start, start + block)
        rows, there = near[:, part], near_there[:, part]
        if topk is not None and compress_kv is not None:
            far, far_there = _groups(step, compress_kv, topk[:, part])
            rows, there = torch.cat([rows, far], dim=2), torch.cat([there, far_there], dim=2)
        parts.append(_softmax_with_sink(query[:, part], rows.to(torch.float32), there, sink))
    return apply_rope(torch.cat(parts, dim=1), step.token_positions(tokens), rope, rope_dim, undo=True)


def _groups(step: Step, compress_kv: Tensor, topk: Tensor) -> tuple[Tensor, Tensor]:
    """The selected rows [B, Q, K, C], zero where none is selected, and which are there, bool [B, Q, K]."""
    there = topk >= 0
    rows = unpack("compress_kv", compress_kv[step.slots[:, None, None], topk.clamp(min=0)])
    return rows.masked_fill(~there[..., None], 0), there


def _softmax_with_sink(query: Tensor, rows: Tensor, there: Tensor, sink: Tensor) -> Tensor:
    """Attention of each query [B, Q, H, C] to its rows f32 [B, Q, K, C] where `there`, bool [B, Q, K]; as the query.

    Scores, maximum and denominator are f32. The maximum leaves the sink out, and the exponentials are rounded to the
    query's dtype before they meet the values but not in the denominator: so does the release in bf16.
    """
    score = torch.matmul(query.to(torch.float32), rows.transpose(-1, -2)) * query.shape[-1] ** -0.5
    score = score.masked_fill(~there[:, :, None], float("-inf"))
    largest = score.amax(-1, keepdim=True)
    largest = torch.where(largest == float("-inf"), sink[:, None], largest)  # nothing to see: 0 / 1
    weight = torch.exp(score - largest)
    denominator = weight.sum(-1, keepdim=True) + torch.exp(sink[:, None] - largest)
    return (torch.matmul(weight.to(query.dtype).to(torch.float32), rows) / denominator).to(query.dtype)
