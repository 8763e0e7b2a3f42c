"""What both sublayers begin with at decode: the normed input, and the sums of the mixing coefficients."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dsv41c.kernels.triton import boundary
from dsv41c.kernels.triton.launch import chained, power

_SLICE = 64  # channels of every stream that a program of the mixing sums takes


class SublayerInput:
    """The input of a sublayer of one token a row, launched by the constructor: `normed` [B, 1, D] and its planes.

    With `mix`, the weights fn, scale and base and the sublayer's attributes, also the sums of its mixing coefficients:
    a later launch takes `finishing` and fills `pre`, `post` and `comb`.
    """

    def __init__(
        self,
        streams: Tensor,
        pre: Tensor,
        weight: Tensor,
        eps: float,
        *,
        mix: tuple[Tensor, Tensor, Tensor, dict[str, Any]] | None = None,
        planes4: bool = False,
    ) -> None:
        batch, _, count, dim = streams.shape
        device = streams.device
        self.normed = torch.empty(batch, 1, dim, dtype=streams.dtype, device=device)
        self.planes8 = torch.empty(batch, dim, dtype=torch.float16, device=device)
        self.planes4 = torch.empty_like(self.planes8) if planes4 else self.planes8
        self.slices = -(-dim // _SLICE) if mix is not None else 0
        rows = power((2 + count) * count + 1)
        sums = torch.empty(batch, self.slices, rows, dtype=torch.float32, device=device)
        if mix is not None:
            _, scale, base, attrs = mix
            self.pre = torch.empty(batch, 1, count, dtype=torch.float32, device=device)
            self.post = torch.empty_like(self.pre)
            self.comb = torch.empty(batch, 1, count, count, dtype=torch.float32, device=device)
            filled = (self.pre, self.post, self.comb)
            self.finishing = (sums, scale, base, *filled, attrs["mix_norm_eps"], attrs["mix_eps"])
            self.iterations = attrs["mix_iterations"]
        boundary.normed_input[1 + self.slices, batch](
            streams,
            pre,
            pre.stride(0),
            weight,
            mix[0] if mix is not None else weight,
            self.normed,
            self.planes8,
            self.planes4,
            sums,
            eps,
            D=dim,
            S=count,
            SLICE=_SLICE,
            SLICES=self.slices,
            BLOCK=power(dim),
            PLANES8=mix is not None,
            PLANES4=planes4,
            **chained(device),
            num_warps=8 if dim > 2048 else 4,
        )
