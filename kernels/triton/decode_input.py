"""What both sublayers begin with at decode: the normed input, and buffers for the mixing coefficients."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dsv41c.kernels.triton import boundary
from dsv41c.kernels.triton.launch import power

SLICE = 32  # channels of every stream that a program of the mixing sums takes


class NormedInput:
    """The normed input of a sublayer of one token a row, launched by the constructor.

    `normed` [B, 1, D], `planes8` and, where asked for, `planes4` of it.
    """

    def __init__(
        self, streams: Tensor, pre: Tensor, weight: Tensor, eps: float, *, planes8: bool = True, planes4: bool = False
    ) -> None:
        batch, _, count, dim = streams.shape
        self.normed = torch.empty(batch, 1, dim, dtype=streams.dtype, device=streams.device)
        self.planes8 = torch.empty(batch, dim, dtype=torch.float16, device=streams.device)
        self.planes4 = torch.empty_like(self.planes8) if planes4 else self.planes8
        boundary.normed_input[batch,](
            streams,
            pre,
            pre.stride(0),
            weight,
            self.normed,
            self.planes8,
            self.planes4,
            eps,
            D=dim,
            S=count,
            BLOCK=power(dim),
            PLANES8=planes8,
            PLANES4=planes4,
            num_warps=16 if dim > 2048 else 4,
        )


class Mixing:
    """The mixing coefficients of a sublayer: arguments of the launch that sums and of the one that finishes."""

    def __init__(self, streams: Tensor, fn: Tensor, scale: Tensor, base: Tensor, attrs: dict[str, Any]) -> None:
        batch, _, count, dim = streams.shape
        self.slices = -(-dim // SLICE)
        rows = power((2 + count) * count + 1)
        self.sums = torch.empty(batch, self.slices, rows, dtype=torch.float32, device=streams.device)
        self.pre = torch.empty(batch, 1, count, dtype=torch.float32, device=streams.device)
        self.post = torch.empty_like(self.pre)
        self.comb = torch.empty(batch, 1, count, count, dtype=torch.float32, device=streams.device)
        self.summing = (streams, fn, self.sums)
        self.finishing = (
            self.sums, scale, base, self.pre, self.post, self.comb, attrs["mix_norm_eps"], attrs["mix_eps"],
        )  # fmt: skip
        self.iterations = attrs["mix_iterations"]
