"""What sets off the codes of lowering (6xx): a catalogue without a kernel for an op, and blocks beyond the kernels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from dsv41c.compiler import passes
from dsv41c.compiler.build import build
from dsv41c.compiler.plan import Plan, compile_spec
from dsv41c.compiler.plan.lower import missing_kernels
from dsv41c.compiler.spec import load
from dsv41c.diagnostics import Diagnostic
from dsv41c.kernels.catalog import OPS


def _attend_on(*families: str) -> Callable[[Path], list[Diagnostic]]:
    def trigger(_: Path) -> list[Diagnostic]:
        loaded = load("toy")
        assert loaded.spec is not None
        program = passes.run(passes.Program(loaded.spec, loaded.spans, build(loaded.spec, loaded.spans)))
        return missing_kernels(program, {**OPS, "attend": replace(OPS["attend"], families=families)})

    return trigger


def _blocks_of(size: int) -> Callable[[Path], Plan]:
    return lambda _: compile_spec(load("toy", target="cuda", sets=(f"indexer.candidate_block_size={size}",)))


TRIGGERS = {
    "DSV601": (_attend_on("cuda"), _attend_on("cuda", "cpu")),
    "DSV602": (_blocks_of(8192), _blocks_of(4096)),
}
