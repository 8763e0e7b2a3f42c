"""The passes from a checked graph to one that can be lowered, and the runner that can dump and verify between them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dsv41c.compiler.passes.fuse import fuse
from dsv41c.compiler.passes.liveness import liveness
from dsv41c.compiler.passes.order import order
from dsv41c.compiler.passes.place import place
from dsv41c.compiler.passes.program import Call, Lifetime, Program, Region, Transfer
from dsv41c.compiler.passes.rows import rows
from dsv41c.compiler.passes.segment import segment
from dsv41c.compiler.passes.shards import shards
from dsv41c.compiler.passes.transfers import transfers

__all__ = ["PIPELINE", "Call", "Lifetime", "Pass", "Program", "Region", "Transfer", "run"]


@dataclass(frozen=True, slots=True)
class Pass:
    """One step: takes a program, returns a new one. `needs` names what earlier passes must have given."""

    name: str
    run: Callable[[Program], Program]
    needs: tuple[str, ...] = ()
    gives: tuple[str, ...] = ()


PIPELINE: tuple[Pass, ...] = (
    Pass("place", place, gives=("stages",)),
    Pass("shards", shards, needs=("stages",)),
    Pass("transfers", transfers, needs=("stages",), gives=("transfers",)),
    Pass("order", order, needs=("transfers",), gives=("order",)),
    Pass("liveness", liveness, needs=("order",), gives=("lifetimes",)),
    Pass("segment", segment, needs=("order",), gives=("regions",)),
    Pass("fuse", fuse, needs=("regions",), gives=("calls",)),
    Pass("rows", rows, needs=("regions",), gives=("tail_rows",)),
)


def run(
    program: Program,
    *,
    pipeline: tuple[Pass, ...] = PIPELINE,
    dump: Path | None = None,
    verify: bool = False,
) -> Program:
    """Run the passes in order.

    `dump` names a folder that gets `NN-name.txt` after each pass. `verify` runs the graph checks after each pass: a
    graph that a pass broke is our bug, not the user's, and a `ValueError`.
    """
    given: set[str] = set()
    for number, step in enumerate(pipeline, start=1):
        program = step.run(program)
        if dump is not None:
            dump.mkdir(parents=True, exist_ok=True)
            (dump / f"{number:02d}-{step.name}.txt").write_text(str(program), encoding="utf-8")
        given.update(step.gives)
        if verify:
            _verify(program, step.name, placed="transfers" in given)
    return program


def _verify(program: Program, name: str, *, placed: bool) -> None:
    from dsv41c.compiler.checks import check_graph
    from dsv41c.diagnostics import has_errors

    findings = check_graph(program.graph, program.devices if placed else None)
    if has_errors(findings):
        raise ValueError(f"pass {name} broke the graph: " + "; ".join(f"{d.code}: {d.message}" for d in findings))
