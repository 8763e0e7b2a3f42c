"""A benchmark of a plan on several devices: one batch at a time, as many as there are places, and prompts in chunks.

In one process that drives all devices, or with a `World` in each of several, which measure together. Bubble fraction:
the share of the places' time, together, in which they did not work. What placement costs or gains is measured `against`
a plan of the same model on one device, which the first process runs by turns with it while the others wait.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

from dsv41c.runtime import refusals
from dsv41c.runtime.bench.options import BenchOptions, Cell, Prompt, not_comparable, not_measurable
from dsv41c.runtime.bench.placed import Placed, close
from dsv41c.runtime.bench.prompts import KINDS, MOST_ROUNDS
from dsv41c.runtime.bench.room import too_large
from dsv41c.runtime.device.families import not_runnable
from dsv41c.runtime.manifest import Manifest
from dsv41c.runtime.plan import Plan
from dsv41c.runtime.stages.busy import Busy
from dsv41c.runtime.stages.layout import Layout
from dsv41c.runtime.stages.world import World
from dsv41c.runtime.steps import devices_here

Say = Callable[[str], None]
Work = tuple[int, Busy | None, Callable[[], None]]  # pieces, who knows how long it was at work, and what to do


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
    """A batch at a context, by arm: `one` at a time, with one in flight for each place (`filled`), and `against`."""

    cell: Cell
    in_flight: int
    arms: dict[str, Measured]
    moved: list[Moved]


@dataclass(frozen=True, slots=True)
class StagesPrompt:
    """A prompt by kind, and the same `against` the other plan, empty without one."""

    prompt: Prompt
    kinds: dict[str, Measured]
    against: dict[str, Measured]


@dataclass(slots=True)
class StagesResult:
    """What a benchmark came to. `against` is the plan on one device that it was set against."""

    manifest: Manifest
    options: BenchOptions
    layout: Layout
    processes: int
    against: Manifest | None
    load_seconds: float = 0.0
    cells: list[StagesCell] = field(default_factory=list)
    prompts: list[StagesPrompt] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)


def run_stages_bench(
    plan: Plan,
    options: BenchOptions,
    *,
    world: World | None = None,
    against: Plan | None = None,
    say: Say | None = None,
) -> StagesResult:
    """Measure. In a `world`, every process makes the same call.

    Raises `UserFault` as `run_bench` does, also for `against`, and DSV885 where that is no plan to compare with.
    """
    parts = [(plan.manifest, devices_here(plan.manifest, world))]
    unfit = not_runnable(plan.manifest, only=None if world is None else world.local)
    if against is not None and (world is None or world.rank == 0):
        parts.append((against.manifest, devices_here(against.manifest, None)))
        unfit += not_runnable(against.manifest)
    refusals.raise_if(unfit)
    unfit = not_measurable(plan.manifest, options)
    if against is not None:
        unfit += not_comparable(plan.manifest, against.manifest, options)
    refusals.raise_if(unfit)
    refusals.raise_if(too_large(parts, options))
    bench, began = _Bench(plan, options, world, against, say or (lambda _: None)), time.perf_counter()
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
    def __init__(self, plan: Plan, options: BenchOptions, world: World | None, against: Plan | None, say: Say) -> None:
        self.plan = plan
        self.options = options
        self.world = world
        self.against = against
        self.say = say
        layout = Layout.of(plan.manifest)
        processes = 1 if world is None else world.size
        other = None if against is None else against.manifest
        self.result = StagesResult(plan.manifest, options, layout, processes, other)

    def load(self) -> None:
        """Both plans; of the one to compare with only in the first process."""
        began, first = time.perf_counter(), self.world is None or self.world.rank == 0
        self.own = Placed(self.plan, self.options, self.world)
        self.other = Placed(self.against, self.options, None) if self.against is not None and first else None
        self._wait()
        self.result.load_seconds = time.perf_counter() - began

    def _wait(self) -> None:
        for placed in (self.own, self.other):
            if placed is not None:
                placed.synchronize()
        if self.world is not None:
            with self.world.watch.over():
                dist.barrier()

    def agreed(self, late: bool) -> bool:
        """The first process's answer."""
        return late if self.world is None else bool(self.world.agreed(int(late)))

    def cell(self, cell: Cell) -> None:
        """One batch at a time, and as many in flight as there are places, where there are sessions for them."""
        own, other, steps = self.own, self.other, self.options.steps
        count = max(1, min(len(own.layout.devices), self.plan.manifest.runtime.max_sessions // cell.batch))
        groups = own.open(count, cell.batch)
        alone = [] if other is None else other.open(1, cell.batch)
        traffic = own.engine.executor.transport.traffic
        works: dict[str, Work] = {
            "one": (steps, own.busy, lambda: own.turn(groups[:1], cell)),
            "filled": (count * steps, own.busy, lambda: own.turn(groups, cell)),
        }
        if self.against is not None:
            works["against"] = (steps, *self._alone(lambda placed: placed.turn(alone, cell)))
        for _, _, work in works.values():  # captures and compiles
            work()
        before = {stage: (item.tokens, item.bytes) for stage, item in traffic.items()}
        arms = self._by_turns(works, self.options.rounds)
        moved = [
            Moved(stage, (item.bytes - before[stage][1]) / (item.tokens - before[stage][0]), self._said(stage))
            for stage, item in sorted(traffic.items())
        ]
        self.result.cells.append(StagesCell(cell, count, arms, moved))
        close([*groups, *alone])

    def _said(self, stage: int) -> float:
        return sum(move.bytes_per_token for move in self.plan.manifest.transfers if move.to_stage == stage)

    def prompt(self, prompt: Prompt) -> None:
        """A prompt of random ids in the plan's chunks, up to its last logits on the host."""
        own, kinds, against = self.own, {}, {}
        (ids,) = own.ids(1, prompt.tokens)
        for kind in prompt.kinds:
            tail = KINDS[kind]
            works: dict[str, Work] = {"own": (1, own.busy, lambda tail=tail: own.read(ids, tail))}  # type: ignore[misc]
            if self.against is not None:
                works["against"] = (1, *self._alone(lambda placed, tail=tail: placed.read(ids, tail)))  # type: ignore[misc]
            for _, _, work in works.values():
                work()
            found = self._by_turns(works, min(self.options.rounds, MOST_ROUNDS))
            kinds[kind] = found["own"]
            if self.against is not None:
                against[kind] = found["against"]
        self.result.prompts.append(StagesPrompt(prompt, kinds, against))

    def _alone(self, work: Callable[[Placed], None]) -> tuple[Busy | None, Callable[[], None]]:
        """Work on the plan to compare with, for the process that has it; nothing for the others."""
        other = self.other
        return (None, lambda: None) if other is None else (other.busy, lambda: work(other))

    def _by_turns(self, works: Mapping[str, Work], rounds: int) -> dict[str, Measured]:
        """Rounds of all works, in the order A B C C B A."""
        found = {name: Measured() for name in works}
        for number in range(rounds):
            for name in list(works)[:: -1 if number % 2 else 1]:
                self._measure(found[name], *works[name])
        return found

    def _measure(self, measured: Measured, count: int, busy: Busy | None, work: Callable[[], None]) -> None:
        """Add a round: seconds of one of `count` pieces by the wall, and how long stages were at work in it."""
        self._wait()
        if busy is not None:
            busy.take()
        began = time.perf_counter()
        work()
        seconds, taken = self._together(time.perf_counter() - began, {} if busy is None else busy.take())
        places = len(self.result.layout.devices)
        measured.seconds.append(seconds / count)
        measured.bubbles.append(1 - sum(taken.values()) / (places * seconds))
        measured.busy.append({stage: spent / count for stage, spent in taken.items()})

    def _together(self, seconds: float, busy: dict[int, float]) -> tuple[float, dict[int, float]]:
        """Seconds until all processes were done, and those by stage at work; of shards of a stage the longest."""
        stages = len(self.result.layout.stages)
        taken = torch.tensor([seconds, *(busy.get(stage, 0.0) for stage in range(stages))], dtype=torch.float64)
        if self.world is not None:
            with self.world.watch.over():
                dist.all_reduce(taken, dist.ReduceOp.MAX)
        longest, *at_work = taken.tolist()
        return longest, dict(enumerate(at_work))
