"""A linear layer, and the rounding of its input that the release does before FP8 and FP4 weights."""

from __future__ import annotations

import torch
from torch import Tensor

from dsv41c.kernels.reference.encodings import Packed, dense
from dsv41c.kernels.reference.fake_quant import fake_fp8


def linear(x: Tensor, weight: Tensor | Packed, activation_quant: str = "none", *, part: bool = False) -> Tensor:
    """x @ weight^T in the weight's dtype: x [..., N], weight [M, N] f32 or bf16, result [..., M].

    A packed weight [M, N] is decoded to x's dtype. With `part` the result is f32, not rounded: part of a sum.

    `activation_quant="fp8"` first rounds x to E4M3 in blocks of 32 along N, as the release does for weights that it
    stores in FP8 or FP4. It goes by the weight's role, whatever a file stores: callers pass it for those roles only.
    """
    if activation_quant == "fp8":
        x = fake_fp8(x)
    if part:
        return torch.nn.functional.linear(x.to(torch.float32), dense(weight, torch.float32))
    if isinstance(weight, Packed):
        weight = dense(weight, x.dtype)
    return torch.nn.functional.linear(x.to(weight.dtype), weight)
