"""Stages and places of a plan: which regions run on which device, and what each stage takes over from the one before.

A *place* is a distinct device of the placement, numbered by its first stage. A device that comes again is the same
place: it still has its weights, its state and the values of its earlier stages.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from dsv41c.runtime.manifest import Manifest, TransferEntry


@dataclass(frozen=True, slots=True)
class Boundary:
    """What stage `to` gets from the stage before it: values of the step, and rows that its mirrors lack."""

    to: int
    source: int  # the places
    target: int
    chunk: tuple[TransferEntry, ...]
    mirrors: tuple[TransferEntry, ...]

    @property
    def stays(self) -> bool:
        """Whether both stages are on one device, so that nothing has to be sent."""
        return self.source == self.target

    @property
    def name(self) -> str:
        """`0 -> 1`, by stages."""
        return f"{self.to - 1} -> {self.to}"


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage: its place, its regions as a range of the manifest's, and the boundary before it."""

    index: int
    place: int
    regions: range
    boundary: Boundary | None


@dataclass(frozen=True, slots=True)
class Layout:
    """The stages of a plan in order, and the device of each place by name."""

    stages: tuple[Stage, ...]
    devices: tuple[str, ...]

    @staticmethod
    def of(manifest: Manifest) -> Layout:
        """That of a plan."""
        devices = tuple(dict.fromkeys(stage.device for stage in manifest.stages))
        homes = [devices.index(stage.device) for stage in manifest.stages]
        stages = []
        for stage in manifest.stages:
            own = [index for index, region in enumerate(manifest.regions) if region.stage == stage.index]
            moves = [move for move in manifest.transfers if move.to_stage == stage.index]
            boundary = None
            if stage.index:
                chunk, mirrors = (tuple(move for move in moves if move.how == how) for how in ("chunk", "mirror"))
                boundary = Boundary(stage.index, homes[stage.index - 1], homes[stage.index], chunk, mirrors)
            stages.append(Stage(stage.index, homes[stage.index], range(own[0], own[-1] + 1), boundary))
        return Layout(tuple(stages), devices)

    def place_of(self, stage: int) -> int:
        """The place of a stage."""
        return self.stages[stage].place


def plain_id(value: str) -> str:
    """The id of a value on its own stage: `topk@L4` of `topk@L4.S2`."""
    return re.sub(r"\.S\d+$", "", value)


def ratios(manifest: Manifest) -> dict[str, int]:
    """The compress ratio of every value that an op with a ratio writes, copies on other stages among them."""
    own = {value: int(op.attrs["ratio"]) for op in manifest.ops if "ratio" in op.attrs for value in op.writes.values()}
    moved = {move.arrives_as: own[plain_id(move.value)] for move in manifest.transfers if plain_id(move.value) in own}
    return own | moved
