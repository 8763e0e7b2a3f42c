"""A plan with weights on its devices, of one process or of several, and the work on it that is timed."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dsv41c.runtime.bench.cell import cell_positions
from dsv41c.runtime.bench.options import BenchOptions, Cell
from dsv41c.runtime.bench.random_state import fill_slot
from dsv41c.runtime.bench.random_weights import random_weights
from dsv41c.runtime.engine import Engine, Started
from dsv41c.runtime.plan import Plan
from dsv41c.runtime.session import Session
from dsv41c.runtime.shards import of_shard
from dsv41c.runtime.stages.busy import Busy
from dsv41c.runtime.stages.layout import Layout
from dsv41c.runtime.stages.weights import PlacedWeights, used_by
from dsv41c.runtime.stages.world import World
from dsv41c.runtime.steps import Steps
from dsv41c.runtime.tail import TailKind


class Placed:
    """An engine of a plan, with the weights of the places that are here: random ones unless the options say others."""

    def __init__(self, plan: Plan, options: BenchOptions, world: World | None) -> None:
        self.plan = plan
        self.options = options
        self.layout = Layout.of(plan.manifest)
        self._drawing = torch.Generator().manual_seed(options.seed)  # the same in every process
        weights = None if options.weights is not None else self._random(world)
        self.engine = Engine(plan, options.weights or "", weights=weights, world=world)
        self.places = {place: device.place for place, device in self.engine.devices.items()}
        self.busy = self.engine.executor.busy = Busy(self.places)

    def _random(self, world: World | None) -> PlacedWeights:
        manifest = self.plan.manifest
        places = Steps.places_of(manifest, world)
        made = {}
        for place, used in used_by(manifest, self.layout, places).items():
            entries = [of_shard(entry) for entry in manifest.weights if entry.id in used]
            part = manifest.model_copy(update={"weights": entries})
            stored, seed = self.options.stored_experts, self.options.seed
            made[place] = random_weights(part, places[place], stored_experts=stored, seed=seed)
        return PlacedWeights(made)

    def ids(self, rows: int, tokens: int) -> list[list[int]]:
        """Rows of random ids."""
        vocabulary = self.plan.manifest.model.vocab_size
        return torch.randint(0, vocabulary, (rows, tokens), generator=self._drawing).tolist()

    def open(self, count: int, batch: int) -> list[list[Session]]:
        """So many groups of sessions, whose caches hold random rows."""
        groups = [[self.engine.open() for _ in range(batch)] for _ in range(count)]
        drawing = [torch.Generator(place).manual_seed(self.options.seed) for place in set(self.places.values())]
        for session in (session for group in groups for session in group):
            fill_slot(self.engine.pools, self.plan.manifest, session.slot, *drawing)
        return groups

    def turn(self, groups: Sequence[Sequence[Session]], cell: Cell) -> None:
        """A turn of steps of each group, at the last positions before the context; logits come to the host."""
        steps = self.options.steps
        ids = self.ids(steps, cell.batch)
        positions = cell_positions(cell.context, steps)
        under_way: list[Started] = []
        for step in range(steps):
            for number, group in enumerate(groups):
                if step:
                    under_way.pop(0).logits()
                for session in group:
                    session.length = positions[step]
                under_way.append(self.engine.start(dict(zip(group, ids[step], strict=True))))
                assert len(under_way) <= len(groups), number
        for started in under_way:
            started.logits()

    def read(self, ids: Sequence[int], tail: TailKind) -> None:
        """Feed a prompt to an empty session, up to its last logits on the host."""
        self.engine.tail = tail
        with self.engine.open() as session:
            session.feed(ids)

    def synchronize(self) -> None:
        """Wait for the devices."""
        for place in self.places.values():
            if place.type == "cuda":
                torch.cuda.synchronize(place)


def close(groups: Sequence[Sequence[Session]]) -> None:
    """Give the slots of groups of sessions back."""
    for session in (session for group in groups for session in group):
        session.close()
