"""The compressor: at decode the projections, then one launch from there to the appended rows."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from dsv41c.kernels.reference import compress as reference
from dsv41c.kernels.step import Step
from dsv41c.kernels.triton.matmul import matmul
from dsv41c.kernels.triton.planes import rows16
from dsv41c.kernels.triton.rows import MODES, norm_pairs, rope_pairs, row_place, store_row

DECODE_ROWS = 32  # tokens that the row kernels take; more go to matrix products
_LARGEST_RATIO = 16  # the loops over a group's tokens are unrolled


@triton.jit
def project_rows(
    wkv, wgate, x, raw, M: tl.constexpr, D: tl.constexpr, GATED: tl.constexpr, T: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """Grid (rows, tokens / T), rows M or with a gate 2 M: wkv x, then wgate x, to raw f32 [tokens, rows]."""
    row = tl.program_id(0)
    token = tl.program_id(1) * T
    WIDTH: tl.constexpr = 2 * M if GATED else M
    weight = wkv
    if row >= M:  # never without a gate
        weight = wgate
    value = rows16(weight, x + token * D, row % M, M, D, D, 1, T, K, 8)
    place = raw + (token + tl.arange(0, T))[None, :] * WIDTH + row + tl.arange(0, 1)[:, None]
    tl.store(place, value)


@triton.jit
def _source(tail, fresh, stride, index, waiting, tokens, RATIO: tl.constexpr, C: tl.constexpr):
    """f32 pairs of the row `index` from the open group's start on: a waiting one of the tail, or one of this call."""
    pair = tl.arange(0, C // 2)
    kept = tail + tl.minimum(index, RATIO - 1) * C + 2 * pair
    made = fresh + tl.minimum(tl.maximum(index - waiting, 0), tokens - 1) * stride + 2 * pair
    old = index < waiting
    even = tl.where(old, tl.load(kept), tl.load(made).to(tl.float32))
    odd = tl.where(old, tl.load(kept + 1), tl.load(made + 1).to(tl.float32))
    return even, odd


@triton.jit
def _pooled(tail, kv, score, stride, first, waiting, tokens, RATIO: tl.constexpr, C: tl.constexpr):
    """sum over a group's tokens of softmax(score) * kv, per channel; f32 pairs."""
    most_even, most_odd = _source(tail + RATIO * C, score, stride, first, waiting, tokens, RATIO, C)
    for i in tl.static_range(1, RATIO):
        even, odd = _source(tail + RATIO * C, score, stride, first + i, waiting, tokens, RATIO, C)
        most_even = tl.maximum(most_even, even)
        most_odd = tl.maximum(most_odd, odd)
    total_even = tl.zeros([C // 2], tl.float32)
    total_odd = tl.zeros([C // 2], tl.float32)
    for i in tl.static_range(RATIO):
        even, odd = _source(tail + RATIO * C, score, stride, first + i, waiting, tokens, RATIO, C)
        total_even += tl.exp(even - most_even)
        total_odd += tl.exp(odd - most_odd)
    sum_even = tl.zeros([C // 2], tl.float32)
    sum_odd = tl.zeros([C // 2], tl.float32)
    for i in tl.static_range(RATIO):
        even, odd = _source(tail + RATIO * C, score, stride, first + i, waiting, tokens, RATIO, C)
        value_even, value_odd = _source(tail, kv, stride, first + i, waiting, tokens, RATIO, C)
        sum_even += tl.exp(even - most_even) / total_even * value_even
        sum_odd += tl.exp(odd - most_odd) / total_odd * value_odd
    return sum_even, sum_odd


@triton.jit
def finish_groups(
    kv, score, stride, tail, norm_weight, frequency, slots, positions, latent, pool, tokens, capacity, spare, eps,
    C: tl.constexpr, R: tl.constexpr, WIDTH: tl.constexpr, RATIO: tl.constexpr, MODE: tl.constexpr,
):  # fmt: skip
    """Grid (G, B): a group's rows to its latent and its row of the compressed KV; group 0 also leaves the new tail.

    kv and score [B * tokens, C], rows `stride` apart (RATIO 1: no score, no tail); tail f32 [slots, 2, RATIO, C];
    latent [B, G, C]; pool [slots, capacity, WIDTH].
    """
    group = tl.program_id(0)
    session = tl.program_id(1)
    KIND: tl.constexpr = latent.dtype.element_ty
    pair = tl.arange(0, C // 2)
    position = tl.load(positions + session)
    slot = tl.load(slots + session)
    own = kv + session.to(tl.int64) * tokens * stride
    if RATIO == 1:
        even = tl.load(own + group * stride + 2 * pair).to(KIND).to(tl.float32)
        odd = tl.load(own + group * stride + 2 * pair + 1).to(KIND).to(tl.float32)
        even, odd = norm_pairs(even, odd, norm_weight, pair, eps, C, KIND)
    else:
        gates = score + session.to(tl.int64) * tokens * stride
        waiting = (position % RATIO).to(tl.int32)
        tail += slot * 2 * RATIO * C
        even, odd = _pooled(tail, own, gates, stride, group * RATIO, waiting, tokens, RATIO, C)
        even = even.to(KIND).to(tl.float32)
        odd = odd.to(KIND).to(tl.float32)
        even, odd = norm_pairs(even, odd, norm_weight, pair, eps, C, KIND)
        ended = (waiting + tokens) // RATIO
        even = tl.where(group < ended, even, 0.0)
        odd = tl.where(group < ended, odd, 0.0)
        if group == 0:
            tl.debug_barrier()  # every thread has read the tail
            left = (waiting + tokens) % RATIO
            for i in tl.static_range(RATIO):
                for part in tl.static_range(2):
                    place = tail + (part * RATIO + i) * C
                    rows = own if part == 0 else gates
                    old = tail + part * RATIO * C
                    first, second = _source(old, rows, stride, ended * RATIO + i, waiting, tokens, RATIO, C)
                    tl.store(place + 2 * pair, tl.where(i < left, first, 0.0))
                    tl.store(place + 2 * pair + 1, tl.where(i < left, second, 0.0))
    out = latent + (session.to(tl.int64) * tl.num_programs(0) + group) * C
    tl.store(out + 2 * pair, even.to(KIND))
    tl.store(out + 2 * pair + 1, odd.to(KIND))
    if capacity > 0:
        number = position // RATIO + group
        even, odd = rope_pairs(even, odd, number * RATIO, frequency, 2 * pair, C, R, KIND)
        store_row(row_place(pool, slot, number, capacity, spare, WIDTH), even, odd, C, 16, True, MODE)


def compress(
    step: Step,
    x: Tensor,
    compress_kv: Tensor,
    rope: Tensor,
    wkv: Tensor,
    norm_weight: Tensor,
    *,
    group_tail: Tensor | None = None,
    wgate: Tensor | None = None,
    ratio: int,
    rope_dim: int,
    eps: float,
    kv_cache: str,
) -> tuple[Tensor, ...]:
    """`reference.compress` in two launches at decode. wkv and wgate bf16 or f32 [C, D]; pools are updated in place.

    Weights in bf16 give what their values in f32 do: products of bf16 numbers are exact, and sums are f32.
    """
    channels = wkv.shape[0]
    if x.dtype != torch.bfloat16 or channels & (channels - 1) or channels < 32 or ratio > _LARGEST_RATIO:
        if ratio > 1:
            wkv, wgate = wkv.to(torch.float32), None if wgate is None else wgate.to(torch.float32)
        return reference.compress(
            step, x, compress_kv, rope, wkv, norm_weight, group_tail=group_tail, wgate=wgate,
            ratio=ratio, rope_dim=rope_dim, eps=eps, kv_cache=kv_cache,
        )  # fmt: skip
    batch, tokens, _ = x.shape
    kv, score, stride = _projected(x, wkv, wgate)
    latent = torch.empty(batch, (ratio - 1 + tokens) // ratio, channels, dtype=x.dtype, device=x.device)
    finish_groups[(latent.shape[1], batch)](
        kv, score, stride, norm_weight if group_tail is None else group_tail, norm_weight, rope, step.slots,
        step.positions, latent, compress_kv, tokens, compress_kv.shape[1], compress_kv.shape[0] - 1, eps,
        C=channels, R=rope_dim, WIDTH=compress_kv.shape[2], RATIO=ratio, MODE=MODES[kv_cache], enable_fp_fusion=False,
    )  # fmt: skip
    return (latent, compress_kv) if group_tail is None else (latent, compress_kv, group_tail)


def _projected(x: Tensor, wkv: Tensor, wgate: Tensor | None) -> tuple[Tensor, Tensor, int]:
    """wkv x and wgate x [B * T, C], f32 where there is a gate, and how far apart their rows are."""
    channels, dim = wkv.shape
    rows = x.reshape(-1, dim)
    count = rows.shape[0]
    if count > DECODE_ROWS or (wgate is not None and wgate.dtype != wkv.dtype):
        kv = matmul(rows, wkv, x.dtype if wgate is None else torch.float32)
        return kv, kv if wgate is None else matmul(rows, wgate, torch.float32), channels
    width = channels if wgate is None else 2 * channels
    raw = torch.empty(count, width, dtype=torch.float32, device=x.device)
    together = min(count & -count, 4)
    project_rows[(width, count // together)](
        wkv, wkv if wgate is None else wgate, rows.contiguous(), raw, M=channels, D=dim, GATED=wgate is not None,
        T=together, K=1024 // together, num_warps=1,
    )  # fmt: skip
    return raw, raw[:, channels:] if wgate is not None else raw, width
