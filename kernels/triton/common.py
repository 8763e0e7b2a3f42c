"""Number formats inside kernels: decoding and rounding by integer arithmetic, which reads OCP codes on any hardware."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def e8m0_value(scale):
    """2^(byte-127) in fp32 of E8M0 bytes; byte 0 is the subnormal 2^-127. 255 (NaN) is refused at binding."""
    return tl.maximum(scale.to(tl.int32) << 23, 1 << 22).to(tl.float32, bitcast=True)


@triton.jit
def e4m3_small(code):
    """2^-8 times the values of E4M3 codes, integers 0 to 255, fp32: placed into fp16. 127 and 255 read as numbers."""
    byte = code.to(tl.int32)
    return (((byte & 0x80) << 8) | ((byte & 0x7F) << 7)).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def e4m3_value(code):
    """The fp32 values of E4M3 codes (any integers), NaN for 127 and 255."""
    byte = code.to(tl.int32) & 0xFF
    return tl.where((byte & 0x7F) == 0x7F, float("nan"), e4m3_small(byte) * 256.0)


@triton.jit
def e2m1_small(code):
    """2^-14 times the values of E2M1 codes, integers 0 to 15, fp32: placed into fp16."""
    nibble = code.to(tl.int32)
    return (((nibble & 0x8) << 12) | ((nibble & 0x7) << 9)).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def e2m1_value(code):
    """The fp32 values of E2M1 codes, integers 0 to 15."""
    return e2m1_small(code) * 16384.0


@triton.jit
def e4m3_bits(value):
    """The E4M3 codes, int32, of fp32 values within +-448: to the nearest, ties to even; signs of zeros and NaN stay."""
    bits = value.to(tl.int32, bitcast=True)
    magnitude = bits & 0x7FFFFFFF
    normal = ((magnitude + 0x7FFFF + ((magnitude >> 20) & 1)) >> 20) - (120 << 3)
    # Below 2^-6 the step is 2^-9: adding 2^23 to the count of steps rounds it to an integer, half to even.
    steps = tl.minimum(magnitude, 0x3C800000).to(tl.float32, bitcast=True) * 512.0 + 8388608.0
    code = tl.where(magnitude < 0x3C800000, steps.to(tl.int32, bitcast=True) - 0x4B000000, normal)
    return tl.where(magnitude > 0x7F800000, 0x7F, code) | ((bits >> 24) & 0x80)


@triton.jit
def round_e4m3(value):
    """fp32 values within +-448 rounded to what E4M3 holds, as fp32."""
    return e4m3_value(e4m3_bits(value))


@triton.jit
def round_e2m1(value):
    """fp32 values within +-6 rounded to 0, .5, 1, 1.5, 2, 3, 4 or 6: to the nearest, ties to even codes; signs stay."""
    bits = value.to(tl.int32, bitcast=True)
    magnitude = bits & 0x7FFFFFFF
    # Codes keep one bit behind the leading one. Below 1 the step is 0.5 instead, which adding 2^22 rounds to.
    normal = ((magnitude + 0x1FFFFF + ((magnitude >> 22) & 1)) & 0x7FC00000).to(tl.float32, bitcast=True)
    small = (tl.minimum(magnitude, 0x3F800000).to(tl.float32, bitcast=True) + 4194304.0) - 4194304.0
    rounded = tl.where(magnitude < 0x3F800000, small, normal).to(tl.int32, bitcast=True)
    rounded = tl.where(magnitude > 0x7F800000, magnitude, rounded)
    return (rounded | (bits & -0x80000000)).to(tl.float32, bitcast=True)


@triton.jit
def _covering_scale(largest, SHIFT: tl.constexpr, MANTISSA: tl.constexpr):
    """The smallest power of two s with s * format_max >= largest > 0, format_max = 2^SHIFT (1 + MANTISSA / 2^23)."""
    bits = largest.to(tl.int32, bitcast=True)
    exponent = (bits >> 23) - SHIFT + ((bits & 0x7FFFFF) > MANTISSA).to(tl.int32)
    return (tl.where(bits >= 0x7F800000, 254, exponent) << 23).to(tl.float32, bitcast=True)


@triton.jit
def fp8_scale(largest):
    """The power-of-two scale of a block by the rule of `fake_fp8`, from its largest magnitude; fp32."""
    return _covering_scale(tl.where(largest < 1e-4, 1e-4, largest), 8, 0x600000)


@triton.jit
def fp4_scale(largest):
    """The power-of-two scale of a block by the rule of `fake_fp4`, from its largest magnitude; fp32."""
    smallest = 7.052966104933725e-38  # 6 * 2^-126
    return _covering_scale(tl.where(largest < smallest, smallest, largest), 2, 0x400000)


@triton.jit
def within(value, LIMIT: tl.constexpr):
    """Clamp to +-LIMIT; NaN stays."""
    return tl.where(value > LIMIT, LIMIT, tl.where(value < -LIMIT, -LIMIT, value))


@triton.jit
def swiglu(gate, up, limit, LIMITED: tl.constexpr):
    """silu(gate) * up in fp32; if LIMITED, clamps gate from above and up on both sides first."""
    if LIMITED:
        gate = tl.minimum(gate, limit)
        up = tl.minimum(tl.maximum(up, -limit), limit)
    return gate / (1.0 + tl.exp(-gate)) * up


@triton.jit
def softplus(x):
    """log1p(exp(x)) with small relative error: log(1 + u) where u = exp(x) is large, a series in u / (2 + u) else."""
    u = tl.exp(tl.minimum(x, 20.0))
    z = u / (2.0 + u)
    z2 = z * z
    series = 1.0 + z2 * (1 / 3 + z2 * (1 / 5 + z2 * (1 / 7 + z2 * (1 / 9 + z2 * (1 / 11)))))
    return tl.where(x > 20.0, x, tl.where(u < 0.5, 2.0 * z * series, tl.log(1.0 + u)))
