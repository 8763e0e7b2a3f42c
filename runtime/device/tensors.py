"""Weights on a device, and the tensors that they are made of. Tables of rows stay where they are mapped."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from dsv41c.kernels.reference.encodings import Packed


def on_device(weights: Mapping[str, object], place: torch.device) -> dict[str, object]:
    """Weights and constants by id on a device, packed ones as they are; what is there already is not copied.

    Experts become lists, each checked as at its first use, which raises `UserFault` (DSV730). A table stays mapped:
    its rows are read on the host and copied.
    """
    if place.type == "cpu":
        return dict(weights)
    return {name: _moved(weight, place) for name, weight in weights.items()}


def _moved(weight: object, place: torch.device) -> object:
    if isinstance(weight, Tensor):
        return weight.to(place)
    if isinstance(weight, Packed):
        return Packed(weight.codes.to(place), weight.scale.to(place), weight.encoding)
    if isinstance(weight, Sequence):
        return [_moved(item, place) for item in weight]
    return weight


def tensors_of(weights: Iterable[object]) -> Iterator[Tensor]:
    """Every tensor that weights are made of; none of a table, which kernels do not read themselves."""
    for weight in weights:
        if isinstance(weight, Tensor):
            yield weight
        elif isinstance(weight, Packed):
            yield from (weight.codes, weight.scale)
        elif isinstance(weight, Sequence):
            yield from tensors_of(weight)
