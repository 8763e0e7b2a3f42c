"""Hyper-connections: how the residual streams are mixed, collapsed to a sublayer's input, and expanded again."""

from __future__ import annotations

import torch
from torch import Tensor


def _sinkhorn(logits: Tensor, iterations: int, eps: float) -> Tensor:
    """Nearly doubly stochastic matrices from logits [..., S, S]: row softmax, then columns and rows in turn.

    The softmax stands for the first row division, so `iterations` counts column divisions.
    """
    comb = torch.softmax(logits, dim=-1) + eps
    comb = comb / (comb.sum(-2, keepdim=True) + eps)
    for _ in range(iterations - 1):
        comb = comb / (comb.sum(-1, keepdim=True) + eps)
        comb = comb / (comb.sum(-2, keepdim=True) + eps)
    return comb


def mix(
    streams: Tensor, fn: Tensor, scale: Tensor, base: Tensor, *, iterations: int, eps: float, norm_eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The coefficients of a sublayer, from the streams before it; all f32.

    streams [B, T, S, D]; fn f32 [(2+S)*S, S*D]; scale f32 [3] and base f32 [(2+S)*S] for pre, post and comb in turn.
    Returns pre [B, T, S] (for the NEXT sublayer's collapse), post [B, T, S] and comb [B, T, S, S] (for this one's
    expand). One RMS per token over all streams.
    """
    count = streams.shape[2]
    flat = streams.flatten(2).to(torch.float32)
    mixes = torch.nn.functional.linear(flat, fn) * torch.rsqrt(flat.square().mean(-1, keepdim=True) + norm_eps)
    pre, post, comb = torch.split(mixes, [count, count, count * count], dim=-1)
    base_pre, base_post, base_comb = torch.split(base, [count, count, count * count])
    square = torch.unflatten(comb * scale[2] + base_comb, -1, (count, count))
    return (
        torch.sigmoid(pre * scale[0] + base_pre) + eps,
        2 * torch.sigmoid(post * scale[1] + base_post),
        _sinkhorn(square, iterations, eps),
    )


def collapse(streams: Tensor, pre: Tensor) -> Tensor:
    """sum_s pre[s] * streams[s] in f32, in the streams' dtype [B, T, D]; `pre` f32 [B, T, S] is the carried one."""
    return (pre[..., None] * streams.to(torch.float32)).sum(2).to(streams.dtype)


def expand(sublayer_out: Tensor, streams: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    """out[j] = post[j] * sublayer_out + sum_i comb[i, j] * streams[i] in f32, in the streams' dtype.

    sublayer_out [B, T, D]; streams [B, T, S, D]; post f32 [B, T, S]; comb f32 [B, T, S, S], summed over its first
    index.
    """
    added = post[..., None] * sublayer_out.to(torch.float32)[:, :, None]
    kept = (comb[..., None] * streams.to(torch.float32)[:, :, :, None]).sum(2)
    return (added + kept).to(streams.dtype)
