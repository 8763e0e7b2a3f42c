"""Hyper-connections over many rows: coefficients, the collapse with its norm, and the expansion.

The mixing product is of bf16 streams and an fp32 matrix. It runs as three products of bf16, which keep every bit of the
matrix, with fp32 sums over a slice of the channels; slices are added in fp32, in order.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from dsv41c.kernels.triton.launch import power
from dsv41c.kernels.triton.tiles import three_parts

_TOKENS = 64  # rows of streams a program of the product takes
_COLUMNS = 64  # and channels at a time
_PROGRAMS = 264  # as many as keep every multiprocessor of a large GPU busy twice
_FEWEST_SLICES, _MOST_SLICES = 4, 32


@triton.jit
def mix_sums(
    streams, fn, sums, squares, n, K, slice_columns,
    MIXES: tl.constexpr, ROWS: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """Grid (ceil(n/BT), slices): sums f32 [slices, n, ROWS] of fn times streams, and of squares f32 [slices, n].

    streams bf16 [n, K]; fn f32 [MIXES, K]; a slice has `slice_columns`, a multiple of BK. ROWS: a power of two from
    MIXES on, at least 16.
    """
    part = tl.program_id(1)
    token = tl.program_id(0) * BT + tl.arange(0, BT)
    row = tl.arange(0, ROWS)
    first = part * slice_columns
    column = first + tl.arange(0, BK)
    x_at = streams + tl.minimum(token, n - 1).to(tl.int64)[:, None] * K + column[None, :]
    f_at = fn + tl.minimum(row, MIXES - 1)[:, None] * K + column[None, :]
    total = tl.zeros([BT, ROWS], tl.float32)
    square = tl.zeros([BT], tl.float32)
    for k in range(first, tl.minimum(K, first + slice_columns), BK):
        if EVEN:
            x = tl.load(x_at)
            f = tl.load(f_at)
        else:
            inside = (k + tl.arange(0, BK) < K)[None, :]
            x = tl.load(x_at, mask=inside, other=0.0)
            f = tl.load(f_at, mask=inside, other=0.0)
        high, middle, low = three_parts(f)
        total = tl.dot(x, tl.trans(low), total)
        total = tl.dot(x, tl.trans(middle), total)
        total = tl.dot(x, tl.trans(high), total)
        wide = x.to(tl.float32)
        square += tl.sum(wide * wide, 1)
        x_at += BK
        f_at += BK
    line = part.to(tl.int64) * n + token
    tl.store(sums + line[:, None] * ROWS + row[None, :], total, mask=(token < n)[:, None])
    tl.store(squares + line, square, mask=token < n)


@triton.jit
def mix_coefficients(
    sums, squares, scale, base, pre, post, comb, n, K, slices, iterations, eps, norm_eps,
    S: tl.constexpr, SB: tl.constexpr, ROWS: tl.constexpr, BT: tl.constexpr,
):  # fmt: skip
    """Grid (ceil(n/BT)): pre, post f32 [n, S] and comb f32 [n, S, S] of the sums of `mix_sums`.

    SB: the power of two from S on; what lies beyond S is 0 throughout.
    """
    token = tl.program_id(0) * BT + tl.arange(0, BT)
    there = token < n
    from_token = tl.minimum(token, n - 1).to(tl.int64)
    stream = tl.arange(0, SB)
    known = stream < S
    one = from_token[:, None] * ROWS + tl.where(known, stream, 0)[None, :]
    cell = tl.where(known[:, None] & known[None, :], stream[:, None] * S + stream[None, :], 0)
    two = from_token[:, None, None] * ROWS + 2 * S + cell[None, :, :]
    total = tl.zeros([BT], tl.float32)
    first = tl.zeros([BT, SB], tl.float32)
    second = tl.zeros([BT, SB], tl.float32)
    square = tl.zeros([BT, SB, SB], tl.float32)
    for _ in range(slices):
        total += tl.load(squares + from_token)
        first += tl.load(sums + one)
        second += tl.load(sums + one + S)
        square += tl.load(sums + two)
        squares += n
        sums += n * ROWS
    rms = tl.rsqrt(total / K + norm_eps)
    at = token.to(tl.int64)[:, None] * S + stream[None, :]
    mask = there[:, None] & known[None, :]
    value = first * rms[:, None] * tl.load(scale) + tl.load(base + stream, mask=known, other=0.0)[None, :]
    tl.store(pre + at, 1.0 / (1.0 + tl.exp(-value)) + eps, mask=mask)
    value = second * rms[:, None] * tl.load(scale + 1) + tl.load(base + S + stream, mask=known, other=0.0)[None, :]
    tl.store(post + at, 2.0 / (1.0 + tl.exp(-value)), mask=mask)
    inside = (known[:, None] & known[None, :])[None, :, :]
    square = square * rms[:, None, None] * tl.load(scale + 2) + tl.load(base + 2 * S + cell)[None, :, :]
    square = tl.where(inside, square, float("-inf"))
    largest = tl.max(square, 2)[:, :, None]
    square = tl.exp(square - tl.where(largest == float("-inf"), 0.0, largest))
    square = square / tl.where(known[None, :, None], tl.sum(square, 2)[:, :, None], 1.0)
    square = tl.where(inside, square + eps, 0.0)
    square = square / (tl.sum(square, 1)[:, None, :] + eps)
    for _ in range(iterations - 1):
        square = square / (tl.sum(square, 2)[:, :, None] + eps)
        square = square / (tl.sum(square, 1)[:, None, :] + eps)
    place = comb + token.to(tl.int64)[:, None, None] * (S * S) + cell[None, :, :]
    tl.store(place, square, mask=inside & there[:, None, None])


@triton.jit
def collapse_norm(
    streams, pre, weight, normed, halves, D, eps, S: tl.constexpr, BLOCK: tl.constexpr, HALVES: tl.constexpr
):
    """Grid (n): the norm of sum_s pre[s] streams[s], rounded before it is normed; bf16 [n, D].

    HALVES: `halves` gets it as well, even columns before odd ones. 2 * BLOCK covers D.
    """
    token = tl.program_id(0).to(tl.int64)
    pair = tl.arange(0, BLOCK)
    side = tl.arange(0, 2)
    column = 2 * pair[:, None] + side[None, :]
    inside = column < D
    gathered = tl.zeros([BLOCK, 2], tl.float32)
    for s in tl.static_range(S):
        x = tl.load(streams + (token * S + s) * D + column, mask=inside, other=0.0)
        gathered += tl.load(pre + token * S + s) * x.to(tl.float32)
    gathered = gathered.to(tl.bfloat16).to(tl.float32)
    scale = tl.rsqrt(tl.sum(tl.sum(gathered * gathered, 1), 0) / D + eps)
    value = (gathered * scale * tl.load(weight + column, mask=inside, other=0.0)).to(tl.bfloat16)
    tl.store(normed + token * D + column, value, mask=inside)
    if HALVES:
        tl.store(halves + token * D + side[None, :] * (D // 2) + pair[:, None], value, mask=inside)


@triton.jit
def expand_streams(out, streams, post, comb, target, D, S: tl.constexpr, SB: tl.constexpr, BLOCK: tl.constexpr):
    """Grid (n, ceil(D/BLOCK)): target[j] = post[j] * out + sum_i comb[i, j] * streams[i], bf16 [n, S, D]."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    stream = tl.arange(0, SB)
    inside = (stream < S)[:, None] & (column < D)[None, :]
    x = tl.load(streams + (token * S + stream)[:, None] * D + column[None, :], mask=inside, other=0.0).to(tl.float32)
    added = tl.load(out + token * D + column, mask=column < D, other=0.0).to(tl.float32)
    for j in tl.static_range(S):
        share = tl.load(comb + (token * S + stream) * S + j, mask=stream < S, other=0.0)
        value = tl.load(post + token * S + j) * added + tl.sum(share[:, None] * x, 0)
        tl.store(target + (token * S + j) * D + column, value.to(tl.bfloat16), mask=column < D)


