"""Rows of an engram table in blocks of a GGUF type, decoded as they are asked for."""

from __future__ import annotations

import torch
from torch import Tensor

from dsv41c.diagnostics import Diagnostic, Span, UserFault
from dsv41c.runtime.weights.checkpoint import Checkpoint
from dsv41c.runtime.weights.gguf.decode import floats
from dsv41c.runtime.weights.gguf.tensor import is_rounded
from dsv41c.runtime.weights.shard import TensorHeader
from dsv41c.runtime.weights.values import HELP_DAMAGED


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
        self._refuse(ids, ~values.isfinite(), "DSV730", "holds what is not finite", HELP_DAMAGED)
        if not is_rounded(self._header):
            text, help_text = (
                "holds a float that is no bf16 value",
                "export the table as BF16, or as the release stores it",
            )
            self._refuse(ids, rounded != values, "DSV731", text, help_text)
        return rounded

    def _refuse(self, ids: Tensor, bad: Tensor, code: str, text: str, help_text: str) -> None:
        if bool(bad.any()):
            row = int(ids[bad.any(dim=-1).nonzero()[0, 0]])
            finding = Diagnostic(
                code, f"`{self._header.stored}` row {row} {text}", Span(self._header.file), help=help_text
            )
            raise UserFault(self._checkpoint.located([finding]))
