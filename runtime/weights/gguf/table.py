"""Rows of an engram table in blocks of a GGUF type, decoded as they are asked for."""

from __future__ import annotations

import torch
from torch import Tensor

from dsv41c.runtime.weights.checkpoint import Checkpoint
from dsv41c.runtime.weights.gguf.decode import floats
from dsv41c.runtime.weights.gguf.tensor import is_rounded
from dsv41c.runtime.weights.row_form import refuse_rows
from dsv41c.runtime.weights.shard import TensorHeader


class BlockForm:
    """What the blocks of a row mean: a `RowForm`."""

    def __init__(self, header: TensorHeader, checkpoint: Checkpoint) -> None:
        self._header = header
        self._checkpoint = checkpoint

    def values(self, ids: Tensor, raw: Tensor) -> Tensor:
        """The rows of blocks uint8 [n, bytes], decoded: f32 [n, head_dim], every value a bf16 one.

        What is a quantisation's approximation is rounded to bf16. Raises UserFault where a row holds what is not finite
        (DSV730), or a float that is no bf16 value (DSV731); `ids` [n] say which.
        """
        values = floats(raw, self._header.dtype)
        rounded = values.to(torch.bfloat16).to(torch.float32)
        told = (self._header, self._checkpoint, ids)
        refuse_rows(*told, ~values.isfinite(), "DSV730", "holds what is not finite")
        if not is_rounded(self._header):
            refuse_rows(*told, rounded != values, "DSV731", "holds a float that is no bf16 value")
        return rounded
