"""The boundary between two sublayers at decode: a sublayer's normed input, and the mixing coefficients beside it.

The coefficients are wanted when the sublayer ends, its input at once. One launch makes the input, in a program a token,
and beside it the sums that the coefficients need, a slice of the channels a program; a program of a later launch, which
takes long enough to hide it, finishes them (`finish_mix`). Sums of slices are added in a fixed order.
"""

from __future__ import annotations

import triton
import triton.language as tl

from dsv41c.kernels.triton.planes import store_all_planes4, store_all_planes8


@triton.jit
def arrive_last(counter, others):
    """Whether this program is the last of `others` + 1 to arrive; the counter is 0 again afterwards.

    What the programs stored before is visible to the last one, through loads that go past the first cache (`.cg`).
    """
    tl.debug_barrier()
    last = tl.atomic_add(counter, 1, sem="acq_rel") == others
    if last:
        tl.atomic_xchg(counter, 0, sem="relaxed")
    tl.debug_barrier()
    return last


@triton.jit
def normed_input(
    streams, pre, pre_stride, norm_weight, fn, normed, planes8, planes4, sums, norm_eps,
    D: tl.constexpr, S: tl.constexpr, SLICE: tl.constexpr, SLICES: tl.constexpr, BLOCK: tl.constexpr,
    PLANES8: tl.constexpr, PLANES4: tl.constexpr,
):  # fmt: skip
    """Grid (1 + slices, B): program 0 of a token collapses and norms, the others are `mix_slice`.

    streams [B, S, D]; pre f32 [B, S], `pre_stride` apart; normed [B, D] in its dtype, rounded twice as the ops are, and
    its planes. BLOCK: the power of two from D on.
    """
    token = tl.program_id(1)
    if tl.program_id(0) == 0:
        _collapse_norm(
            streams, pre + token * pre_stride, norm_weight, normed, planes8, planes4, norm_eps, token, D, S, BLOCK,
            PLANES8, PLANES4,
        )  # fmt: skip
    else:
        _mix_slice(streams, fn, sums, tl.program_id(0) - 1, token, D, S, SLICE, SLICES)


@triton.jit
def _collapse_norm(
    streams, pre, norm_weight, normed, planes8, planes4, norm_eps, token,
    D: tl.constexpr, S: tl.constexpr, BLOCK: tl.constexpr, PLANES8: tl.constexpr, PLANES4: tl.constexpr,
):  # fmt: skip
    column = tl.arange(0, BLOCK)
    there = column < D
    kind = normed.dtype.element_ty
    weight = tl.load(norm_weight + column, mask=there, other=0.0)
    x = tl.zeros([BLOCK], tl.float32)
    for s in tl.static_range(S):
        h = tl.load(streams + (token * S + s) * D + column, mask=there, other=0.0).to(tl.float32)
        x += tl.load(pre + s) * h
    x = x.to(kind).to(tl.float32)
    y = (x * (1.0 / tl.sqrt_rn(tl.sum(x * x, 0) / D + norm_eps)) * weight).to(kind)
    tl.store(normed + token * D + column, y, mask=there)
    if PLANES8:
        store_all_planes8(planes8 + token * D, y.to(tl.float32), D, BLOCK)
    if PLANES4:
        store_all_planes4(planes4 + token * D, y.to(tl.float32), D, BLOCK)


@triton.jit
def _mix_slice(
    streams, fn, sums, part, token, D: tl.constexpr, S: tl.constexpr, SLICE: tl.constexpr, SLICES: tl.constexpr
):
    """A slice's part of the mixing sums of a token: sums f32 [B, SLICES, ROWS].

    Rows are fn times streams, then the sum of squares; fn f32 [(2+S)*S, S*D], SLICE channels of every stream; ROWS is
    the power of two from (2+S)*S + 1 on.
    """
    MIXES: tl.constexpr = (2 + S) * S
    ROWS: tl.constexpr = triton.next_power_of_2((2 + S) * S + 1)
    flat = tl.arange(0, S * SLICE)
    column = part * SLICE + flat % SLICE
    inside = column < D
    place = flat // SLICE * D + column
    row = tl.arange(0, ROWS)
    h = tl.load(streams + token * S * D + place, mask=inside, other=0.0).to(tl.float32)[None, :]
    f = tl.load(fn + row[:, None] * (S * D) + place[None, :], mask=(row < MIXES)[:, None] & inside[None, :], other=0.0)
    total = tl.sum(tl.where((row == MIXES)[:, None], h, f) * h, 1)
    tl.store(sums + (token * SLICES + part) * ROWS + row, total)


