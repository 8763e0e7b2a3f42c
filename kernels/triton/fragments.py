"""Rows of E4M3 matrices times several vectors by matrix instructions, so that eight vectors cost little more than one.

A step of a warp takes 8 or 16 rows by 64 columns. Each lane loads 16 codes of a row, 16 bytes, and the 16 elements of
a vector that they meet: lane 4 g + t has row or vector g and columns 16 t to 16 t + 15. Columns may come in any order
in a product, so the tiles are renamed rather than moved: what a lane loads is what the instruction wants of it.

Loads of the next UNROLL steps are under way while those of this one are used. The warps of a program take turns at the
steps of its rows; their sums are added at the end.

Values. The rows of a program are of one block of 32, so that the scale of a group of 32 columns is one for all of them:
it goes to the vectors, as a power of two relative to the block's first scale, which the sums are multiplied by. With
`ASM` (sm_80 and later) a code s eeee mmm is placed into the bf16 s 0000eeee mmm0000, which is its value times 2^-120,
subnormals included; vectors are multiplied by 2^60 with their scale, sums by the 2^60 that is left. An element times
its relative scale may so be from 2^-186 to 2^67 in magnitude, and sums, in fp32 times 2^-60, keep all their bits from
2^-66 on: whatever the scales, results lose nothing unless scales of one block are some 2^60 apart. Elsewhere codes have
their own values. Vectors of fp32 are split into three bf16.
"""

from __future__ import annotations

import triton
import triton.language as tl

from dsv41c.kernels.triton.common import e4m3_small, e8m0_value
from dsv41c.kernels.triton.tiles import three_parts

VECTORS: tl.constexpr = tl.constexpr(8)  # of a program, the columns of the instruction
_LIFT: tl.constexpr = tl.constexpr(60)
_UNLIFT: tl.constexpr = tl.constexpr(2.0**60)


