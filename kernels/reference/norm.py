"""RMSNorm, f32 inside."""

from __future__ import annotations

import torch
from torch import Tensor


def norm(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """x * rsqrt(mean(x^2) + eps) * weight over the last axis, f32 inside, one rounding back to x's dtype.

    x [..., D] compute dtype; weight f32 [D]. The model's eps is really 1e-20: a larger one changes small rows.
    """
    wide = x.to(torch.float32)
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight).to(x.dtype)
