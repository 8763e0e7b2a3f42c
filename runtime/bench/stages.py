"""A benchmark of a plan on several devices: one batch at a time, as many as there are places, and prompts in chunks.

In one process that drives all devices, or with a `World` in each of several, which measure together. Bubble fraction:
the share of the places' time, together, in which they did not work.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

from dsv41c.runtime import refusals
from dsv41c.runtime.bench.cell import cell_positions
from dsv41c.runtime.bench.options import BenchOptions, Cell, Prompt, not_measurable
from dsv41c.runtime.bench.prompts import KINDS
from dsv41c.runtime.bench.random_state import fill_slot
from dsv41c.runtime.bench.random_weights import random_weights
from dsv41c.runtime.device.families import not_runnable
from dsv41c.runtime.engine import Engine, Started
from dsv41c.runtime.manifest import Manifest
from dsv41c.runtime.plan import Plan
from dsv41c.runtime.session import Session
from dsv41c.runtime.shards import of_shard
from dsv41c.runtime.stages.busy import Busy
from dsv41c.runtime.stages.layout import Layout
from dsv41c.runtime.stages.weights import PlacedWeights, used_by
from dsv41c.runtime.stages.world import World
from dsv41c.runtime.steps import Steps

Say = Callable[[str], None]


@dataclass(slots=True)
class Measured:
    """Rounds of one way to run: seconds of a step or of a prompt, the share of time that places did not work."""

    seconds: list[float] = field(default_factory=list)
    bubbles: list[float] = field(default_factory=list)
    busy: list[dict[int, float]] = field(default_factory=list)  # seconds by stage


@dataclass(frozen=True, slots=True)
class Moved:
    """What crossed a boundary in a token of a cell, and what the plan says, in bytes."""

    stage: int
    measured: float
    said: float


@dataclass(frozen=True, slots=True)
class StagesCell:
    """A batch at a context: alone, and with one such batch in flight for each place (`filled`)."""

    cell: Cell
    in_flight: int
    one: Measured
    filled: Measured
    moved: list[Moved]


@dataclass(slots=True)
class StagesResult:
    """What a benchmark came to. `prompts` by tokens and kind."""

    manifest: Manifest
    options: BenchOptions
    layout: Layout
    processes: int
    load_seconds: float = 0.0
    cells: list[StagesCell] = field(default_factory=list)
    prompts: list[tuple[Prompt, dict[str, Measured]]] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)


def run_stages_bench(
    plan: Plan, options: BenchOptions, *, world: World | None = None, say: Say | None = None
) -> StagesResult:
    """Measure. Raises `UserFault` as `run_bench` does; in a `world`, every process makes the same call."""
    here = None if world is None else world.local
    refusals.raise_if(not_runnable(plan.manifest, only=here))
    refusals.raise_if(not_measurable(plan.manifest, options))
    bench, began = _Bench(plan, options, world, say or (lambda _: None)), time.perf_counter()
    with torch.no_grad():
        bench.load()
        works: list[tuple[str, Callable[[], None]]] = [
            (f"batch {cell.batch}, context {cell.context}", lambda cell=cell: bench.cell(cell))  # type: ignore[misc]
            for cell in options.cells
        ]
        works += [
            (f"a prompt of {prompt.tokens} tokens", lambda prompt=prompt: bench.prompt(prompt))  # type: ignore[misc]
            for prompt in options.prompts
        ]
        for name, work in works:
            late = options.budget is not None and time.perf_counter() - began > options.budget
            if bench.agreed(late):
                bench.result.skipped.append(name)
                continue
            bench.say(f"measuring {name} ...")
            work()
    return bench.result


class _Bench:
    def __init__(self, plan: Plan, options: BenchOptions, world: World | None, say: Say) -> None:
        self.plan = plan
        self.options = options
        self.world = world
        self.say = say
        self.drawing = torch.Generator().manual_seed(options.seed)  # the same in every process
        layout = Layout.of(plan.manifest)
        self.result = StagesResult(plan.manifest, options, layout, 1 if world is None else world.size)

    def load(self) -> None:
        """Weights of the places that are here, random ones for each on its own device, and an engine."""
        began, options = time.perf_counter(), self.options
        weights = None if options.weights is not None else self._random()
        self.engine = Engine(self.plan, options.weights or "", weights=weights, world=self.world)
        self.places = {place: device.place for place, device in self.engine.devices.items()}
        self.busy = self.engine.executor.busy = Busy(self.places)
        self._wait()
        self.result.load_seconds = time.perf_counter() - began

    def _random(self) -> PlacedWeights:
        manifest, layout = self.plan.manifest, self.result.layout
        places = Steps.places_of(manifest, self.world)
        made = {}
        for place, used in used_by(manifest, layout, places).items():
            entries = [of_shard(entry) for entry in manifest.weights if entry.id in used]
            part = manifest.model_copy(update={"weights": entries})
            stored, seed = self.options.stored_experts, self.options.seed
            made[place] = random_weights(part, places[place], stored_experts=stored, seed=seed)
        return PlacedWeights(made)

    def _wait(self) -> None:
        for place in self.places.values():
            if place.type == "cuda":
                torch.cuda.synchronize(place)
        if self.world is not None:
            dist.barrier()

    def agreed(self, late: bool) -> bool:
        """The first process's answer."""
        return late if self.world is None else bool(self.world.agreed(int(late)))

    # --- decode steps -----------------------------------------------------------------------------------------

    def cell(self, cell: Cell) -> None:
        """One batch at a time, and as many in flight as there are places, where there are sessions for them."""
        limit = self.plan.manifest.runtime.max_sessions
        count = max(1, min(len(self.result.layout.devices), limit // cell.batch))
        groups = [[self.engine.open() for _ in range(cell.batch)] for _ in range(count)]
        drawing = [torch.Generator(place).manual_seed(self.options.seed) for place in set(self.places.values())]
        for session in (session for group in groups for session in group):
            fill_slot(self.engine.pools, self.plan.manifest, session.slot, *drawing)
        one, filled = Measured(), Measured()
        traffic = self.engine.executor.transport.traffic
        self._turn(groups[:1], cell)  # captures and compiles
        self._turn(groups, cell)
        before = {stage: (item.tokens, item.bytes) for stage, item in traffic.items()}
        for _ in range(self.options.rounds):
            for measured, used in ((one, groups[:1]), (filled, groups)):
                self._measure(measured, len(used) * self.options.steps, lambda used=used: self._turn(used, cell))  # type: ignore[misc]
        moved = [
            Moved(stage, (item.bytes - before[stage][1]) / (item.tokens - before[stage][0]), self._said(stage))
            for stage, item in sorted(traffic.items())
        ]
        self.result.cells.append(StagesCell(cell, count, one, filled, moved))
        for session in (session for group in groups for session in group):
            session.close()

    def _said(self, stage: int) -> float:
        return sum(move.bytes_per_token for move in self.plan.manifest.transfers if move.to_stage == stage)

    def _turn(self, groups: list[list[Session]], cell: Cell) -> None:
        """A turn of steps of each group, at the last positions before the context; logits come to the host."""
        steps = self.options.steps
        vocabulary = self.plan.manifest.model.vocab_size
        ids = torch.randint(0, vocabulary, (steps, cell.batch), generator=self.drawing).tolist()
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

    # --- prompts -----------------------------------------------------------------------------------------

    def prompt(self, prompt: Prompt) -> None:
        """A prompt of random ids in the plan's chunks, up to its last logits on the host."""
        vocabulary = self.plan.manifest.model.vocab_size
        ids = torch.randint(0, vocabulary, (prompt.tokens,), generator=self.drawing).tolist()
        kept, found = self.engine.tail, {}
        for kind in prompt.kinds:
            self.engine.tail = KINDS[kind]
            found[kind] = Measured()

            def read() -> None:
                with self.engine.open() as session:
                    session.feed(ids)

            read()
            for _ in range(min(self.options.rounds, 3)):
                self._measure(found[kind], 1, read)
        self.engine.tail = kept
        self.result.prompts.append((prompt, found))

    def _measure(self, measured: Measured, count: int, work: Callable[[], None]) -> None:
        """Add a round: seconds of one of `count` pieces by the wall, and how long stages were at work in it."""
        self._wait()
        self.busy.take()
        began = time.perf_counter()
        work()
        seconds = time.perf_counter() - began
        busy = self._together(self.busy.take())
        places = len(self.result.layout.devices)
        measured.seconds.append(seconds / count)
        measured.bubbles.append(1 - sum(busy.values()) / (places * seconds))
        measured.busy.append({stage: taken / count for stage, taken in busy.items()})

    def _together(self, busy: dict[int, float]) -> dict[int, float]:
        """Seconds by stage, of all processes; of shards of a stage the longest."""
        stages = len(self.result.layout.stages)
        taken = torch.tensor([busy.get(stage, 0.0) for stage in range(stages)], dtype=torch.float64)
        if self.world is not None:
            dist.all_reduce(taken, dist.ReduceOp.MAX)
        return dict(enumerate(taken.tolist()))
