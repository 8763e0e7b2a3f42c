"""What follows a projection of many rows: norms, rope, the rounding of window rows, and the choice of experts."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from dsv41c.kernels.step import Step
from dsv41c.kernels.triton.common import softplus
from dsv41c.kernels.triton.launch import power
from dsv41c.kernels.triton.rows import rotated, window_pairs


@triton.jit
def norm_row(x, weight, out, D, eps, BLOCK: tl.constexpr):
    """Grid (n): RMSNorm of rows bf16 [n, D], fp32 inside."""
    at = tl.program_id(0).to(tl.int64) * D
    column = tl.arange(0, BLOCK)
    value = tl.load(x + at + column, mask=column < D, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(value * value, 0) / D + eps)
    value = value * scale * tl.load(weight + column, mask=column < D, other=0.0)
    tl.store(out + at + column, value.to(tl.bfloat16), mask=column < D)


@triton.jit
def rope_heads(x, positions, frequency, tokens, heads, C, R: tl.constexpr, RB: tl.constexpr, BH: tl.constexpr):
    """Grid (n, ceil(heads/BH)): rope on the last R channels of bf16 [n, heads, C], in place. RB: power of two >= R/2.

    Row r belongs to session r // tokens and stands at its position plus r % tokens.
    """
    row = tl.program_id(0)
    position = tl.load(positions + row // tokens) + row % tokens
    head = tl.program_id(1) * BH + tl.arange(0, BH)
    pair = tl.arange(0, RB)
    at = x + ((row.to(tl.int64) * heads + head) * C + C - R)[:, None] + 2 * pair[None, :]
    mask = (head < heads)[:, None] & (pair < R // 2)[None, :]
    even = tl.load(at, mask=mask, other=0.0).to(tl.float32)
    odd = tl.load(at + 1, mask=mask, other=0.0).to(tl.float32)
    even, odd = rotated(even, odd, position, frequency, pair[None, :], R, False)
    tl.store(at, even.to(tl.bfloat16), mask=mask)
    tl.store(at + 1, odd.to(tl.bfloat16), mask=mask)


@triton.jit
def window_row(
    x, weight, positions, frequency, out, tokens, eps,
    C: tl.constexpr, CB: tl.constexpr, R: tl.constexpr, FAKE: tl.constexpr,
):  # fmt: skip
    """Grid (n): norm, rope on the last R channels, and `fake_fp8` if FAKE, each rounded to bf16; bf16 [n, C].

    CB: the power of two from C on.
    """
    row = tl.program_id(0)
    position = tl.load(positions + row // tokens) + row % tokens
    pair = tl.arange(0, CB // 2)
    inside = pair < C // 2
    at = row.to(tl.int64) * C + 2 * pair
    even = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    odd = tl.load(x + at + 1, mask=inside, other=0.0).to(tl.float32)
    even, odd = window_pairs(even, odd, weight, position, frequency, pair, eps, C, CB, R, FAKE, tl.bfloat16)
    tl.store(out + at, even.to(tl.bfloat16), mask=inside)
    tl.store(out + at + 1, odd.to(tl.bfloat16), mask=inside)


@triton.jit
def choose_experts(
    logits, bias, weights, ids, experts, gate_temp, route_scale, A: tl.constexpr, AB: tl.constexpr, EB: tl.constexpr
):
    """Grid (n): the A best experts by score plus bias, best first, lower ids first among equals.

    logits f32 [n, experts]; weights f32 and ids int64 [n, A]. AB, EB: powers of two from A and experts on.
    """
    row = tl.program_id(0).to(tl.int64)
    expert = tl.arange(0, EB)
    known = expert < experts
    score = tl.sqrt(softplus(tl.load(logits + row * experts + expert, mask=known, other=0.0) / gate_temp))
    wanted = tl.where(known, score + tl.load(bias + expert, mask=known, other=0.0), float("-inf"))
    place = tl.arange(0, AB)
    chosen = tl.zeros([AB], tl.float32)
    picked = tl.zeros([AB], tl.int32)
    for turn in tl.static_range(A):
        which = tl.min(tl.where(wanted == tl.max(wanted, 0), expert, EB), 0)
        chosen = tl.where(place == turn, tl.sum(tl.where(expert == which, score, 0.0), 0), chosen)
        picked = tl.where(place == turn, which, picked)
        wanted = tl.where(expert == which, float("-inf"), wanted)
    share = chosen / (tl.sum(chosen, 0) + 1e-20) * route_scale
    tl.store(weights + row * A + place, share, mask=place < A)
    tl.store(ids + row * A + place, picked.to(tl.int64), mask=place < A)


def norm_rows(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm of rows bf16 [n, D], weight f32 [D]; bf16 [n, D]."""
    out = torch.empty_like(x)
    norm_row[(x.shape[0],)](x, weight, out, x.shape[1], eps, power(x.shape[1]))
    return out


def rope_rows(step: Step, x: Tensor, rope: Tensor, rope_dim: int) -> Tensor:
    """Rope on the last `rope_dim` channels of bf16 [B, T, H, C], in place; rope f32 [rope_dim / 2]."""
    batch, tokens, heads, channels = x.shape
    block = min(16, power(heads))
    rope_heads[(batch * tokens, triton.cdiv(heads, block))](
        x, step.positions, rope, tokens, heads, channels, rope_dim, power(rope_dim // 2), block, num_warps=2
    )
    return x


def window_rows_rows(
    step: Step, x: Tensor, rope: Tensor, weight: Tensor, *, rope_dim: int, eps: float, kv_cache: str
) -> Tensor:
    """This call's window rows bf16 [B, T, C] of their projection x bf16 [B, T, C], as `window_rows`."""
    batch, tokens, channels = x.shape
    out = torch.empty_like(x)
    window_row[(batch * tokens,)](
        x, weight, step.positions, rope, out, tokens, eps, channels, power(channels), rope_dim, kv_cache != "none",
        num_warps=2,
    )  # fmt: skip
    return out


def route_rows(
    logits: Tensor, bias: Tensor, *, active: int, score_func: str, gate_temp: float, route_scale: float
) -> tuple[Tensor, Tensor]:
    """Weights f32 and ids int64 [n, active] of the experts of each row, from logits f32 [n, experts], as `route`."""
    if score_func != "sqrtsoftplus":
        raise ValueError(f"unknown score function `{score_func}`; known: sqrtsoftplus")
    n, experts = logits.shape
    weights = torch.empty(n, active, dtype=torch.float32, device=logits.device)
    ids = torch.empty(n, active, dtype=torch.int64, device=logits.device)
    choose_experts[(n,)](
        logits, bias, weights, ids, experts, gate_temp, route_scale, active, power(active), power(experts)
    )
    return weights, ids
