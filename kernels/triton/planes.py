"""Rows of quantised matrices times vectors, for a handful of tokens: what every decode kernel here is made of.

Weights are read once, as stored, 16 bytes a load: a unit of 16 E4M3 codes, or a group of 32 E2M1 codes, which has one
scale. Several vectors for E4M3 rows are plain rows, which `fragments` takes. Any other is stored by its producer as
*planes*: fp16 pairs, the pairs that meet one load's codes a plane apart,
so that the lanes of a warp read each plane without gaps.

- `planes8`, for E4M3 rows of N columns: pair i of unit u at [i, u], i in 0..7, u in 0..N/16-1.
- `planes4`, for E2M1 rows: pair p of group g at [p, g], p in 0..15, g in 0..N/32-1. The pairs of a word of eight codes
  are the columns (0,2) (4,6) (1,3) (5,7): what masks and shifts leave side by side.

Products are made in fp16 pairs, four a chain, and added up in fp32 (`ASM`, sm_89 and later); everywhere else in fp32
throughout. Codes are decoded by integer arithmetic or by instructions that know the OCP formats, so that hardware
with another FP8 (gfx942) reads them right. x is scaled by a power of two first, which keeps chains in range: for E4M3
2^-4, as codes reach 448; for E2M1 a factor of its own, as codes are small and x may be.
"""

from __future__ import annotations

import triton
import triton.language as tl

from dsv41c.kernels.triton.common import e2m1_small, e4m3_small, e8m0_value
from dsv41c.kernels.triton.fragments import VECTORS, rows8_several

PLANE8_SCALE: tl.constexpr = tl.constexpr(0.0625)
PLANE8_UNSCALE: tl.constexpr = tl.constexpr(16.0)
PLANE4_HIDDEN: tl.constexpr = tl.constexpr(16.0)  # what inputs of w2 are scaled by, which routing weights make small
_FP16_MAX: tl.constexpr = tl.constexpr(65504.0)


