"""Weights on a device, and the tensors that they are made of. Tables of rows stay where they are stored."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from dsv41c.kernels.reference.encodings import Packed, Stacked


def integers(values: Sequence[object], place: torch.device) -> Tensor:
    """int64 numbers on a device, of what shape they are nested in. What is under way there is not waited for."""
    host = torch.tensor(values, dtype=torch.int64)
    return pinned(host).to(place, non_blocking=True) if place.type == "cuda" else host.to(place)


def pinned(host: Tensor) -> Tensor:
    """A tensor of the host where a GPU takes it from without the host's waiting: a copy from elsewhere may wait."""
    return host if host.is_pinned() else host.pin_memory()


def on_device(weights: Mapping[str, object], place: torch.device) -> dict[str, object]:
    """Weights and constants by id on a device, packed ones as they are; what is there already is not copied.

    Experts become `Stacked` where all are stored so, else lists; each is checked as at its first use, which raises
    `UserFault` (DSV730). A table stays where it is: `weights.table.table_for` says what reads it there.
    """
    if place.type == "cpu":
        return dict(weights)
    return {name: _moved(weight, place) for name, weight in weights.items()}


def _moved(weight: object, place: torch.device) -> object:
    if isinstance(weight, Tensor):
        return weight.to(place)
    if isinstance(weight, Packed):
        return Packed(weight.codes.to(place), weight.scale.to(place), weight.encoding)
    if isinstance(weight, Stacked):
        return Stacked(weight.codes.to(place), weight.scale.to(place), weight.encoding)
    if isinstance(weight, Sequence):
        return stacked(weight, place) or [_moved(item, place) for item in weight]
    return weight


def stacked(experts: Sequence[object], place: torch.device) -> Stacked | None:
    """Experts on a device in one piece, copied there one by one; None where not all are FP4 matrices of one shape."""
    first = experts[0] if len(experts) else None
    if not isinstance(first, Packed) or first.encoding != "fp4_32":
        return None
    whole = getattr(experts, "whole", None)  # of a merged tensor: one copy instead of one for each expert
    if isinstance(whole, Packed) and all(isinstance(item, Packed) for item in experts):  # looks at each: none is NaN
        return Stacked(whole.codes.view(torch.uint8).to(place), whole.scale.view(torch.uint8).to(place), "fp4_32")
    codes, scale = (
        torch.empty((len(experts), *part.shape), dtype=torch.uint8, device=place) for part in (first.codes, first.scale)
    )
    for index, item in enumerate(experts):
        if not isinstance(item, Packed) or (item.encoding, item.codes.shape) != ("fp4_32", first.codes.shape):
            return None
        codes[index].copy_(item.codes.view(torch.uint8))
        scale[index].copy_(item.scale.view(torch.uint8))
    return Stacked(codes, scale, "fp4_32")


def is_held(table: object) -> bool:
    """Whether kernels read a table of rows themselves: tensors of a device, or of pinned memory that a GPU reads."""
    return isinstance(getattr(table, "codes", None), Tensor)


def tensors_of(weights: Iterable[object]) -> Iterator[Tensor]:
    """Every tensor that weights are made of; none of a stored table, which kernels do not read themselves."""
    for weight in weights:
        if isinstance(weight, Tensor):
            yield weight
        elif is_held(weight):  # packed matrices, stacked ones, and tables
            yield weight.codes  # type: ignore[attr-defined]
            if weight.scale is not None:  # type: ignore[attr-defined]
                yield weight.scale  # type: ignore[attr-defined]
        elif isinstance(weight, Sequence):
            yield from tensors_of(weight)
