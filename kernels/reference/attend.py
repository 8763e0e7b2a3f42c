"""Sparse attention: the window and the selected groups under one softmax, with a sink for each head."""

from __future__ import annotations

import torch
from torch import Tensor

from dsv41c.kernels.reference.groups import visible_groups
from dsv41c.kernels.reference.rope import apply_rope
from dsv41c.kernels.reference.window import rows_before
from dsv41c.kernels.step import Step

_GATHER_ELEMENTS = 1 << 24  # elements of gathered rows held at once: 64 MiB of f32
_LONGEST_BLOCK = 128  # queries at once: the window's scores grow with its square


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
    key and value in one. A query at p sees window positions p-W+1 to p and its selected groups; with nothing to see it
    returns 0. Long chunks are taken in blocks of queries, which bounds memory.
    """
    batch, tokens, _, channels = query.shape
    before, exists = rows_before(step, window_kv, window)
    rows = torch.cat([before.to(query.dtype), window_rows], dim=1)  # row i stands at position start - (W-1) + i
    exists = torch.cat([exists, exists.new_ones(batch, tokens)], dim=1)
    selected = 0 if topk is None else topk.shape[2]
    block = min(_LONGEST_BLOCK, max(1, _GATHER_ELEMENTS // (batch * channels * max(1, selected))))
    visible = visible_groups(step, tokens, ratio) if selected else None
    parts = []
    for start in range(0, tokens, block):
        end = min(start + block, tokens)
        reach = slice(start, end + window - 1)
        near = _in_window(end - start, window, query.device) & exists[:, None, reach]
        sources = [(rows[:, None, reach], near)]
        if compress_kv is not None and topk is not None and visible is not None:
            sources.append(_groups(step, compress_kv, topk[:, start:end], visible[:, start:end]))
        parts.append(_softmax_with_sink(query[:, start:end], sources, sink))
    return apply_rope(torch.cat(parts, dim=1), step.token_positions(tokens), rope, rope_dim, undo=True)


def _in_window(queries: int, window: int, device: torch.device) -> Tensor:
    """Which of queries + window - 1 consecutive rows each query's window holds, bool [queries, rows]."""
    row = torch.arange(queries + window - 1, device=device)
    first = torch.arange(queries, device=device)[:, None]
    return (row >= first) & (row < first + window)


def _groups(step: Step, compress_kv: Tensor, topk: Tensor, visible: Tensor) -> tuple[Tensor, Tensor]:
    """The selected rows [B, Q, K, C], zero where none is selected, and which are there, bool [B, Q, K]."""
    there = (topk >= 0) & (topk < visible[..., None])
    rows = compress_kv[step.slots[:, None, None], topk.clamp(min=0)]
    return rows.masked_fill(~there[..., None], 0), there


def _softmax_with_sink(query: Tensor, sources: list[tuple[Tensor, Tensor]], sink: Tensor) -> Tensor:
    """One softmax over several sources of rows [B, 1 or Q, K, C] with masks [B, Q, K]; [B, Q, H, C] as the query.

    Scores, maximum and denominator are f32. The maximum leaves the sink out, and the exponentials are rounded to the
    query's dtype before they meet the values but not in the denominator: so does the release in bf16.
    """
    wide = query.to(torch.float32)
    scale = query.shape[-1] ** -0.5
    scores = []
    for rows, there in sources:
        dots = torch.matmul(wide, rows.to(torch.float32).transpose(-1, -2)) * scale
        scores.append(dots.masked_fill(~there[:, :, None], float("-inf")))
    largest = torch.cat([score.amax(-1, keepdim=True) for score in scores], dim=-1).amax(-1, keepdim=True)
    largest = torch.where(largest == float("-inf"), sink[:, None], largest)  # nothing to see: 0 / 1
    denominator = torch.exp(sink[:, None] - largest)
    out = torch.zeros_like(wide)
    for (rows, _), score in zip(sources, scores, strict=True):
        weight = torch.exp(score - largest)
        denominator = denominator + weight.sum(-1, keepdim=True)
        out = out + torch.matmul(weight.to(query.dtype).to(torch.float32), rows.to(torch.float32))
    return (out / denominator).to(query.dtype)
