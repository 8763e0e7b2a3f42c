"""Bytes to values, without loss or not at all: dense decoding, and the search for codes that are no number."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from dsv41c.diagnostics import Diagnostic, Span
from dsv41c.kernels.reference.encodings import BLOCK, Packed, dense
from dsv41c.runtime.weights.gguf.tensor import is_rounded
from dsv41c.runtime.weights.headers import TensorHeader
from dsv41c.runtime.weights.match import Stored

# Elements decoded at a time; bounds the temporaries of decoding, whatever the size of the matrix.
CHUNK = 1 << 24
E8M0_NAN = 255
# The smallest E4M3 step is 2^-9 and the smallest BF16 one 2^-133, so from 2^(3-127) on every product is a BF16 value.
SMALLEST_BF16_SCALE = 3
# The largest E4M3 value is 448, below 2^9, so up to 2^(246-127) every product is below 2^128.
LARGEST_SCALE = 246

HELP_DAMAGED = "fetch the file again, or export it again"
HELP_LOSSY = "compile with `numerics.compute: f32`, or store the tensor as BF16"

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


def decode(stored: Stored, codes: Tensor, scale: Tensor | None, dtype: torch.dtype) -> Tensor | Diagnostic:
    """A dense tensor in `dtype` of a stored one, or the finding that forbids it (DSV730, DSV731).

    `codes` and `scale` are the mapped tensors. Where the file already holds `dtype`, the result is a view of the map.
    """
    if codes.dtype == dtype:
        for _, part in _parts(codes, 1):
            if bool(part.isnan().any()):
                return _not_a_number(stored, codes, scale)
        return codes
    shape = codes.shape if stored.encoding != "fp4_32" else (*codes.shape[:-1], codes.shape[-1] * 2)
    result = torch.empty(shape, dtype=dtype)
    exact = dtype == torch.float32 or is_rounded(stored.tensor)
    exact = exact or (scale is not None and bool(scale.numel() and scale.min() >= SMALLEST_BF16_SCALE))
    step = 1 if scale is None or stored.encoding != "fp8_32x32" else BLOCK
    for first, part in _parts(codes, step):
        last = first + len(part)
        packed = part if scale is None else Packed(part, scale[first // step : -(-last // step)], stored.encoding)
        values = dense(packed, torch.float32)
        bad = values.isnan() if scale is None else ~values.isfinite()
        if bool(bad.any()):
            return _not_a_number(stored, codes, scale)
        result[first:last] = values
        if not exact and not torch.equal(result[first:last].to(torch.float32), values):
            return _lossy(stored, values, result[first:last], first)
    return result


def _parts(tensor: Tensor, step: int) -> Iterator[tuple[int, Tensor]]:
    """Pieces of a tensor along its first dimension, in multiples of `step` rows, with where they start."""
    if tensor.ndim == 0 or tensor.numel() == 0:
        return
    rows = max(1, CHUNK // max(1, tensor[0].numel()) // step) * step
    for first in range(0, len(tensor), rows):
        yield first, tensor[first : first + rows]


def find_not_a_number(stored: Stored, codes: Tensor, scale: Tensor | None) -> Diagnostic | None:
    """Look through a tensor that stays packed. Reads E8M0 scales, E4M3 codes and floats; E2M1 has no NaN."""
    if scale is not None and bool((scale == E8M0_NAN).any()):
        return _not_a_number(stored, codes, scale)
    if stored.encoding == "fp4_32":
        return None
    for _, part in _parts(codes, 1):
        bad = part.isnan() if scale is None else (part & 127) == 127
        if bool(bad.any()):
            return _not_a_number(stored, codes, scale)
    return None


def find_not_bf16(stored: Stored, codes: Tensor, scale: Tensor) -> Diagnostic | None:
    """Look through a quantised matrix that is decoded to bf16 at use: for NaN, and for values that are no bf16 ones."""
    finding = find_not_a_number(stored, codes, scale)
    if finding is not None or scale.numel() == 0:
        return finding
    if scale.min() >= SMALLEST_BF16_SCALE and scale.max() <= LARGEST_SCALE:
        return None
    decoded = decode(stored, codes, scale, torch.bfloat16)
    return decoded if isinstance(decoded, Diagnostic) else None


def _not_a_number(stored: Stored, codes: Tensor, scale: Tensor | None) -> Diagnostic:
    if scale is None:
        return _at(stored.tensor, codes.isnan(), "is NaN")
    assert stored.scale is not None
    if bool((scale == E8M0_NAN).any()):
        return _at(stored.scale, scale == E8M0_NAN, "is 255, the NaN of E8M0")
    if stored.encoding != "fp4_32" and bool(((codes & 127) == 127).any()):
        return _at(stored.tensor, (codes & 127) == 127, "is NaN (the low seven bits of its E4M3 code are set)")
    return _at(stored.scale, scale == scale.max(), f"is {int(scale.max())}, which takes values beyond any float")


def _at(header: TensorHeader, bad: Tensor, text: str) -> Diagnostic:
    first = bad.nonzero()[0].tolist()
    count = int(bad.sum())
    more = f" (and {count - 1:,} more)" if count > 1 else ""
    return Diagnostic("DSV730", f"`{header.stored}` element {first} {text}{more}", Span(header.file), help=HELP_DAMAGED)


def _lossy(stored: Stored, values: Tensor, rounded: Tensor, first: int) -> Diagnostic:
    where = (rounded.to(torch.float32) != values).nonzero()[0].tolist()
    value = float(values[tuple(where)])
    where[0] += first
    text = f"`{stored.tensor.stored}` ({stored.tensor.dtype}) element {where} is {value!r}, which is no bf16 value"
    return Diagnostic("DSV731", text, Span(stored.tensor.file), help=HELP_LOSSY)
