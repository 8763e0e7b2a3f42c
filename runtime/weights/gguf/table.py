"""An engram table in blocks of a GGUF type, which stays in its file: rows are decoded as they are asked for."""

from __future__ import annotations

import torch
from torch import Tensor

from dsv41c.diagnostics import Diagnostic, Span, UserFault
from dsv41c.runtime.weights.gguf.decode import floats
from dsv41c.runtime.weights.gguf.tensor import is_rounded
from dsv41c.runtime.weights.mapped import MappedFiles
from dsv41c.runtime.weights.shard import TensorHeader
from dsv41c.runtime.weights.values import HELP_DAMAGED


class BlockTable:
    """Rows [rows, head_dim] of blocks, read row by row."""

    def __init__(self, header: TensorHeader, files: MappedFiles) -> None:
        self._header = header
        self._checkpoint = files.checkpoint
        self._data = files.raw(header).view(header.shape[0], -1)
        files.expect_random_access(header)

    def rows(self, ids: Tensor) -> Tensor:
        """The rows of int64 ids [...], decoded: f32 [..., head_dim], every value a bf16 one.

        What is a quantisation's approximation is rounded to bf16. Raises UserFault where a row holds what is not finite
        (DSV730), or a float that is no bf16 value (DSV731).
        """
        flat = ids.reshape(-1).to("cpu")
        values = floats(self._data[flat], self._header.dtype)
        rounded = values.to(torch.bfloat16).to(torch.float32)
        self._refuse(flat, ~values.isfinite(), "DSV730", "holds what is not finite", HELP_DAMAGED)
        if not is_rounded(self._header):
            text, help_text = (
                "holds a float that is no bf16 value",
                "export the table as BF16, or as the release stores it",
            )
            self._refuse(flat, rounded != values, "DSV731", text, help_text)
        return rounded.view(*ids.shape, values.shape[-1]).to(ids.device)

    def _refuse(self, flat: Tensor, bad: Tensor, code: str, text: str, help_text: str) -> None:
        if bool(bad.any()):
            row = int(flat[bad.any(dim=-1).nonzero()[0, 0]])
            finding = Diagnostic(
                code, f"`{self._header.stored}` row {row} {text}", Span(self._header.file), help=help_text
            )
            raise UserFault(self._checkpoint.located([finding]))
