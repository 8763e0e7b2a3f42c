"""Fake quantisation: round values to what FP8 or FP4 with block scales can hold, and keep them as floats.

The three rules of the released model, bit for bit. They are part of what the model computes (its caches hold such
values), not an approximation of ours. Blocks run along the last axis, whose size must be a multiple of the block.
"""

from __future__ import annotations

import torch
from torch import Tensor

E4M3_MAX = 448.0
FP8_FLOOR = 1e-4  # what the largest magnitude of a block counts as at least
FP4_MAX = 6.0
_SMALLEST_E4M3 = 2.0**-9  # the smallest subnormal


def power_of_two_scale(largest: Tensor, format_max: float, floor: float) -> Tensor:
    """The smallest power of two s with s * format_max >= max(largest, floor); f32, the shape of `largest`.

    Works on the exponent bits of the f32 quotient: the exponent, plus one when the mantissa is not zero. A block that
    holds NaN or infinity gets the largest power of two, so that these stay what they are.
    """
    bits = (largest.to(torch.float32).clamp(min=floor) / format_max).view(torch.int32)
    exponent = (bits >> 23) + ((bits & 0x7FFFFF) != 0).to(torch.int32)
    return (exponent.clamp(max=254) << 23).view(torch.float32)


def round_e2m1(values: Tensor) -> Tensor:
    """Round values within +-6 to 0, .5, 1, 1.5, 2, 3, 4 or 6: to the nearest, ties to the even code. Signs stay.

    The steps are 0.5 below 2, 1 below 4, 2 above, and rounding half to even on each step's grid is ties to even code.
    """
    magnitude = values.abs()
    above_two = torch.where(magnitude < 4, magnitude.round(), (magnitude / 2).round() * 2)
    rounded = torch.where(magnitude < 2, (magnitude * 2).round() / 2, above_two)
    return torch.copysign(rounded, values)


def fake_fp8(x: Tensor, block: int = 32) -> Tensor:
    """Round to E4M3 with a power-of-two scale per block; window KV, and inputs of FP8 and FP4 linears.

    x float [..., n * block]; returns its shape and dtype. The largest magnitude counts as at least 1e-4.
    """
    blocks = torch.unflatten(x.to(torch.float32), -1, (-1, block))
    scale = power_of_two_scale(blocks.abs().amax(-1, keepdim=True), E4M3_MAX, FP8_FLOOR)
    codes = (blocks / scale).clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)
    return (codes.to(torch.float32) * scale).flatten(-2).to(x.dtype)


def fp4_blocks(x: Tensor, block: int = 32) -> tuple[Tensor, Tensor]:
    """E2M1 values f32 [..., n, block] and their power-of-two scales f32 [..., n, 1] for x float [..., n * block]."""
    blocks = torch.unflatten(x.to(torch.float32), -1, (-1, block))
    scale = power_of_two_scale(blocks.abs().amax(-1, keepdim=True), FP4_MAX, FP4_MAX * 2.0**-126)
    return round_e2m1((blocks / scale).clamp(-FP4_MAX, FP4_MAX)), scale


def fp4_e4m3_blocks(x: Tensor, block: int = 16) -> tuple[Tensor, Tensor]:
    """E2M1 values f32 [..., n, block] and their scales float8_e4m3fn [..., n, 1] for x float [..., n * block]."""
    blocks = torch.unflatten(x.to(torch.float32), -1, (-1, block))
    wanted = blocks.abs().amax(-1, keepdim=True).clamp(min=FP4_MAX * _SMALLEST_E4M3) / FP4_MAX
    scale = wanted.clamp(max=E4M3_MAX).to(torch.float8_e4m3fn)
    return round_e2m1((blocks / scale.to(torch.float32)).clamp(-FP4_MAX, FP4_MAX)), scale


def fake_fp4(x: Tensor, block: int = 32) -> Tensor:
    """Round to E2M1 with a power-of-two scale per block; index keys and index queries.

    x float [..., n * block]; returns its shape and dtype. The largest magnitude counts as at least 6 * 2^-126.
    """
    values, scale = fp4_blocks(x, block)
    return (values * scale).flatten(-2).to(x.dtype)


def fake_fp4_e4m3(x: Tensor, block: int = 16) -> Tensor:
    """Round to E2M1 with an E4M3 scale per block; compressed KV. Scales saturate at 448.

    x float [..., n * block]; returns its shape and dtype. The largest magnitude counts as at least 6 * 2^-9.
    """
    values, scale = fp4_e4m3_blocks(x, block)
    return (values * scale.to(torch.float32)).flatten(-2).to(x.dtype)
