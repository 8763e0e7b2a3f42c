"""What sets off each code of benchmarks (88x)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dsv41c.compiler.plan import compile_spec
from dsv41c.compiler.spec import load
from dsv41c.diagnostics import Diagnostic
from dsv41c.runtime.bench.options import BenchOptions, Cell, Prompt, not_measurable


def _asked(**options: object) -> Callable[[Path], list[Diagnostic]]:
    def trigger(_: Path) -> list[Diagnostic]:
        asked = {"cells": (Cell(1, 16),), **options}
        return not_measurable(compile_spec(load("toy")).manifest, BenchOptions(**asked))  # type: ignore[arg-type]

    return trigger


def _too_large(_: Path) -> list[Diagnostic]:
    """Many sessions of a million tokens: more than any one machine has."""
    sets = ("runtime.max_context=1048576", "runtime.max_sessions=65536")
    return not_measurable(compile_spec(load("deepseek-v4.1-flash", sets=sets)).manifest, BenchOptions((Cell(1, 16),)))


TRIGGERS: dict[str, Callable[[Path], list[Diagnostic]]] = {
    "DSV880": _asked(cells=(Cell(5, 16),)),
    "DSV881": _asked(prompts=(Prompt(1000),)),
    "DSV882": _asked(arms=("layers",)),
    "DSV883": _asked(stored_experts=1),
    "DSV884": _too_large,
}
