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

AHEAD: tl.constexpr = tl.constexpr(131072)  # bytes that a program fetches ahead


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
def fetch_ahead(pointer, size, chunk):
    """Ask for a chunk of AHEAD bytes, of `size` in all, to be brought into the L2 cache. sm_90.

    For the launches that leave memory idle: what comes next finds its first weights on the chip.
    """
    lane = tl.arange(0, 256)
    offset = tl.minimum(chunk.to(tl.int64) * AHEAD + lane * (AHEAD // 256), size - AHEAD // 256)
    tl.inline_asm_elementwise(
        "cp.async.bulk.prefetch.L2.global [$1], 512; mov.b32 $0, 0;",
        "=r,l",
        [pointer.to(tl.int64) + offset],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def boundary(
    streams, pre, pre_stride, fn, norm_weight, counters, sums, collapsed, normed, planes8, planes4, norm_eps,
    ahead0, ahead0_size, ahead1, ahead1_size,
    D: tl.constexpr, S: tl.constexpr, SLICE: tl.constexpr, SLICES: tl.constexpr, BLOCK: tl.constexpr,
    MIX: tl.constexpr, PLANES8: tl.constexpr, PLANES4: tl.constexpr,
):  # fmt: skip
    """Grid (SLICES + chunks ahead, B). Per token: collapsed [D] f32 (scratch), normed [D] in its dtype, its planes.

    streams [B, S, D]; pre f32, `pre_stride` apart; fn f32 [(2+S)*S, S*D]; norm_weight f32 [D]; counters int32 [B], 0.
    sums f32 [B, SLICES, ROWS]: the slice's part of fn times streams, then of the squares of streams and collapsed;
    ROWS is the power of two from (2+S)*S + 2 on. Without MIX only the last is meaningful. BLOCK: the power of two from
    D on. What is fetched ahead are two runs of bytes; without chunks ahead there are none.
    """
    part = tl.program_id(0)
    token = tl.program_id(1)
    if part >= SLICES:
        chunk = part - SLICES
        first = tl.cdiv(ahead0_size, AHEAD)
        if token == 0:
            if chunk < first:
                fetch_ahead(ahead0, ahead0_size, chunk)
            else:
                fetch_ahead(ahead1, ahead1_size, chunk - first)
    else:
        _slice(
            streams, pre, pre_stride, fn, sums, collapsed, normed, part, token, D, S, SLICE, SLICES, MIX
        )  # fmt: skip
        if arrive_last(counters + token, SLICES - 1):
            _normalise(
                norm_weight, sums, collapsed, normed, planes8, planes4, norm_eps, token, D, S, SLICES, BLOCK,
                PLANES8, PLANES4,
            )  # fmt: skip


@triton.jit
def _slice(
    streams, pre, pre_stride, fn, sums, collapsed, normed, part, token,
    D: tl.constexpr, S: tl.constexpr, SLICE: tl.constexpr, SLICES: tl.constexpr, MIX: tl.constexpr,
):  # fmt: skip
    MIXES: tl.constexpr = (2 + S) * S
    ROWS: tl.constexpr = triton.next_power_of_2((2 + S) * S + 2)
    flat = tl.arange(0, S * SLICE)  # stream by stream, the channels of the slice
    stream = flat // SLICE
    channel = part * SLICE + flat % SLICE
    inside = channel < D
    row = tl.arange(0, ROWS)
    mixes = tl.zeros([ROWS], tl.float32)
    squares = 0.0
    h = tl.load(streams + (token * S + stream) * D + channel, mask=inside, other=0.0).to(tl.float32)
    if MIX:
        at = fn + row[:, None] * (S * D) + (stream * D + channel)[None, :]
        f = tl.load(at, mask=(row < MIXES)[:, None] & inside[None, :], other=0.0)
        mixes = tl.sum(f * h[None, :], 1)
        squares = tl.sum(h * h, 0)
    carried = tl.load(pre + token * pre_stride + stream)
    gathered = tl.sum(tl.reshape(carried * h, [S, SLICE]), 0).to(normed.dtype.element_ty).to(tl.float32)
    column = part * SLICE + tl.arange(0, SLICE)
    tl.store(collapsed + token * D + column, gathered, mask=column < D)
    mixes = tl.where(row == MIXES, squares, tl.where(row == MIXES + 1, tl.sum(gathered * gathered, 0), mixes))
    tl.store(sums + (token * SLICES + part) * ROWS + row, mixes)


@triton.jit
def _normalise(
    norm_weight, sums, collapsed, normed, planes8, planes4, norm_eps, token,
    D: tl.constexpr, S: tl.constexpr, SLICES: tl.constexpr, BLOCK: tl.constexpr,
    PLANES8: tl.constexpr, PLANES4: tl.constexpr,
):  # fmt: skip
    MIXES: tl.constexpr = (2 + S) * S
    ROWS: tl.constexpr = triton.next_power_of_2((2 + S) * S + 2)
    column = tl.arange(0, BLOCK)
    there = column < D
    x = tl.load(collapsed + token * D + column, mask=there, other=0.0, cache_modifier=".cg")
    weight = tl.load(norm_weight + column, mask=there, other=0.0)
    every = tl.arange(0, triton.next_power_of_2(SLICES))
    parts = sums + (token * SLICES + every) * ROWS + MIXES + 1
    total = tl.sum(tl.load(parts, mask=every < SLICES, other=0.0, cache_modifier=".cg"), 0)
    y = (x * (1.0 / tl.sqrt_rn(total / D + norm_eps)) * weight).to(normed.dtype.element_ty)
    tl.store(normed + token * D + column, y, mask=there)
    if PLANES8:
        store_planes8(planes8 + token * D, column, y.to(tl.float32), there, D)
    if PLANES4:
        store_planes4(planes4 + token * D, column, y.to(tl.float32), there, D)


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