@triton.jit
def store_planes8(planes, column, value, mask, N: tl.constexpr):
    """Store fp32 values at columns of a `planes8` vector: `planes` fp16 pointer to its N elements."""
    place = ((column % 16) // 2 * (N // 16) + column // 16) * 2 + column % 2
    scaled = tl.minimum(tl.maximum(value * PLANE8_SCALE, -_FP16_MAX), _FP16_MAX)
    tl.store(planes + place, scaled.to(tl.float16), mask=mask)


@triton.jit
def store_vector8(target, column, value, mask, N: tl.constexpr):
    """Store fp32 values at columns of a vector for `rows8`: a `planes8` where the target is fp16, else a plain row."""
    kind: tl.constexpr = target.dtype.element_ty
    if kind == tl.float16:
        store_planes8(target, column, value, mask, N)
    else:
        tl.store(target + column, value.to(kind), mask=mask)


@triton.jit
def store_planes4(planes, column, value, mask, N: tl.constexpr):
    """Store fp32 values, already scaled by the caller, at columns of a `planes4` vector of N elements."""
    nibble = column % 8
    pair = (column % 32) // 8 * 4 + nibble % 2 * 2 + nibble // 4
    place = (pair * (N // 32) + column // 32) * 2 + nibble // 2 % 2
    scaled = tl.minimum(tl.maximum(value, -_FP16_MAX), _FP16_MAX)
    tl.store(planes + place, scaled.to(tl.float16), mask=mask)


@triton.jit
def store_all_planes8(planes, value, N: tl.constexpr, BLOCK: tl.constexpr):
    """Store a whole `planes8` vector: fp32 [BLOCK], BLOCK a power of two from N on. Plane by plane, without gaps."""
    UNITS: tl.constexpr = BLOCK // 16
    scaled = tl.minimum(tl.maximum(value * PLANE8_SCALE, -_FP16_MAX), _FP16_MAX).to(tl.float16)
    tile = tl.permute(tl.reshape(scaled, [UNITS, 8, 2]), (1, 0, 2))
    unit = tl.arange(0, UNITS)[None, :, None]
    place = (tl.arange(0, 8)[:, None, None] * (N // 16) + unit) * 2 + tl.arange(0, 2)[None, None, :]
    tl.store(planes + place, tile, mask=unit < N // 16)


@triton.jit
def store_all_planes4(planes, value, N: tl.constexpr, BLOCK: tl.constexpr):
    """Store a whole `planes4` vector, as `store_all_planes8`; values are scaled by the caller."""
    GROUPS: tl.constexpr = BLOCK // 32
    scaled = tl.minimum(tl.maximum(value, -_FP16_MAX), _FP16_MAX).to(tl.float16)
    # A column is group, word, and the three bits of the nibble: the pair is word, last bit, first bit.
    tile = tl.permute(tl.reshape(scaled, [GROUPS, 4, 2, 2, 2]), (1, 4, 2, 0, 3))
    tile = tl.reshape(tile, [16, GROUPS, 2])
    group = tl.arange(0, GROUPS)[None, :, None]
    place = (tl.arange(0, 16)[:, None, None] * (N // 32) + group) * 2 + tl.arange(0, 2)[None, None, :]
    tl.store(planes + place, tile, mask=group < N // 32)


@triton.jit
def quad(words, A: tl.constexpr, B: tl.constexpr):
    """[A, B, 4] as four [A, 1, B]."""
    low, high = tl.split(tl.reshape(words, [A, B, 2, 2]))
    w0, w2 = tl.split(low)
    w1, w3 = tl.split(high)
    return (
        tl.reshape(w0, [A, 1, B]),
        tl.reshape(w1, [A, 1, B]),
        tl.reshape(w2, [A, 1, B]),
        tl.reshape(w3, [A, 1, B]),
    )


@triton.jit
def _products(first, second, planes, mask, MASKED: tl.constexpr):
    """Portable: the sums of pairs of weights fp32 [A, B, 4, P] times pairs of x, int32 at `planes` [1, T, B, 4, P]."""
    x = tl.load(planes, mask=mask, other=0) if MASKED else tl.load(planes)
    low = x.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
    high = (x >> 16).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
    return tl.sum(tl.sum(first[:, None, :, :, :] * low + second[:, None, :, :, :] * high, 4), 3)


@triton.jit
def decode8(word):
    """Two fp16 pairs of four E4M3 codes. Assembly only."""
    return tl.inline_asm_elementwise(
        "{ .reg .b16 l, h; mov.b32 {l, h}, $2; cvt.rn.f16x2.e4m3x2 $0, l; cvt.rn.f16x2.e4m3x2 $1, h; }",
        "=r,=r,r",
        [word],
        dtype=(tl.int32, tl.int32),
        is_pure=True,
        pack=1,
    )


@triton.jit
def unit8(ASM: tl.constexpr):
    """What sums of `dot8` with a scaled x have to be multiplied by."""
    if ASM:
        return PLANE8_UNSCALE
    else:
        return PLANE8_UNSCALE * 256.0


@triton.jit
def chain8(w0, w1, w2, w3, w4, w5, w6, w7, x0, x1, x2, x3, x4, x5, x6, x7):
    """The sum of 16 products, fp32: eight fp16 pairs of weights times eight of x, in two chains. Assembly only."""
    return tl.inline_asm_elementwise(
        """{ .reg .b32 d, e; .reg .b16 l, h; .reg .f32 f, g;
        mul.rn.f16x2 d, $1, $9; fma.rn.f16x2 d, $2, $10, d; fma.rn.f16x2 d, $3, $11, d; fma.rn.f16x2 d, $4, $12, d;
        mul.rn.f16x2 e, $5, $13; fma.rn.f16x2 e, $6, $14, e; fma.rn.f16x2 e, $7, $15, e; fma.rn.f16x2 e, $8, $16, e;
        add.rn.f16x2 d, d, e; mov.b32 {l, h}, d; cvt.f32.f16 f, l; cvt.f32.f16 g, h; add.f32 $0, f, g; }""",
        "=f,r,r,r,r,r,r,r,r,r,r,r,r,r,r,r,r",
        [w0, w1, w2, w3, w4, w5, w6, w7, x0, x1, x2, x3, x4, x5, x6, x7],
        dtype=tl.float32,
        is_pure=True,
        pack=1,
    )


@triton.jit
def decode4(word):
    """Four fp16 pairs of eight E2M1 codes, in plane order, 2^-6 times the values. Assembly only."""
    # A nibble s eem becomes the E4M3 byte s00eem00, which is the weight times 2^-6.
    return tl.inline_asm_elementwise(
        """{ .reg .b32 t, u, o; .reg .b16 l, h;
        shr.b32 t, $4, 2; and.b32 t, t, 0x1C1C1C1C; lop3.b32 o, $4, 0x80808080, t, 0xEA;
        shl.b32 u, $4, 4; shl.b32 t, $4, 2; and.b32 t, t, 0x1C1C1C1C; lop3.b32 u, u, 0x80808080, t, 0xEA;
        mov.b32 {l, h}, u; cvt.rn.f16x2.e4m3x2 $0, l; cvt.rn.f16x2.e4m3x2 $1, h;
        mov.b32 {l, h}, o; cvt.rn.f16x2.e4m3x2 $2, l; cvt.rn.f16x2.e4m3x2 $3, h; }""",
        "=r,=r,=r,=r,r",
        [word],
        dtype=(tl.int32, tl.int32, tl.int32, tl.int32),
        is_pure=True,
        pack=1,
    )


@triton.jit
def unit4(ASM: tl.constexpr):
    """What sums of `dot4` have to be multiplied by."""
    if ASM:
        return 64.0
    else:
        return 16384.0


@triton.jit
def _load8(planes, stride: tl.constexpr, mask, MASKED: tl.constexpr):
    """Eight planes from a pointer on."""
    if MASKED:
        x0 = tl.load(planes, mask=mask, other=0)
        x1 = tl.load(planes + stride, mask=mask, other=0)
        x2 = tl.load(planes + 2 * stride, mask=mask, other=0)
        x3 = tl.load(planes + 3 * stride, mask=mask, other=0)
        x4 = tl.load(planes + 4 * stride, mask=mask, other=0)
        x5 = tl.load(planes + 5 * stride, mask=mask, other=0)
        x6 = tl.load(planes + 6 * stride, mask=mask, other=0)
        x7 = tl.load(planes + 7 * stride, mask=mask, other=0)
    else:
        x0 = tl.load(planes)
        x1 = tl.load(planes + stride)
        x2 = tl.load(planes + 2 * stride)
        x3 = tl.load(planes + 3 * stride)
        x4 = tl.load(planes + 4 * stride)
        x5 = tl.load(planes + 5 * stride)
        x6 = tl.load(planes + 6 * stride)
        x7 = tl.load(planes + 7 * stride)
    return x0, x1, x2, x3, x4, x5, x6, x7


@triton.jit
def dot4(
    words, planes, stride: tl.constexpr, mask, A: tl.constexpr, B: tl.constexpr, MASKED: tl.constexpr,
    ASM: tl.constexpr,
):  # fmt: skip
    """The sums of 32 products of each group: words int32 [A, B, 4], planes pointers [1, T, B]; fp32 [A, T, B]."""
    if ASM:
        w0, w1, w2, w3 = quad(words, A, B)
        a0, a1, a2, a3 = decode4(w0)
        a4, a5, a6, a7 = decode4(w1)
        x0, x1, x2, x3, x4, x5, x6, x7 = _load8(planes, stride, mask, MASKED)
        total = chain8(a0, a1, a2, a3, a4, a5, a6, a7, x0, x1, x2, x3, x4, x5, x6, x7)
        a0, a1, a2, a3 = decode4(w2)
        a4, a5, a6, a7 = decode4(w3)
        x0, x1, x2, x3, x4, x5, x6, x7 = _load8(planes + 8 * stride, stride, mask, MASKED)
        total += chain8(a0, a1, a2, a3, a4, a5, a6, a7, x0, x1, x2, x3, x4, x5, x6, x7)
    else:
        pair = tl.arange(0, 4)
        place = tl.arange(0, 4)[:, None] * 4 + pair[None, :]
        code = words[:, :, :, None] >> (pair % 2 * 16 + pair // 2 * 4)[None, None, None, :]
        at = planes[:, :, :, None, None] + (place * stride)[None, None, None, :, :]
        first, second = e2m1_small(code & 15), e2m1_small((code >> 8) & 15)
        total = _products(first, second, at, mask[:, :, :, None, None], MASKED)
    return total


@triton.jit
def dot8(
    words, planes, stride: tl.constexpr, mask, A: tl.constexpr, B: tl.constexpr, MASKED: tl.constexpr,
    ASM: tl.constexpr,
):  # fmt: skip
    """The sums of 16 products of each unit: words int32 [A, B, 4], planes pointers [1, T, B]; fp32 [A, T, B]."""
    if ASM:
        w0, w1, w2, w3 = quad(words, A, B)
        a0, a1 = decode8(w0)
        a2, a3 = decode8(w1)
        a4, a5 = decode8(w2)
        a6, a7 = decode8(w3)
        x0, x1, x2, x3, x4, x5, x6, x7 = _load8(planes, stride, mask, MASKED)
        total = chain8(a0, a1, a2, a3, a4, a5, a6, a7, x0, x1, x2, x3, x4, x5, x6, x7)
    else:
        pair = tl.arange(0, 2)
        place = tl.arange(0, 4)[:, None] * 2 + pair[None, :]
        code = words[:, :, :, None] >> (pair * 16)[None, None, None, :]
        at = planes[:, :, :, None, None] + (place * stride)[None, None, None, :, :]
        first, second = e4m3_small(code & 255), e4m3_small((code >> 8) & 255)
        total = _products(first, second, at, mask[:, :, :, None, None], MASKED)
    return total


@triton.jit
def rows8(
    codes, scales, vectors, stride, count, first, M, N: tl.constexpr, BM: tl.constexpr, T: tl.constexpr,
    U: tl.constexpr, UNROLL: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """Rows first to first+BM-1 of an E4M3 matrix with scales per 32x32, times T vectors; fp32 [BM, T].

    `codes` int32 pointer [M, N/4]; `scales` uint8 pointer [M/32, N/32]. T is 1 or 8. One vector is `planes8`, an int32
    pointer; rows past M repeat the last one. Eight are plain rows `stride` elements apart, of which there are `count`;
    the last of them repeats, and BM divides M. BM divides 32; `first` is a multiple of BM.
    """
    if T > 1:
        tl.static_assert(T == VECTORS)
        return rows8_several(codes, scales, vectors, stride, count, first, N, BM, U // 4, UNROLL, ASM)
    else:
        return _rows8_one(codes, scales, vectors, first, M, N, BM, U, UNROLL, ASM)


@triton.jit
def _rows8_one(
    codes, scales, planes, first, M, N: tl.constexpr, BM: tl.constexpr, U: tl.constexpr, UNROLL: tl.constexpr,
    ASM: tl.constexpr,
):  # fmt: skip
    UNITS: tl.constexpr = N // 16
    MASKED: tl.constexpr = UNITS % U != 0
    row = tl.minimum(first + tl.arange(0, BM), M - 1)
    srow = scales + first // 32 * ((N + 31) // 32)
    acc = tl.zeros([BM, 1, U], tl.float32)
    for k in tl.range(0, (UNITS + U - 1) // U, loop_unroll_factor=UNROLL):
        unit = k * U + tl.arange(0, U)
        words, scale = _units(codes, srow, row, unit, N, MASKED)
        at = planes + unit[None, None, :]
        acc += dot8(words, at, UNITS, (unit < UNITS)[None, None, :], BM, U, MASKED, ASM) * scale[None, None, :]
    return tl.sum(acc, 2) * unit8(ASM)


@triton.jit
def _units(codes, srow, row, unit, N: tl.constexpr, MASKED: tl.constexpr):
    """Units of rows, int32 [BM, U, 4], and their scales, fp32 [U]."""
    place = row[:, None, None] * (N // 4) + (unit[:, None] * 4 + tl.arange(0, 4)[None, :])[None, :, :]
    if MASKED:
        inside = unit < N // 16
        words = tl.load(codes + place, mask=inside[None, :, None], other=0, eviction_policy="evict_first")
        scale = tl.load(srow + unit // 2, mask=inside, other=0)
    else:
        words = tl.load(codes + place, eviction_policy="evict_first")
        scale = tl.load(srow + unit // 2)
    return words, e8m0_value(scale)


@triton.jit
def rows16(
    weight, x, first, M, N: tl.constexpr, stride, BM: tl.constexpr, T: tl.constexpr, K: tl.constexpr,
    UNROLL: tl.constexpr,
):  # fmt: skip
    """Rows first to first+BM-1 of a float matrix [M, N] times T float rows x, `stride` elements apart; fp32 [BM, T]."""
    MASKED: tl.constexpr = N % K != 0
    row = tl.minimum(first + tl.arange(0, BM), M - 1).to(tl.int64)
    token = tl.arange(0, T)
    acc = tl.zeros([BM, T, K], tl.float32)
    for k in tl.range(0, (N + K - 1) // K, loop_unroll_factor=UNROLL):
        column = k * K + tl.arange(0, K)
        if MASKED:
            inside = (column < N)[None, :]
            w = tl.load(
                weight + row[:, None] * N + column[None, :], mask=inside, other=0.0, eviction_policy="evict_first"
            )
            v = tl.load(x + token[:, None] * stride + column[None, :], mask=inside, other=0.0)
        else:
            w = tl.load(weight + row[:, None] * N + column[None, :], eviction_policy="evict_first")
            v = tl.load(x + token[:, None] * stride + column[None, :])
        acc += w.to(tl.float32)[:, None, :] * v.to(tl.float32)[None, :, :]
    return tl.sum(acc, 2)
