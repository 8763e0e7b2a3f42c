"""What follows a projection whose rows a cache keeps: norm, rope, FP8 or FP4 rounding, and the store of one row.

Rows come as pairs of channels, even and odd: rope turns pairs, and a packed byte holds one.
"""

from __future__ import annotations

import triton
import triton.language as tl

from dsv41c.kernels.triton.common import e4m3_bits, e4m3_value, fp4_scale, fp8_scale, round_e2m1, round_e4m3, within

# How a cache keeps a row, for each value of `kv_cache`.
MODES = {"none": 0, "reference": 1, "packed": 2}


@triton.jit
def norm_pairs(even, odd, weight, pair, eps, C: tl.constexpr, KIND: tl.constexpr):
    """RMSNorm of a row of C channels in pairs, f32 inside, rounded to KIND; f32 pairs. Pairs beyond C/2 are 0."""
    scale = 1.0 / tl.sqrt_rn(tl.sum(even * even + odd * odd, 0) / C + eps)
    even = even * scale * tl.load(weight + 2 * pair, mask=pair < C // 2, other=0.0)
    odd = odd * scale * tl.load(weight + 2 * pair + 1, mask=pair < C // 2, other=0.0)
    return even.to(KIND).to(tl.float32), odd.to(KIND).to(tl.float32)


@triton.jit
def rotated(even, odd, position, frequency, pair, R: tl.constexpr, UNDO: tl.constexpr):
    """Rope at a position on the pairs of channels 0 to R/2 - 1, or its reverse; other pairs stay. f32 pairs."""
    turned = (pair >= 0) & (pair < R // 2)
    angle = position.to(tl.float32) * tl.load(frequency + pair, mask=turned, other=0.0)
    cosine = tl.cos(angle)
    sine = tl.sin(angle)
    if UNDO:
        sine = -sine
    return (
        tl.where(turned, even * cosine - odd * sine, even),
        tl.where(turned, even * sine + odd * cosine, odd),
    )


@triton.jit
def rope_pairs(even, odd, position, frequency, channel, C: tl.constexpr, R: tl.constexpr, KIND: tl.constexpr):
    """Rope on the pairs (channel, channel + 1), `channel` even, from C - R on; rounded to KIND; f32 pairs."""
    even, odd = rotated(even, odd, position, frequency, (channel - (C - R)) // 2, R, False)
    return even.to(KIND).to(tl.float32), odd.to(KIND).to(tl.float32)


@triton.jit
def fp8_pairs(even, odd, BLOCKS: tl.constexpr):
    """`fake_fp8` of pairs f32 [16 * BLOCKS], blocks of 32 channels; f32 pairs."""
    even = tl.reshape(even, [BLOCKS, 16])
    odd = tl.reshape(odd, [BLOCKS, 16])
    # As integers, magnitudes keep their order and NaN is the largest.
    bits = tl.maximum(even.to(tl.int32, bitcast=True) & 0x7FFFFFFF, odd.to(tl.int32, bitcast=True) & 0x7FFFFFFF)
    scale = fp8_scale(tl.max(bits, 1).to(tl.float32, bitcast=True))[:, None]
    return (
        tl.reshape(round_e4m3(within(even / scale, 448.0)) * scale, [BLOCKS * 16]),
        tl.reshape(round_e4m3(within(odd / scale, 448.0)) * scale, [BLOCKS * 16]),
    )


@triton.jit
def window_pairs(
    even, odd, weight, position, frequency, pair, eps,
    C: tl.constexpr, CB: tl.constexpr, R: tl.constexpr, FAKE: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    """A window row of its projection: norm, rope, and `fake_fp8` if FAKE, each rounded to KIND; f32 pairs [CB/2].

    CB: the power of two from C on; pairs beyond C/2 are 0.
    """
    even, odd = norm_pairs(even, odd, weight, pair, eps, C, KIND)
    even, odd = rope_pairs(even, odd, position, frequency, 2 * pair, C, R, KIND)
    if FAKE:
        even, odd = fp8_pairs(even, odd, CB // 32)
    return even, odd


@triton.jit
def fp4_pairs(even, odd, E4M3: tl.constexpr):
    """E2M1 values f32 of pairs f32 [blocks, n], and the scales f32 [blocks, 1] and their bytes int32 [blocks, 1].

    Scales are E4M3 by the rule of `fake_fp4_e4m3`, or powers of two by that of `fake_fp4`. The byte of a block that
    holds NaN means NaN.
    """
    bits = tl.maximum(even.to(tl.int32, bitcast=True) & 0x7FFFFFFF, odd.to(tl.int32, bitcast=True) & 0x7FFFFFFF)
    most = tl.max(bits, 1)[:, None]  # as integers, NaN is the largest magnitude
    largest = most.to(tl.float32, bitcast=True)
    if E4M3:
        wanted = tl.div_rn(tl.where(largest < 0.01171875, 0.01171875, largest), 6.0)  # 6 * 2^-9
        byte = e4m3_bits(tl.where(wanted > 448.0, 448.0, wanted))
        scale = e4m3_value(byte)
    else:
        scale = fp4_scale(largest)
        byte = tl.where(most > 0x7F800000, 255, scale.to(tl.int32, bitcast=True) >> 23)
    even = round_e2m1(within(tl.div_rn(even, scale), 6.0))
    odd = round_e2m1(within(tl.div_rn(odd, scale), 6.0))
    return even, odd, scale, byte


@triton.jit
def _code(value):
    """The E2M1 codes int32 of E2M1 values: twice the value up to 2, then 2 + value, then 7; the sign in bit 3."""
    magnitude = tl.abs(value)
    code = tl.where(magnitude <= 2.0, magnitude * 2.0, tl.where(magnitude <= 4.0, magnitude + 2.0, 7.0)).to(tl.int32)
    return code | ((value.to(tl.int32, bitcast=True) >> 28) & 8)


@triton.jit
def store_row(row, even, odd, C: tl.constexpr, BLOCK: tl.constexpr, E4M3: tl.constexpr, MODE: tl.constexpr):
    """Store a row of C channels, f32 pairs [C/2], at pointer `row` as its cache keeps it (`MODES`), blocks of BLOCK."""
    pair = tl.arange(0, C // 2)
    if MODE == 0:
        tl.store(row + 2 * pair, even.to(row.dtype.element_ty))
        tl.store(row + 2 * pair + 1, odd.to(row.dtype.element_ty))
    else:
        even = tl.reshape(even, [C // BLOCK, BLOCK // 2])
        odd = tl.reshape(odd, [C // BLOCK, BLOCK // 2])
        even, odd, scale, byte = fp4_pairs(even, odd, E4M3)
        block = tl.arange(0, C // BLOCK)[:, None]
        pair = block * (BLOCK // 2) + tl.arange(0, BLOCK // 2)[None, :]
        if MODE == 1:
            tl.store(row + 2 * pair, (even * scale).to(row.dtype.element_ty))
            tl.store(row + 2 * pair + 1, (odd * scale).to(row.dtype.element_ty))
        else:
            tl.store(row + pair, (_code(even) | (_code(odd) << 4)).to(tl.uint8))
            tl.store(row + C // 2 + block, byte.to(tl.uint8))


@triton.jit
def row_place(pool, slot, number, capacity, spare, WIDTH: tl.constexpr):
    """The pointer of row `number` of a slot in pool [slots, capacity, WIDTH]; past the capacity in the spare slot."""
    slot = tl.where(number < capacity, slot, spare)
    return pool + (slot * capacity + tl.minimum(number, capacity - 1)) * WIDTH
