"""Strict mode: the rules of a family's graphs, held on the CPU. What passes here can be captured there."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dsv41c.runtime.device.findings import moved
from dsv41c.runtime.device.geometry import Geometry, geometries
from dsv41c.runtime.device.protocol import GraphKey, Work
from dsv41c.runtime.device.rules import Rules
from dsv41c.runtime.device.watch import Operation, Watch
from dsv41c.runtime.refusals import raise_if


@dataclass(frozen=True, slots=True)
class _Kept:
    work: Work
    outputs: dict[str, Tensor]
    operations: tuple[Operation, ...]
    seen: dict[str, Geometry]


class StrictDevice:
    """A stand-in for a device of any family. It computes what a call computes, and refuses what a graph could not hold.

    At capture it records operations and where inputs and state are; a replay has to find and do the same. `place` is
    the CPU, or the meta device, on which shapes are checked without data.
    """

    captures = True

    def __init__(self, rules: Rules, place: torch.device | None = None) -> None:
        self.rules = rules
        self.place = place if place is not None else torch.device("cpu")
        self._kept: dict[GraphKey, _Kept] = {}

    def warm_up(self, work: Work) -> None:
        """Run work once, unwatched."""
        work.call(None)

    def capture(self, key: GraphKey, work: Work) -> dict[str, Tensor]:
        """Run work under watch and keep what it did. Raises `UserFault` (DSV870 to DSV872, DSV874, DSV877)."""
        watch = Watch(work, self.rules)
        seen = geometries(work.reads())
        outputs = watch.run()
        self._kept[key] = _Kept(work, outputs, tuple(watch.operations), seen)
        return outputs

    def replay(self, key: GraphKey) -> None:
        """Run it again, and leave its outputs where the first ones are. Raises `UserFault` as `capture` does.

        Further: DSV873 for inputs or state that moved, DSV875 for other views, DSV876 for other operations.
        """
        kept = self._kept[key]
        raise_if(moved(kept.work, kept.seen, geometries(kept.work.reads())))
        fresh = Watch(kept.work, self.rules, kept.operations).run()
        for value, tensor in fresh.items():
            self.copy(tensor, kept.outputs[value])

    def release(self) -> None:
        """Drop everything kept."""
        self._kept.clear()

    def copy(self, source: Tensor, target: Tensor) -> None:
        """Copy values."""
        target.copy_(source)

    def synchronize(self) -> None:
        """Nothing to wait for."""
