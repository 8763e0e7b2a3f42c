"""The boundary between two sublayers at decode: streams to mixing coefficients, and to a sublayer's normed input.

One launch collapses the streams with the pre-mix that was carried here, and adds up what the coefficients need, a slice
of the channels a program; the program that ends last normalises the collapsed vector. The coefficients themselves are
needed later than the input, so that `finish_mix` is left to a program of the launch that follows.

Sums of slices are added in a fixed order, whichever program comes last.
"""

from __future__ import annotations

import triton
import triton.language as tl

from dsv41c.kernels.triton.planes import store_planes4, store_planes8


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
def boundary(
    streams, pre, pre_stride, fn, norm_weight, counters, sums, collapsed, normed, planes8, planes4, norm_eps,
    D: tl.constexpr, S: tl.constexpr, SLICE: tl.constexpr, SLICES: tl.constexpr, BLOCK: tl.constexpr,
    MIX: tl.constexpr, PLANES8: tl.constexpr, PLANES4: tl.constexpr,
):  # fmt: skip
    """Grid (SLICES, B). Per token: collapsed [D] f32 (scratch), normed [D] in its dtype, and its planes.

    streams [B, S, D]; pre f32, `pre_stride` apart; fn f32 [(2+S)*S, S*D]; norm_weight f32 [D]; counters int32 [B], 0.
    sums f32 [B, SLICES, ROWS]: the slice's part of fn times streams, then of the squares of streams and collapsed;
    ROWS is the power of two from (2+S)*S + 2 on. Without MIX only the last is meaningful.
    """
    MIXES: tl.constexpr = (2 + S) * S
    ROWS: tl.constexpr = triton.next_power_of_2((2 + S) * S + 2)
    part = tl.program_id(0)
    token = tl.program_id(1)
    column = part * SLICE + tl.arange(0, SLICE)
    inside = column < D
    row = tl.arange(0, ROWS)
    mixes = tl.zeros([ROWS], tl.float32)
    squares = 0.0
    gathered = tl.zeros([SLICE], tl.float32)
    for s in tl.static_range(S):
        h = tl.load(streams + (token * S + s) * D + column, mask=inside, other=0.0).to(tl.float32)
        gathered += tl.load(pre + token * pre_stride + s) * h
        if MIX:
            at = fn + row[:, None] * (S * D) + (s * D + column)[None, :]
            f = tl.load(at, mask=(row < MIXES)[:, None] & inside[None, :], other=0.0)
            mixes += tl.sum(f * h[None, :], 1)
            squares += tl.sum(h * h, 0)
    gathered = gathered.to(normed.dtype.element_ty).to(tl.float32)
    tl.store(collapsed + token * D + column, gathered, mask=inside)
    own = sums + (token * SLICES + part) * ROWS
    mixes = tl.where(row == MIXES, squares, tl.where(row == MIXES + 1, tl.sum(gathered * gathered, 0), mixes))
    tl.store(own + row, mixes)
    if arrive_last(counters + token, SLICES - 1):
        every = tl.arange(0, triton.next_power_of_2(SLICES))
        parts = sums + (token * SLICES + every) * ROWS + MIXES + 1
        total = tl.sum(tl.load(parts, mask=every < SLICES, other=0.0, cache_modifier=".cg"), 0)
        scale = 1.0 / tl.sqrt_rn(total / D + norm_eps)
        for start in tl.static_range(0, D, BLOCK):
            place = start + tl.arange(0, BLOCK)
            there = place < D
            x = tl.load(collapsed + token * D + place, mask=there, other=0.0, cache_modifier=".cg")
            y = (x * scale * tl.load(norm_weight + place, mask=there, other=0.0)).to(normed.dtype.element_ty)
            tl.store(normed + token * D + place, y, mask=there)
            if PLANES8:
                store_planes8(planes8 + token * D, place, y.to(tl.float32), there, D)
            if PLANES4:
                store_planes4(planes4 + token * D, place, y.to(tl.float32), there, D)


@triton.jit
def _total(own, first, count: tl.constexpr, ROWS: tl.constexpr, SLICES: tl.constexpr):
    """Sums over the slices of `count` neighbouring rows, f32 [count]."""
    every = tl.arange(0, triton.next_power_of_2(SLICES))
    at = own + every[:, None] * ROWS + (first + tl.arange(0, count))[None, :]
    return tl.sum(tl.load(at, mask=(every < SLICES)[:, None], other=0.0), 0)


@triton.jit
def finish_mix(
    token, sums, scale, base, pre, post, comb, norm_eps, mix_eps,
    D: tl.constexpr, S: tl.constexpr, SLICES: tl.constexpr, ITERATIONS: tl.constexpr,
):  # fmt: skip
    """The coefficients of one token from the sums of `boundary`: pre and post f32 [B, S], comb f32 [B, S, S]."""
    MIXES: tl.constexpr = (2 + S) * S
    ROWS: tl.constexpr = triton.next_power_of_2((2 + S) * S + 2)
    own = sums + token * SLICES * ROWS
    squares = tl.sum(_total(own, MIXES, 1, ROWS, SLICES), 0)
    rms = 1.0 / tl.sqrt_rn(squares / (S * D) + norm_eps)
    one = tl.arange(0, S)
    value = _total(own, 0, S, ROWS, SLICES) * rms * tl.load(scale) + tl.load(base + one)
    tl.store(pre + token * S + one, 1.0 / (1.0 + tl.exp(-value)) + mix_eps)
    value = _total(own, S, S, ROWS, SLICES) * rms * tl.load(scale + 1) + tl.load(base + S + one)
    tl.store(post + token * S + one, 2.0 / (1.0 + tl.exp(-value)))
    flat = tl.arange(0, S * S)
    value = _total(own, 2 * S, S * S, ROWS, SLICES) * rms * tl.load(scale + 2) + tl.load(base + 2 * S + flat)
    matrix = tl.reshape(value, [S, S])
    matrix = tl.exp(matrix - tl.max(matrix, 1)[:, None])
    matrix = matrix / tl.sum(matrix, 1)[:, None] + mix_eps
    matrix = matrix / (tl.sum(matrix, 0)[None, :] + mix_eps)
    for _ in range(ITERATIONS - 1):
        matrix = matrix / (tl.sum(matrix, 1)[:, None] + mix_eps)
        matrix = matrix / (tl.sum(matrix, 0)[None, :] + mix_eps)
    tl.store(comb + token * S * S + one[:, None] * S + one[None, :], matrix)


@triton.jit
def expanded(token, row, out, streams, post, comb, target, D: tl.constexpr, S: tl.constexpr, mask):
    """Put a sublayer's outputs `out` (fp32, rounded) at channels `row` onto the streams: target [B, S, D]."""
    for j in tl.static_range(S):
        total = tl.load(post + token * S + j) * out
        for i in tl.static_range(S):
            h = tl.load(streams + (token * S + i) * D + row, mask=mask, other=0.0).to(tl.float32)
            total += tl.load(comb + (token * S + i) * S + j) * h
        tl.store(target + (token * S + j) * D + row, total.to(target.dtype.element_ty), mask=mask)
