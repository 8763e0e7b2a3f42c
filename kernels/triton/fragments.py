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
    codes, scales, vectors, stride, count, first, M, N: tl.constexpr, BM: tl.constexpr, WARPS: tl.constexpr,
    UNROLL: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """`planes.rows8` for VECTORS vectors, plain rows of bf16 or f32 elements; fp32 [BM, VECTORS].

    `vectors` points to the first, the others are `stride` elements apart; past `count` the last one repeats. BM is 16
    or less, a power of two.
    """
    UNITS: tl.constexpr = N // 16
    STRIDE: tl.constexpr = 4 * WARPS  # units of a step
    STEPS: tl.constexpr = (UNITS + STRIDE - 1) // STRIDE
    MASKED: tl.constexpr = UNITS % (STRIDE * UNROLL) != 0
    HEIGHT: tl.constexpr = 16 if BM == 16 else 8
    lane = tl.arange(0, WARPS * 32)
    group = lane % 32 // 4
    unit = lane // 32 * 4 + lane % 4
    place = tl.minimum(first + group % BM, M - 1) * (N // 4)
    below = tl.minimum(first + group + 8, M - 1) * (N // 4)  # of 16 rows
    x = vectors + tl.minimum(group, count - 1) * stride
    srow = scales + first // 32 * ((N + 31) // 32)
    base = tl.load(srow + lane * 0)  # for each lane: only loads of tensors make the compiler take operands as below
    acc = tl.zeros([WARPS, HEIGHT, 8], tl.float32)
    ahead = _step(codes, place, below, x, srow, unit, N, BM, MASKED)
    for i in tl.static_range(1, UNROLL):
        ahead += _step(codes, place, below, x, srow, unit + i * STRIDE, N, BM, MASKED)
    for step in tl.range(0, STEPS, UNROLL, num_stages=1):
        loaded = ahead
        ahead = ()
        for i in tl.static_range(UNROLL):
            own = unit + (step + i) * STRIDE
            upper, lower, x0, x1, scale = loaded[i]
            tile = _weights(upper, WARPS, ASM)
            if BM == 16:
                both = tl.join(tile, _weights(lower, WARPS, ASM))
                tile = tl.reshape(tl.permute(both, (0, 3, 1, 2)), [WARPS, 16, 64])
            acc = _product(tile, x0, x1, _relative(scale, base, ASM), acc, WARPS, ASM)
            if STEPS > UNROLL:
                ahead += _step(codes, place, below, x, srow, own + UNROLL * STRIDE, N, BM, True)
            else:
                ahead = loaded
    total = tl.sum(acc, 0)
    if BM < 8:  # each row 8 / BM times
        total = tl.sum(tl.reshape(total, [8 // BM, BM, 8]), 0) * (BM / 8)
    return total * (_UNLIFT if ASM else 1.0) * e8m0_value(tl.load(srow))


@triton.jit
def _step(codes, place, below, x, srow, unit, N: tl.constexpr, BM: tl.constexpr, MASKED: tl.constexpr):
    """All that a step loads, as a tuple of one."""
    upper, lower = _words(codes, place, below, unit, N, BM, MASKED)
    x0, x1, scale = _elements(x, srow, unit, N, MASKED)
    return ((upper, lower, x0, x1, scale),)


@triton.jit
def _words(codes, place, below, unit, N: tl.constexpr, BM: tl.constexpr, MASKED: tl.constexpr):
    """A unit of a row, and of the eighth row from there, for each lane; int32 [lanes, 4]."""
    word = (unit * 4)[:, None] + tl.arange(0, 4)[None, :]
    if MASKED:
        inside = (unit < N // 16)[:, None]
        upper = tl.load(codes + place[:, None] + word, mask=inside, other=0, eviction_policy="evict_first")
        lower = upper
        if BM == 16:
            lower = tl.load(codes + below[:, None] + word, mask=inside, other=0, eviction_policy="evict_first")
    else:
        upper = tl.load(codes + place[:, None] + word, eviction_policy="evict_first")
        lower = upper
        if BM == 16:
            lower = tl.load(codes + below[:, None] + word, eviction_policy="evict_first")
    return upper, lower


@triton.jit
def _elements(x, srow, unit, N: tl.constexpr, MASKED: tl.constexpr):
    """What a unit meets for each lane: the two halves of the vector's [lanes, 8], and the scale's byte [lanes]."""
    at = (x + unit * 16)[:, None] + tl.arange(0, 8)[None, :]
    if MASKED:
        inside = unit < N // 16
        x0 = tl.load(at, mask=inside[:, None], other=0.0)
        x1 = tl.load(at + 8, mask=inside[:, None], other=0.0)
        scale = tl.load(srow + unit // 2, mask=inside, other=127)
    else:
        x0 = tl.load(at)
        x1 = tl.load(at + 8)
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
        return tl.dot(tile, _halves(_scaled(x0, factor, ASM), _scaled(x1, factor, ASM), WARPS), acc)


@triton.jit
def _scaled(x, factor, ASM: tl.constexpr):
    """x times powers of two, bf16."""
    if ASM:
        return tl.inline_asm_elementwise(
            "{ .reg .b32 z; mov.b32 z, 0x80008000; fma.rn.bf16x2 $0, $1, $2, z; }",
            "=r,r,r",
            [x, tl.broadcast_to(factor, x.shape)],
            dtype=tl.bfloat16,
            is_pure=True,
            pack=2,
        )
    else:
        return (x.to(tl.float32) * factor.to(tl.float32)).to(tl.bfloat16)