def mix_rows(
    streams: Tensor, fn: Tensor, scale: Tensor, base: Tensor, iterations: int, eps: float, norm_eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """pre f32 [B, T, S], post f32 [B, T, S] and comb f32 [B, T, S, S] of streams bf16 [B, T, S, D], as `mix`.

    fn f32 [(2+S)*S, S*D]; scale f32 [3]; base f32 [(2+S)*S].
    """
    batch, tokens, count, dim = streams.shape
    n, wide, mixes = batch * tokens, count * dim, (2 + count) * count
    rows, device, across = max(16, power(mixes)), streams.device, triton.cdiv(n, _TOKENS)
    steps = triton.cdiv(wide, _COLUMNS)
    slices = min(max(_FEWEST_SLICES, _PROGRAMS // across), _MOST_SLICES, steps)
    columns = triton.cdiv(steps, slices) * _COLUMNS
    slices = triton.cdiv(wide, columns)
    sums = torch.empty(slices, n, rows, dtype=torch.float32, device=device)
    squares = torch.empty(slices, n, dtype=torch.float32, device=device)
    mix_sums[(across, slices)](
        streams, fn, sums, squares, n, wide, columns, mixes, rows, _TOKENS, _COLUMNS, wide % _COLUMNS == 0,
        num_warps=4, num_stages=3,
    )  # fmt: skip
    pre = torch.empty(batch, tokens, count, dtype=torch.float32, device=device)
    post = torch.empty_like(pre)
    comb = torch.empty(batch, tokens, count, count, dtype=torch.float32, device=device)
    block = 16
    mix_coefficients[(triton.cdiv(n, block),)](
        sums, squares, scale, base, pre, post, comb, n, wide, slices, iterations, eps, norm_eps,
        count, power(count), rows, block, num_warps=2,
    )  # fmt: skip
    return pre, post, comb


def collapse_norm_rows(
    streams: Tensor, pre: Tensor, weight: Tensor, eps: float, *, halves: bool = False
) -> tuple[Tensor, Tensor]:
    """norm(sum_s pre[s] streams[s]) bf16 [B, T, D] of streams bf16 [B, T, S, D]; pre f32 [B, T, S], weight f32 [D].

    With `halves`, the second is the same with even columns before odd ones; without, it is the first.
    """
    batch, tokens, count, dim = streams.shape
    normed = torch.empty(batch, tokens, dim, dtype=streams.dtype, device=streams.device)
    second = torch.empty_like(normed) if halves else normed
    block = power(triton.cdiv(dim, 2))
    collapse_norm[(batch * tokens,)](
        streams, pre, weight, normed, second, dim, eps, count, block, halves, num_warps=8 if block > 1024 else 4
    )
    return normed, second


def expand_rows(sublayer_out: Tensor, streams: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    """The streams bf16 [B, T, S, D] with a sublayer's output [B, T, D] on them; post, comb f32 as `mix_rows` gives."""
    batch, tokens, count, dim = streams.shape
    target = torch.empty_like(streams)
    block = min(1024, power(dim))
    expand_streams[(batch * tokens, triton.cdiv(dim, block))](
        sublayer_out, streams, post, comb, target, dim, count, power(count), block
    )
    return target