@triton.jit
def rows8_several(
    codes, scales, vectors, stride, count, first, N: tl.constexpr, BM: tl.constexpr, WARPS: tl.constexpr,
    UNROLL: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """`planes.rows8` for VECTORS vectors, plain rows of bf16 or f32 elements; fp32 [BM, VECTORS].

    `vectors` points to the first, the others are `stride` elements apart; past `count` the last one repeats. BM is 16
    or less, a power of two that divides the rows of the matrix.
    """
    lane = tl.arange(0, WARPS * 32)
    srow = scales + first // 32 * ((N + 31) // 32)
    acc = _sums(codes, srow, vectors, stride, count, lane, first, N, BM, WARPS, WARPS, UNROLL, ASM)
    return _unlifted(tl.sum(acc, 0), BM, ASM) * e8m0_value(tl.load(srow))


@triton.jit
def rows8_pair(
    codes, scales, codes2, scales2, vectors, stride, count, first, N: tl.constexpr, BM: tl.constexpr,
    WARPS: tl.constexpr, UNROLL: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """`rows8_several` of two matrices of one shape at once, by half of the warps each."""
    HALF: tl.constexpr = WARPS // 2
    lane = tl.arange(0, WARPS * 32)
    second = lane >= HALF * 32
    at = first // 32 * ((N + 31) // 32)
    chosen, srow = tl.where(second, codes2, codes), tl.where(second, scales2, scales) + at
    acc = _sums(chosen, srow, vectors, stride, count, lane, first, N, BM, HALF, WARPS, UNROLL, ASM)
    total = tl.sum(tl.reshape(acc, [2, HALF, acc.shape[1], 8]), 1)
    one, two = tl.split(tl.permute(total, (1, 2, 0)))
    one = _unlifted(one, BM, ASM) * e8m0_value(tl.load(scales + at))
    return one, _unlifted(two, BM, ASM) * e8m0_value(tl.load(scales2 + at))


@triton.jit
def _unlifted(total, BM: tl.constexpr, ASM: tl.constexpr):
    """Sums [BM, 8] of [8 or 16, 8] over the block's first scale."""
    if BM < 8:  # each row 8 / BM times
        total = tl.sum(tl.reshape(total, [8 // BM, BM, 8]), 0) * (BM / 8)
    return total * (_UNLIFT if ASM else 1.0)


@triton.jit
def _sums(
    codes, srow, vectors, stride, count, lane, first, N: tl.constexpr, BM: tl.constexpr, TURNS: tl.constexpr,
    WARPS: tl.constexpr, UNROLL: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """Sums of each warp, [WARPS, 8 or 16, 8]. TURNS warps share the steps of a matrix; codes and srow may be lanes'."""
    UNITS: tl.constexpr = N // 16
    STRIDE: tl.constexpr = 4 * TURNS  # units of a step of all
    STEPS: tl.constexpr = (UNITS + STRIDE - 1) // STRIDE
    MASKED: tl.constexpr = UNITS % (STRIDE * UNROLL) != 0
    group = lane % 32 // 4
    unit = lane // 32 % TURNS * 4 + lane % 4
    row = codes + (first + group % BM) * (N // 4)
    x = tl.minimum(group, count - 1) * stride
    if vectors.dtype.element_ty == tl.bfloat16:  # two a word, which loops carry as they are
        x = vectors.to(tl.pointer_type(tl.int32)) + x // 2
    else:
        x += vectors
    base = tl.load(srow + lane * 0)  # for each lane: only loads of tensors make the compiler take operands as below
    acc = tl.zeros([WARPS, 16 if BM == 16 else 8, 8], tl.float32)
    ahead = _step(row, x, srow, unit, N, BM, MASKED)
    for i in tl.static_range(1, UNROLL):
        ahead += _step(row, x, srow, unit + i * STRIDE, N, BM, MASKED)
    for step in tl.range(0, STEPS, UNROLL, num_stages=1):
        loaded = ahead
        ahead = ()
        for i in tl.static_range(UNROLL):
            codes0, codes8, x0, x1, scale = loaded[i]
            tile = _weights(codes0, WARPS, ASM)
            if BM == 16:
                both = tl.join(tile, _weights(codes8, WARPS, ASM))
                tile = tl.reshape(tl.permute(both, (0, 3, 1, 2)), [WARPS, 16, 64])
            acc = _product(tile, x0, x1, _relative(scale, base, ASM), acc, WARPS, ASM)
            if STEPS > UNROLL:
                ahead += _step(row, x, srow, unit + (step + i + UNROLL) * STRIDE, N, BM, True)
            else:
                ahead = loaded
    return acc


@triton.jit
def _step(row, x, srow, unit, N: tl.constexpr, BM: tl.constexpr, MASKED: tl.constexpr):
    """All that a step loads, as a tuple of one."""
    codes0, codes8 = _words(row, unit, N, BM, MASKED)
    x0, x1, scale = _elements(x, srow, unit, N, MASKED)
    return ((codes0, codes8, x0, x1, scale),)


@triton.jit
def _words(row, unit, N: tl.constexpr, BM: tl.constexpr, MASKED: tl.constexpr):
    """A unit of a row, and for 16 rows of the eighth from there, for each lane; int32 [lanes, 4]."""
    at = (row + unit * 4)[:, None] + tl.arange(0, 4)[None, :]
    if MASKED:
        inside = (unit < N // 16)[:, None]
        codes0 = tl.load(at, mask=inside, other=0, eviction_policy="evict_first")
        codes8 = codes0
        if BM == 16:
            codes8 = tl.load(at + 2 * N, mask=inside, other=0, eviction_policy="evict_first")
    else:
        codes0 = tl.load(at, eviction_policy="evict_first")
        codes8 = codes0
        if BM == 16:
            codes8 = tl.load(at + 2 * N, eviction_policy="evict_first")
    return codes0, codes8


@triton.jit
def _elements(x, srow, unit, N: tl.constexpr, MASKED: tl.constexpr):
    """What a unit meets for each lane: both halves of a vector's unit, and the scale's byte [lanes].

    A half is words int32 [lanes, 4], two bf16 each, from an int32 pointer, or fp32 [lanes, 8].
    """
    WIDTH: tl.constexpr = 4 if x.dtype.element_ty == tl.int32 else 8
    at = (x + unit * (2 * WIDTH))[:, None] + tl.arange(0, WIDTH)[None, :]
    if MASKED:
        inside = unit < N // 16
        x0 = tl.load(at, mask=inside[:, None], other=0)
        x1 = tl.load(at + WIDTH, mask=inside[:, None], other=0)
        scale = tl.load(srow + unit // 2, mask=inside, other=127)
    else:
        x0 = tl.load(at)
        x1 = tl.load(at + WIDTH)
        scale = tl.load(srow + unit // 2)
    return x0, x1, scale


@triton.jit
def _weights(words, WARPS: tl.constexpr, ASM: tl.constexpr):
    """Codes int32 [lanes, 4] as bf16 [WARPS, 8, 64], times 2^-120 if ASM."""
    if ASM:
        # Codes become sign-extended halves: four bits up, only bits of the code's own have to be kept.
        c0, c1, c2, c3 = tl.inline_asm_elementwise(
            """{ .reg .b32 t;
            prmt.b32 t, $4, 0, 0x9180; shl.b32 t, t, 4; and.b32 t, t, 0x87F087F0; mov.b32 {$0, $1}, t;
            prmt.b32 t, $4, 0, 0xB3A2; shl.b32 t, t, 4; and.b32 t, t, 0x87F087F0; mov.b32 {$2, $3}, t; }""",
            "=&h,=&h,=h,=h,r",
            [words],
            dtype=(tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16),
            is_pure=True,
            pack=1,
        )
        value = tl.join(tl.join(c0, c2), tl.join(c1, c3))
    else:
        code = words[:, :, None] >> (tl.arange(0, 4) * 8)[None, None, :]
        value = (e4m3_small(code & 255) * 256.0).to(tl.bfloat16)
    return _renamed(tl.reshape(value, [WARPS * 32, 16]), WARPS)


@triton.jit
def _renamed(tile, WARPS: tl.constexpr):
    """[lanes, 16] as [WARPS, 8, 64], with columns in the order in which instructions take them from lanes.

    The compiler takes eight in a row from a lane where bytes (the first scale) and joins have a part in the operands.
    With another order results are the same, but every tile goes through shared memory.
    """
    tile = tl.reshape(tile, [WARPS, 8, 4, 2, 8])
    return tl.reshape(tl.permute(tile, (0, 1, 3, 2, 4)), [WARPS, 8, 64])


@triton.jit
def _halves(x0, x1, WARPS: tl.constexpr):
    """Both halves of the elements as the right operand, [WARPS, 64, 8]."""
    return tl.permute(_renamed(tl.permute(tl.join(x0, x1), (0, 2, 1)), WARPS), (0, 2, 1))


@triton.jit
def _relative(scale, base, ASM: tl.constexpr):
    """Scales over the block's first, bf16, times 2^_LIFT if ASM."""
    exponent = scale.to(tl.int32) - base.to(tl.int32) + (127 + (_LIFT if ASM else 0))
    return (tl.minimum(tl.maximum(exponent, 1), 254) << 7).to(tl.int16).to(tl.bfloat16, bitcast=True)


@triton.jit
def _product(tile, x0, x1, factor, acc, WARPS: tl.constexpr, ASM: tl.constexpr):
    """acc plus a tile of weights times elements, which are multiplied by their factors bf16 [lanes] first."""
    factor = factor[:, None]
    if x0.dtype == tl.float32:
        wide = factor.to(tl.float32)
        a0, b0, c0 = three_parts(x0 * wide)
        a1, b1, c1 = three_parts(x1 * wide)
        acc = tl.dot(tile, _halves(c0, c1, WARPS), acc)
        acc = tl.dot(tile, _halves(b0, b1, WARPS), acc)
        return tl.dot(tile, _halves(a0, a1, WARPS), acc)
    else:
        halves = _halves(_scaled(x0, factor, WARPS, ASM), _scaled(x1, factor, WARPS, ASM), WARPS)
        return tl.dot(tile, halves, acc)


@triton.jit
def _scaled(words, factor, WARPS: tl.constexpr, ASM: tl.constexpr):
    """Pairs of bf16, int32 [lanes, 4], times powers of two bf16 [lanes, 1]; bf16 [lanes, 8]."""
    if ASM:
        low, high = tl.inline_asm_elementwise(
            """{ .reg .b32 f, t, z; mov.b32 z, 0x80008000; mov.b32 f, {$3, $3}; fma.rn.bf16x2 t, $2, f, z;
            mov.b32 {$0, $1}, t; }""",
            "=h,=h,r,h",
            [words, factor],
            dtype=(tl.bfloat16, tl.bfloat16),
            is_pure=True,
            pack=1,
        )
    else:
        low = (words.to(tl.int16).to(tl.bfloat16, bitcast=True).to(tl.float32) * factor).to(tl.bfloat16)
        high = ((words >> 16).to(tl.int16).to(tl.bfloat16, bitcast=True).to(tl.float32) * factor).to(tl.bfloat16)
    return tl.reshape(tl.join(low, high), [WARPS * 32, 8])
