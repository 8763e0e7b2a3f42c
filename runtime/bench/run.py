"""A whole benchmark: weights made once, then cells and prompts, with the machine's rates measured in between."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from dsv41c.runtime import refusals
from dsv41c.runtime.bench.arms import bench_plan, make_arms
from dsv41c.runtime.bench.cell import CellResult, measure_cell
from dsv41c.runtime.bench.measure import Bandwidth, Clock, matmul_rate
from dsv41c.runtime.bench.options import BenchOptions, Cell, not_measurable
from dsv41c.runtime.bench.prompts import PromptResult, measure_prompt
from dsv41c.runtime.bench.random_state import fill_slot
from dsv41c.runtime.bench.random_weights import held_bytes, random_weights
from dsv41c.runtime.bench.room import too_large
from dsv41c.runtime.device.families import device_for, not_runnable
from dsv41c.runtime.engine import Engine
from dsv41c.runtime.manifest import Manifest
from dsv41c.runtime.memory import pool_bytes
from dsv41c.runtime.plan import Plan
from dsv41c.runtime.stages.collectives import other_shards
from dsv41c.runtime.steps import devices_here

Say = Callable[[str], None]


@dataclass(slots=True)
class Memory:
    """Bytes: of weights and state by the manifest, held once these are there, at most with graphs of a cell."""

    predicted: int
    held: int | None = None
    peak: int | None = None


@dataclass(slots=True)
class BenchResult:
    """What a benchmark came to. `skipped`: what the budget left no time for."""

    manifest: Manifest
    options: BenchOptions
    memory: Memory
    load_seconds: float = 0.0
    bandwidth: Bandwidth | None = None
    matmul: float | None = None
    cells: list[CellResult] = field(default_factory=list)
    prompts: list[PromptResult] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)


def run_bench(
    plan: Plan,
    options: BenchOptions,
    *,
    say: Say | None = None,
    on_cell: Callable[[BenchResult, CellResult], None] | None = None,
) -> BenchResult:
    """Measure. `say` hears of what takes a while, `on_cell` of each cell as it is done.

    Raises `UserFault` before anything is made: DSV858 where the plan does not run here, DSV880 to DSV884 where it has
    no room for what is asked.
    """
    refusals.raise_if([*not_runnable(plan.manifest), *other_shards(plan.manifest, None)])
    refusals.raise_if(not_measurable(plan.manifest, options))
    refusals.raise_if(too_large([(plan.manifest, devices_here(plan.manifest, None))], options))
    began = time.perf_counter()
    bench = _Bench(bench_plan(plan), options, say or (lambda _: None))
    with torch.no_grad():
        bench.load()
        for cell in options.cells:
            name = f"batch {cell.batch}, context {cell.context}"
            if bench.in_time(began, name):
                done = bench.cell(cell, name)
                if on_cell is not None:
                    on_cell(bench.result, done)
        bench.close()
        for prompt in options.prompts:
            name = f"a prompt of {prompt.tokens} tokens"
            if bench.in_time(began, name):
                bench.say(f"measuring {name} ...")
                bench.result.prompts.append(
                    measure_prompt(bench.engine, prompt, options.rounds, options.seed, bench.clock)
                )
        bench.finish()
    return bench.result


class _Bench:
    def __init__(self, plan: Plan, options: BenchOptions, say: Say) -> None:
        self.plan = plan
        self.options = options
        self.say = say
        self.clock = Clock(device_for(plan.manifest).place)
        stored = options.stored_experts
        predicted = held_bytes(plan.manifest, stored_experts=stored) + pool_bytes(plan.manifest)
        self.result = BenchResult(plan.manifest, options, Memory(predicted))

    def load(self) -> None:
        """Make or bind the weights, write the state of as many sessions as the largest cell has."""
        start = time.perf_counter()
        place, options = self.clock.place, self.options
        if self.clock.events:
            torch.cuda.reset_peak_memory_stats(place)
        if options.weights is None:
            self.say("making the weights ...")
            made = random_weights(self.plan.manifest, place, stored_experts=options.stored_experts, seed=options.seed)
            self.engine = Engine(self.plan, "", weights=made)
        else:
            self.say("loading the weights ...")
            self.engine = Engine(self.plan, options.weights)
        self.sessions = [self.engine.open() for _ in range(max((cell.batch for cell in options.cells), default=0))]
        drawing = torch.Generator(place).manual_seed(options.seed)
        for session in self.sessions:
            fill_slot(self.engine.pools, self.plan.manifest, session.slot, drawing)
        self.clock.synchronize()
        self.result.load_seconds = time.perf_counter() - start
        if self.clock.events:
            self.result.memory.held = torch.cuda.memory_allocated(place)
        self.arms = make_arms(self.plan, self.engine, options.arms)
        host = not self.clock.events
        self.bandwidth = Bandwidth(self.clock, 1 << 24 if host else 1 << 30, 5 if host else 20)
        self.bandwidth.measure()
        self.result.bandwidth = self.bandwidth

    def in_time(self, began: float, name: str) -> bool:
        """Whether the budget allows another piece of work; if not, it is noted."""
        allowed = self.options.budget is None or time.perf_counter() - began < self.options.budget
        if not allowed:
            self.say(f"no time is left for {name}")
            self.result.skipped.append(name)
        return allowed

    def cell(self, cell: Cell, name: str) -> CellResult:
        """Measure a cell, then the bandwidth again."""
        self.say(f"measuring {name} ...")
        self.bandwidth.release()  # its buffers are no part of what the plan needs
        slots = [session.slot for session in self.sessions]
        for session in self.sessions[: cell.batch]:
            session.length = cell.context
        done = measure_cell(self.engine, self.arms, cell, slots, self.options, self.clock)
        self.result.cells.append(done)
        self._peak(done.peak_bytes)
        self.bandwidth.measure()
        return done

    def close(self) -> None:
        """Give the sessions of the cells back."""
        for session in self.sessions:
            session.close()

    def finish(self) -> None:
        """The rate of matrix products, where prompts are held against it, and the peak."""
        if self.result.prompts:
            host = not self.clock.events
            dtype = torch.bfloat16 if self.plan.manifest.numerics.compute == "bf16" else torch.float32
            self.result.matmul = matmul_rate(self.clock, 512 if host else 8192, dtype, 5 if host else 10)
        self.bandwidth.release()

    def _peak(self, found: int | None) -> None:
        memory = self.result.memory
        if found is not None:
            memory.peak = max(found, memory.peak or 0)