@triton.jit
def finish_mix(
    token, sums, scale, base, pre, post, comb, norm_eps, mix_eps,
    D: tl.constexpr, S: tl.constexpr, SLICES: tl.constexpr, ITERATIONS: tl.constexpr,
):  # fmt: skip
    """The coefficients of one token from the sums of its slices: pre and post f32 [B, S], comb f32 [B, S, S].

    In few registers, since it shares launches with kernels that live on many warps: sums come in turn, and the totals
    go through memory (the first slice's place), from where they are read in the shapes wanted.
    """
    MIXES: tl.constexpr = (2 + S) * S
    ROWS: tl.constexpr = triton.next_power_of_2((2 + S) * S + 1)
    own = sums + token * SLICES * ROWS
    row = tl.arange(0, ROWS)
    total = tl.zeros([ROWS], tl.float32)
    for first in range(0, SLICES, 16):
        part = first + tl.arange(0, 16)
        at = own + part[:, None] * ROWS + row[None, :]
        total += tl.sum(tl.load(at, mask=(part < SLICES)[:, None], other=0.0), 0)
    tl.debug_barrier()
    tl.store(own + row, total)
    tl.debug_barrier()
    rms = 1.0 / tl.sqrt_rn(tl.load(own + MIXES) / (S * D) + norm_eps)
    one = tl.arange(0, S)
    value = tl.load(own + one) * rms * tl.load(scale) + tl.load(base + one)
    tl.store(pre + token * S + one, 1.0 / (1.0 + tl.exp(-value)) + mix_eps)
    value = tl.load(own + S + one) * rms * tl.load(scale + 1) + tl.load(base + S + one)
    tl.store(post + token * S + one, 2.0 / (1.0 + tl.exp(-value)))
    square = one[:, None] * S + one[None, :]
    matrix = tl.load(own + 2 * S + square) * rms * tl.load(scale + 2) + tl.load(base + 2 * S + square)
    matrix = tl.exp(matrix - tl.max(matrix, 1)[:, None])
    matrix = matrix / tl.sum(matrix, 1)[:, None] + mix_eps
    matrix = matrix / (tl.sum(matrix, 0)[None, :] + mix_eps)
    for _ in range(ITERATIONS - 1):
        matrix = matrix / (tl.sum(matrix, 1)[:, None] + mix_eps)
        matrix = matrix / (tl.sum(matrix, 0)[None, :] + mix_eps)
    tl.store(comb + token * S * S + square, matrix)


@triton.jit
def load_streams(streams, post, comb, token, row, mask, D: tl.constexpr, S: tl.constexpr):
    """What `put_streams` needs of the streams [B, S, D] at tokens [1, T] and channels [M, 1]: load it early."""
    i = tl.arange(0, S)[:, None, None]
    j = tl.arange(0, S)[None, :, None]
    h = tl.load(streams + (token[None, :, :] * S + i) * D + row[None, :, :], mask=mask[None, :, :], other=0.0)
    return h, tl.load(post + token * S + tl.arange(0, S)[:, None]), tl.load(comb + (token[None, :, :] * S + i) * S + j)


@triton.jit
def put_streams(out, h, post, comb, target, token, row, mask, D: tl.constexpr, S: tl.constexpr):
    """Put a sublayer's rounded output [M, T], fp32, onto the streams: target [B, S, D]."""
    j = tl.arange(0, S)[:, None, None]
    kept = tl.sum(comb[:, :, None, :] * h.to(tl.float32)[:, None, :, :], 0)
    total = post[:, None, :] * out[None, :, :] + kept
    place = target + (token[None, :, :] * S + j) * D + row[None, :, :]
    tl.store(place, total.to(target.dtype.element_ty), mask=mask[None, :, :])
