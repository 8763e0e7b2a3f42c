"""One cell of a benchmark: a batch at a context, all arms by turns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

import torch

from dsv41c.runtime.bench.arms import Arm, StepInputs, apart, state_kept
from dsv41c.runtime.bench.bytes import StepBytes, step_bytes
from dsv41c.runtime.bench.kernel_times import KernelTimes, kernel_times, launches
from dsv41c.runtime.bench.measure import Clock, Spread, by_turns, ratios
from dsv41c.runtime.bench.options import BenchOptions, Cell
from dsv41c.runtime.bench.torch_arm import oracle
from dsv41c.runtime.engine import Engine
from dsv41c.runtime.weights.row_cache import Lookups
from dsv41c.runtime.weights.table import lookups

PROBES = 3  # untimed steps whose routing is looked at
TURN_SECONDS = 0.5  # a slow arm takes fewer steps in its turn
_COMPARED = ("layer", "all", "eager")  # the arms that compute what the plan says


@dataclass(slots=True)
class ArmResult:
    """What one arm came to. `steps` of one turn; `seconds` of a step in each round; `apart` from the reference."""

    steps: int
    graphs: int | None
    capture_seconds: float | None
    apart: float | None
    seconds: list[float] = field(default_factory=list)


@dataclass(slots=True)
class CellResult:
    """What a cell came to. `distinct`: experts by layer that a step touches.

    `row_cache`: rows of engram tables that the timed steps looked up; None where tables are in memory.
    """

    cell: Cell
    moved: StepBytes
    distinct: Mapping[int, float]
    arms: dict[str, ArmResult | None]
    ratios: dict[str, Spread]
    launches: dict[str, int] | None
    kernels: KernelTimes | None
    peak_bytes: int | None
    row_cache: Lookups | None = None


def step_inputs(engine: Engine, cell: Cell, slots: Sequence[int], steps: int, seed: int) -> StepInputs:
    """Random ids for every step, at the last positions before the cell's context, from the first again if too few."""
    place = engine.device.place
    drawing = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, engine.manifest.model.vocab_size, (steps, cell.batch, 1), generator=drawing)
    positions = torch.tensor(cell_positions(cell.context, steps))[:, None].expand(-1, cell.batch).contiguous()
    chosen = torch.tensor(list(slots)[: cell.batch])
    return StepInputs(ids.to(place), chosen.to(place), positions.to(place), cell.context)


def cell_positions(context: int, steps: int) -> list[int]:
    """Positions of the steps: with the last one, a session holds `context` tokens."""
    room = min(context, steps)
    return [context - room + index % room for index in range(steps)]


def measure_cell(
    engine: Engine,
    arms: Mapping[str, Arm | None],
    cell: Cell,
    slots: Sequence[int],
    options: BenchOptions,
    clock: Clock,
) -> CellResult:
    """Measure the arms of a cell on sessions whose state is written. The peak is that of the first arm alone."""
    inputs = step_inputs(engine, cell, slots, options.steps, options.seed)
    there = {name: arm for name, arm in arms.items() if arm is not None}
    distinct = _distinct(engine, inputs)
    peak = _peak(there, inputs, clock)
    for arm in list(there.values())[1:]:
        arm.prepare(inputs)
    distances = _distances(engine, there, inputs)
    results = {
        name: ArmResult(_turn_steps(arm, options.steps, clock), arm.graphs, arm.capture_seconds, distances.get(name))
        for name, arm in there.items()
    }
    before = lookups(engine.weights)
    times = by_turns({name: _turn(arm, results[name].steps, clock) for name, arm in there.items()}, options.rounds)
    for name, seconds in times.items():
        results[name].seconds = seconds
    after = lookups(engine.weights)
    first = next(iter(there.values()), None)
    counted = launches(engine, inputs, first) if first is not None and clock.events else None
    profiled = kernel_times(clock, first) if first is not None and options.profile else None
    for arm in there.values():
        arm.release()
    positions = cell_positions(cell.context, options.steps)
    return CellResult(
        cell,
        step_bytes(
            engine.manifest,
            batch=cell.batch,
            positions=positions,
            distinct=distinct,
            stored_experts=options.stored_experts,
        ),
        distinct,
        {name: results.get(name) for name in arms},
        ratios(times),
        counted,
        profiled,
        peak,
        None if after is None else after.since(before),
    )


def _peak(arms: Mapping[str, Arm], inputs: StepInputs, clock: Clock) -> int | None:
    """Make the first arm ready; the most bytes that were allocated for that, None on the host."""
    if clock.events:
        torch.cuda.reset_peak_memory_stats(clock.place)
    for arm in list(arms.values())[:1]:
        arm.prepare(inputs)
    return torch.cuda.max_memory_allocated(clock.place) if clock.events else None


def _distinct(engine: Engine, inputs: StepInputs) -> dict[int, float]:
    """How many experts a step touches in each layer, by the ids that the reference kernels choose in a few steps."""
    reference = oracle(engine)
    routes = {op.layer: op.writes["expert_ids"] for op in engine.manifest.ops if op.kind == "route"}
    counts: dict[int, list[int]] = {layer: [] for layer in routes if layer is not None}
    for index in range(PROBES if inputs.batch > 1 else 1):  # the experts of one token are distinct
        values = reference.run(inputs.step(index), {"ids": inputs.ids[index % len(inputs.ids)]})
        for layer, found in counts.items():
            found.append(len(set(values[routes[layer]].flatten().tolist())))
    return {layer: fmean(found) for layer, found in counts.items()}


def _distances(engine: Engine, arms: Mapping[str, Arm], inputs: StepInputs) -> dict[str, float]:
    """How far the logits of each arm that computes what the plan says are from the reference kernels'.

    All run the same first step on the same state: no other step may come between, as it would write into the windows.
    """
    with state_kept(engine):
        expected = oracle(engine).run(inputs.step(0), {"ids": inputs.ids[0]})["logits"].clone()
    found = {}
    for name, arm in arms.items():
        if name in _COMPARED:
            with state_kept(engine):
                found[name] = apart(arm.step(0), expected)
    return found


def _turn_steps(arm: Arm, steps: int, clock: Clock) -> int:
    """How many steps an arm takes in a turn, after two to get warm."""
    for index in range(2):
        arm.step(index)
    seconds = clock.wall(lambda: arm.step(2))
    return max(2, min(steps, int(TURN_SECONDS / max(seconds, 1e-9))))


def _turn(arm: Arm, steps: int, clock: Clock) -> Callable[[], float]:
    """A turn of an arm: seconds of a step."""

    def run() -> None:
        for index in range(steps):
            arm.step(index)

    return lambda: clock.seconds(run) / steps
