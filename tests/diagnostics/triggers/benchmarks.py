"""What sets off each code of benchmarks (88x), and the same mended."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

from dsv41c.compiler.plan import compile_spec
from dsv41c.compiler.spec import load
from dsv41c.diagnostics import Diagnostic
from dsv41c.runtime.bench.options import BenchOptions, Cell, Prompt, not_comparable, not_measurable
from dsv41c.runtime.bench.room import too_large
from dsv41c.runtime.manifest import Manifest

# Many sessions of a million tokens: more than any one machine has.
LARGE = ("runtime.max_context=1048576", "runtime.max_sessions=65536")


@cache
def manifest(name: str = "toy", sets: tuple[str, ...] = ()) -> Manifest:
    return compile_spec(load(name, sets=sets)).manifest


def _asked(**options: object) -> Callable[[Path], list[Diagnostic]]:
    def trigger(_: Path) -> list[Diagnostic]:
        asked = {"cells": (Cell(1, 16),), **options}
        return not_measurable(manifest(), BenchOptions(**asked))  # type: ignore[arg-type]

    return trigger


def _large(name: str, *sets: str) -> Callable[[Path], list[Diagnostic]]:
    """Of a plan on one CPU, a machine's own memory."""

    def trigger(_: Path) -> list[Diagnostic]:
        return too_large([(manifest(name, sets), {0: "cpu:0"})], BenchOptions((Cell(1, 16),)))

    return trigger


def _against(*sets: str) -> Callable[[Path], list[Diagnostic]]:
    return lambda _: not_comparable(manifest(), manifest("toy", sets), BenchOptions((Cell(1, 16),)))


TRIGGERS = {
    "DSV880": (_asked(cells=(Cell(5, 16),)), _asked(cells=(Cell(4, 16),))),
    "DSV881": (_asked(prompts=(Prompt(1000),)), _asked(prompts=(Prompt(100),))),
    "DSV882": (_asked(arms=("layers",)), _asked(arms=("layer",))),
    "DSV883": (_asked(stored_experts=1), _asked(stored_experts=2)),
    "DSV884": (_large("deepseek-v4.1-flash", *LARGE), _large("toy")),
    "DSV885": (_against('placement.devices=["cpu:0","cpu:1"]', "placement.layer_ends=[3,8]"), _against()),
}
