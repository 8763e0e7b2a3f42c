"""`bench`: decode steps and prompts of a plan, timed against what had to move."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from dsv41c.compiler.cli.console import Console
from dsv41c.compiler.cli.faults import show
from dsv41c.compiler.cli.files import expect_plan
from dsv41c.compiler.cli.parsing import UsageError
from dsv41c.compiler.cli.run import limit_threads

if TYPE_CHECKING:
    from dsv41c.runtime.bench.cell import CellResult
    from dsv41c.runtime.bench.options import BenchOptions, Cell
    from dsv41c.runtime.bench.run import BenchResult
    from dsv41c.runtime.manifest import Manifest
    from dsv41c.runtime.plan import Plan
    from dsv41c.runtime.stages.world import World

RANDOM = "random"


def work(arguments: Namespace, console: Console) -> int:
    """Measure, and print a table or JSON. Each cell is told of when it is done, so that no run is for nothing."""
    if arguments.cells and (arguments.batch is not None or arguments.context is not None):
        raise UsageError("`--cell` has a batch and a context of its own; leave out `--batch` and `--context`")
    if arguments.stored_experts is not None and arguments.weights != RANDOM:
        raise UsageError("`--stored-experts` is for random weights; a checkpoint has the experts that it has")
    expect_plan(arguments.plan)
    if arguments.against is not None:
        expect_plan(arguments.against)
    limit_threads(console)
    with console.step("import the runtime"):
        from dsv41c.runtime.bench import report
        from dsv41c.runtime.bench.run import run_bench
        from dsv41c.runtime.plan import load_plan
        from dsv41c.runtime.stages.world import joined, were_started
    plan = load_plan(Path(arguments.plan), allow_edited=arguments.allow_edited)
    show(console, plan.warnings)
    against = None
    if arguments.against is not None:
        against = load_plan(Path(arguments.against), allow_edited=arguments.allow_edited)
        show(console, against.warnings)
    if were_started():
        with joined(plan.manifest) as world:
            return _stages(arguments, console, plan, against, world)
    if len(plan.manifest.target.devices) > 1:
        return _stages(arguments, console, plan, against, None)
    if against is not None and plan.manifest.target.tensor_parallel == 1:
        raise UsageError("`--against` is for plans on several devices; one on a single device has arms to compare")

    def told(result: BenchResult, cell: CellResult) -> None:
        console.say("\n".join(report.cell_lines(report.cell_data(result, cell))))

    options = _options(arguments, plan.manifest)
    result = run_bench(plan, options, say=console.say, on_cell=told if arguments.json else None)
    found = report.data(result)
    console.result(json.dumps(found, indent=1) + "\n" if arguments.json else report.text(found))
    return 0


def _stages(arguments: Namespace, console: Console, plan: Plan, against: Plan | None, world: World | None) -> int:
    """Measure a plan on several devices; the first process speaks for all."""
    from dsv41c.runtime.bench import stages_report
    from dsv41c.runtime.bench.stages import run_stages_bench

    if arguments.arms is not None or arguments.profile:
        raise UsageError("`--arms` and `--profile` are for plans on one device; one on several has arms of its own")
    speaks = world is None or world.rank == 0
    options = _options(arguments, plan.manifest)
    result = run_stages_bench(plan, options, world=world, against=against, say=console.say if speaks else None)
    if speaks:
        found = stages_report.data(result)
        console.result(json.dumps(found, indent=1) + "\n" if arguments.json else stages_report.text(found))
    return 0


def _options(arguments: Namespace, manifest: Manifest) -> BenchOptions:
    from dsv41c.runtime.bench.options import BenchOptions, Prompt

    return BenchOptions(
        cells=_cells(arguments, manifest),
        weights=None if arguments.weights == RANDOM else Path(arguments.weights),
        stored_experts=arguments.stored_experts,
        **({} if arguments.arms is None else {"arms": arguments.arms}),
        prompts=tuple(Prompt(tokens, kinds) for tokens, kinds in arguments.prefill),
        steps=arguments.steps,
        rounds=arguments.rounds,
        seed=arguments.seed,
        profile=arguments.profile,
        budget=arguments.budget,
        label=arguments.label,
    )


def _cells(arguments: Namespace, manifest: Manifest) -> tuple[Cell, ...]:
    """The cells that are asked for; by default one session of 1,024 tokens, or of as many as the plan has room for."""
    from dsv41c.runtime.bench.options import Cell

    usual = min(1024, manifest.runtime.max_context)
    asked = arguments.cells or [(arguments.batch, arguments.context)]
    return tuple(Cell(batch or 1, context or usual) for batch, context in asked)
