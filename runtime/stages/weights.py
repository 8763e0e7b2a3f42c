"""Weights of a plan on several places: a weight where its stage is, a constant on every place that reads it."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping

import torch

from dsv41c.runtime.device.tensors import on_device
from dsv41c.runtime.manifest import Manifest
from dsv41c.runtime.stages.layout import Layout
from dsv41c.runtime.weights.table import StoredTable, table_for


class PlacedWeights(Mapping[str, object]):
    """Weights and constants by id; what is on several places is given as on the first of them."""

    def __init__(self, places: Mapping[int, Mapping[str, object]]) -> None:
        self._places = places
        self._first = {
            name: weight for _, part in sorted(places.items(), reverse=True) for name, weight in part.items()
        }

    def at(self, place: int) -> Mapping[str, object]:
        """Those of one place."""
        return self._places[place]

    def __getitem__(self, key: str) -> object:
        return self._first[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._first)

    def __len__(self) -> int:
        return len(self._first)


def at_place(weights: Mapping[str, object], place: int) -> Mapping[str, object]:
    """What a place has of some weights: all of them where they were not placed."""
    return weights.at(place) if isinstance(weights, PlacedWeights) else weights


def used_by(manifest: Manifest, layout: Layout, places: Container[int]) -> dict[int, set[str]]:
    """Ids of the weights and constants that the ops of each of some places name."""
    found: dict[int, set[str]] = {}
    for op in manifest.ops:
        place = layout.place_of(op.stage)
        if place in places:
            found.setdefault(place, set()).update(op.weights.values())
    return found


def placed(
    weights: Mapping[str, object], manifest: Manifest, layout: Layout, devices: Mapping[int, torch.device]
) -> PlacedWeights:
    """Weights of the host on the devices of some places; placed ones stay. Raises `UserFault` as `on_device` does.

    Tables go with them where `engram.storage` says `device`; a GPU may read pinned ones where they are (`table_for`).
    """
    if isinstance(weights, PlacedWeights):
        return weights
    used = used_by(manifest, layout, devices)
    found: dict[int, dict[str, object]] = {}
    for place, device in devices.items():
        own = {name: weight for name, weight in weights.items() if name in used[place]}
        own = {name: table_for(w, manifest, device) if isinstance(w, StoredTable) else w for name, w in own.items()}
        found[place] = on_device(own, device)
    return PlacedWeights(found)
