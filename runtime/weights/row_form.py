"""What the bytes of a table's rows mean: decoded as they are asked for, and refused where they are no numbers."""

from __future__ import annotations

from functools import cache
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from dsv41c.diagnostics import Diagnostic, Span, UserFault
from dsv41c.kernels.reference.encodings import BLOCK, Packed, decode_e4m3, decode_e8m0, dense
from dsv41c.runtime.weights.checkpoint import Checkpoint
from dsv41c.runtime.weights.match import Stored
from dsv41c.runtime.weights.shard import TensorHeader
from dsv41c.runtime.weights.values import DTYPES, E8M0_NAN, HELP_DAMAGED

HELP_ROUNDED = "export the table as BF16, or as the release stores it"


class RowForm(Protocol):
    """What a row's bytes mean."""

    def values(self, ids: Tensor, raw: Tensor) -> Tensor:
        """Rows uint8 [n, width] as f32 [n, head_dim], every value a bf16 one; `ids` [n] are told where one is damaged.

        Raises UserFault where a row holds NaN (DSV730), or a float that is no bf16 value (DSV731).
        """
        ...


class TableForm:
    """Rows as safetensors hold them: E4M3 codes and then a scale for 32 of them, or floats."""

    def __init__(self, stored: Stored, checkpoint: Checkpoint) -> None:
        self.encoding = stored.encoding
        self._stored = stored
        self._checkpoint = checkpoint

    def values(self, ids: Tensor, raw: Tensor) -> Tensor:
        """The values of rows: `RowForm.values`."""
        if self.encoding == "fp8_row32":
            found = looked_up(raw.numpy(), self._stored.tensor.shape[1])
            if not np.isnan(found).any():
                return torch.from_numpy(found)
        if self._stored.scale is not None:
            return dense(Packed(*self.packed(ids, raw), self.encoding), torch.float32)
        values, told = raw.view(DTYPES[self.encoding]).to(torch.float32), (self._stored.tensor, self._checkpoint, ids)
        refuse_rows(*told, values.isnan(), "DSV730", "holds NaN")
        refuse_rows(*told, values.to(torch.bfloat16) != values, "DSV731", "holds a float that is no bf16 value")
        return values

    def packed(self, ids: Tensor, raw: Tensor) -> tuple[Tensor, Tensor]:
        """The codes and scales of rows of a table that has both. Raises as `values` does."""
        told = (self._stored.tensor, self._checkpoint, ids)
        codes, scale = self.split(raw)
        refuse_rows(*told, scale == E8M0_NAN, "DSV730", "has a scale of 255, the NaN of E8M0")
        refuse_rows(*told, (codes & 127) == 127, "DSV730", "holds the NaN of E4M3")
        return codes, scale

    def split(self, raw: Tensor) -> tuple[Tensor, Tensor]:
        """The codes [n, head_dim] of rows uint8 [n, width], and what follows them in each: views, unchecked."""
        width = self._stored.tensor.shape[1]
        return raw[:, :width], raw[:, width:]


@cache
def _values_of_bytes() -> tuple[Any, Any]:
    """f32 [256] each: the values of E4M3 codes, and those of E8M0 scales."""
    every = torch.arange(256, dtype=torch.uint8)
    return decode_e4m3(every).numpy(), decode_e8m0(every).numpy()


def looked_up(raw: Any, width: int) -> Any:
    """Rows of `width` codes and a scale for each 32, bytes [n, width + width / 32], as f32 [n, width].

    The same as `dense`, in a quarter of the time for the few rows of a decode step.
    """
    codes, scales = _values_of_bytes()
    found = codes[raw[:, :width]]
    with np.errstate(over="ignore", invalid="ignore"):  # infinities as the decoder has them, NaN for who asks
        found.reshape(len(raw), -1, BLOCK)[...] *= scales[raw[:, width:]][..., None]
    return found


def refuse_rows(header: TensorHeader, checkpoint: Checkpoint, ids: Tensor, bad: Tensor, code: str, text: str) -> None:
    """Raise UserFault (`code`) where any value of rows [n, ...] is `bad`; the finding names the first row of `ids`."""
    if bool(bad.any()):
        row = int(ids[bad.any(dim=-1).nonzero()[0, 0]])
        help_text = HELP_DAMAGED if code == "DSV730" else HELP_ROUNDED
        finding = Diagnostic(code, f"`{header.stored}` row {row} {text}", Span(header.file), help=help_text)
        raise UserFault(checkpoint.located([finding]))
