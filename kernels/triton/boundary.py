"""The boundary between two sublayers at decode: a sublayer's normed input, and the mixing coefficients beside it.

The coefficients are wanted when the sublayer ends, its input at once. So the input has a launch of its own, the sums of
the coefficients are programs of the launch behind it (`mix_slice`), and one program a token of a third finishes them
(`finish_mix`). Sums of slices are added in a fixed order.
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
    streams, pre, pre_stride, norm_weight, normed, planes8, planes4, norm_eps,
    D: tl.constexpr, S: tl.constexpr, BLOCK: tl.constexpr, PLANES8: tl.constexpr, PLANES4: tl.constexpr,
):  # fmt: skip
    """Grid (B,): the streams [B, S, D] collapsed with pre f32 [B, S], `pre_stride` apart, and normed: normed [B, D] in
    its dtype, rounded twice as the ops are, and its planes. BLOCK: the power of two from D on.
    """
    token = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    there = column < D
    kind = normed.dtype.element_ty
    weight = tl.load(norm_weight + column, mask=there, other=0.0)
    x = tl.zeros([BLOCK], tl.float32)
    for s in tl.static_range(S):
        h = tl.load(streams + (token * S + s) * D + column, mask=there, other=0.0).to(tl.float32)
        x += tl.load(pre + token * pre_stride + s) * h
    x = x.to(kind).to(tl.float32)
    y = (x * (1.0 / tl.sqrt_rn(tl.sum(x * x, 0) / D + norm_eps)) * weight).to(kind)
    tl.store(normed + token * D + column, y, mask=there)
    if PLANES8:
        store_all_planes8(planes8 + token * D, y.to(tl.float32), D, BLOCK)
    if PLANES4:
        store_all_planes4(planes4 + token * D, y.to(tl.float32), D, BLOCK)


@triton.jit
def mix_slice(
    streams, fn, sums, part, token,
    D: tl.constexpr, S: tl.constexpr, SLICE: tl.constexpr, SLICES: tl.constexpr,
):  # fmt: skip
    """A slice's part of the mixing sums of a token: sums f32 [B, SLICES, ROWS].

    Rows are fn times streams, then the sum of squares; fn f32 [(2+S)*S, S*D], SLICE channels of every stream; ROWS is
    the power of two from (2+S)*S + 1 on.
    """
    MIXES: tl.constexpr = (2 + S) * S
    ROWS: tl.constexpr = triton.next_power_of_2((2 + S) * S + 1)
    column = part * SLICE + tl.arange(0, SLICE)
    inside = column < D
    row = tl.arange(0, ROWS)
    total = tl.zeros([ROWS, SLICE], tl.float32)
    for s in tl.static_range(S):
        h = tl.load(streams + (token * S + s) * D + column, mask=inside, other=0.0).to(tl.float32)[None, :]
        at = fn + row[:, None] * (S * D) + (s * D + column)[None, :]
        f = tl.load(at, mask=(row < MIXES)[:, None] & inside[None, :], other=0.0)
        total += tl.where((row == MIXES)[:, None], h, f) * h
    tl.store(sums + (token * SLICES + part) * ROWS + row, tl.sum(total, 1))


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
    """The coefficients of one token from the sums of `mix_slice`: pre and post f32 [B, S], comb f32 [B, S, S]."""
    MIXES: tl.constexpr = (2 + S) * S
    ROWS: tl.constexpr = triton.next_power_of_2((2 + S) * S + 1)
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
