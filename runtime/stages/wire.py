"""What values are on the way from stage to stage: a dense tensor each, by the kind's `wire` in the catalogue."""

from __future__ import annotations

import torch
from torch import Tensor

from dsv41c.kernels.catalog import STATE_KINDS


def to_wire(kind: str, value: Tensor) -> Tensor:
    """A step value as it travels: integers as int32, booleans as bits uint8 [..., ceil(n / 8)], the rest as it is."""
    wire = STATE_KINDS[kind].wire
    if wire == "i32":
        return value.to(torch.int32)
    if wire == "bits":
        padded = torch.nn.functional.pad(value.to(torch.uint8), (0, -value.shape[-1] % 8))
        eights = padded.view(*padded.shape[:-1], -1, 8)
        return torch.sum(eights << _bits(value.device), -1, dtype=torch.uint8)
    return value.contiguous()


def from_wire(kind: str, wired: Tensor, count: int) -> Tensor:
    """The value again; `count`: the size of its last axis."""
    wire = STATE_KINDS[kind].wire
    if wire == "i32":
        return wired.to(torch.int64)
    if wire == "bits":
        return (wired[..., None] >> _bits(wired.device) & 1).flatten(-2)[..., :count].to(torch.bool)
    return wired


def wire_form(kind: str, shape: tuple[int, ...], dtype: torch.dtype) -> tuple[tuple[int, ...], torch.dtype]:
    """Shape and dtype of a value on the way."""
    wire = STATE_KINDS[kind].wire
    if wire == "i32":
        return shape, torch.int32
    if wire == "bits":
        return (*shape[:-1], -(-shape[-1] // 8)), torch.uint8
    return shape, dtype


def _bits(device: torch.device) -> Tensor:
    return torch.arange(8, dtype=torch.uint8, device=device)
