"""Rotary position embedding on adjacent channel pairs of the last channels, and its frequency tables.

The released model's form: channels (2i, 2i+1) are one complex number, turned by position * frequency[i]. Layers without
a compressed branch use the window table; all others use the compress table (another base, with YaRN) for everything.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def window_frequencies(rope_dim: int, theta: float) -> Tensor:
    """Plain frequencies theta^(-2i/rope_dim), f32 [rope_dim / 2]."""
    return 1.0 / (theta ** (torch.arange(0, rope_dim, 2, dtype=torch.float32) / rope_dim))


def _correction_index(rotations: float, rope_dim: int, theta: float, original_seq_len: int) -> float:
    """The pair index whose frequency makes `rotations` turns within the original length."""
    return rope_dim * math.log(original_seq_len / (rotations * 2 * math.pi)) / (2 * math.log(theta))


def yarn_range(
    rope_dim: int, theta: float, original_seq_len: int, beta_fast: float, beta_slow: float
) -> tuple[int, int]:
    """The ramp's ends (low, high), as pair indices: below low a frequency stays, above high it is fully divided."""
    low = math.floor(_correction_index(beta_fast, rope_dim, theta, original_seq_len))
    high = math.ceil(_correction_index(beta_slow, rope_dim, theta, original_seq_len))
    return max(low, 0), min(high, rope_dim - 1)


def compress_frequencies(
    rope_dim: int, theta: float, factor: float, original_seq_len: int, beta_fast: float, beta_slow: float
) -> Tensor:
    """YaRN frequencies, f32 [rope_dim / 2]: a linear ramp from unchanged to divided by `factor`. No attention scale."""
    plain = window_frequencies(rope_dim, theta)
    low, high = yarn_range(rope_dim, theta, original_seq_len, beta_fast, beta_slow)
    index = torch.arange(rope_dim // 2, dtype=torch.float32)
    keep = 1 - ((index - low) / max(high - low, 1e-3)).clamp(0, 1)
    return plain / factor * (1 - keep) + plain * keep


def apply_rope(x: Tensor, positions: Tensor, frequencies: Tensor, rope_dim: int, *, undo: bool = False) -> Tensor:
    """Turn the last `rope_dim` channels of x by its positions (`undo`: back); f32 inside, x's dtype outside.

    x float [B, T, ..., C]; positions int64 [B, T]; frequencies f32 [rope_dim / 2]. Angles are f32 products.
    """
    angle = positions.to(torch.float32)[..., None] * frequencies
    angle = angle.reshape(*positions.shape, *([1] * (x.dim() - positions.dim() - 1)), frequencies.shape[0])
    cosine, sine = torch.cos(angle), torch.sin(angle)
    if undo:
        sine = -sine
    plain, turned = x[..., :-rope_dim], x[..., -rope_dim:].to(torch.float32)
    real, imaginary = turned[..., 0::2], turned[..., 1::2]
    rotated = torch.stack([real * cosine - imaginary * sine, real * sine + imaginary * cosine], dim=-1)
    return torch.cat([plain, rotated.flatten(-2).to(x.dtype)], dim=-1)
