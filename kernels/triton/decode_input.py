"""What both sublayers begin with at decode: the normed input, and the sums of the mixing coefficients."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dsv41c.kernels.triton import boundary
from dsv41c.kernels.triton.launch import power

_SLICE = 64  # channels of every stream that a program of the mixing sums takes


class SublayerInput:
    """The input of a sublayer of one token a row, launched by the constructor: `normed` [B, 1, D] and its planes.

    `vectors8` is what E4M3 matrices take: planes8 of one session, the normed rows themselves of several.

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
        planes = torch.empty(1 + planes4, batch, dim, dtype=torch.float16, device=device)
        self.vectors8 = planes[0].view(torch.int32) if batch == 1 else self.normed
        self.planes4 = planes[-1]
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
            planes[0],
            self.planes4,
            sums,
            eps,
            D=dim,
            S=count,
            SLICE=_SLICE,
            SLICES=self.slices,
            BLOCK=power(dim),
            PLANES8=mix is not None and batch == 1,
            PLANES4=planes4,
            num_warps=8 if dim > 2048 else 4,
        )
