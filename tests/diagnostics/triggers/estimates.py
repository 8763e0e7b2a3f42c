"""What sets off the codes of estimates (83x)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dsv41c.compiler.estimate import Sizes, estimate, faults
from dsv41c.compiler.plan import compile_spec
from dsv41c.compiler.spec import load
from dsv41c.diagnostics import Diagnostic


def _too_small(_: Path) -> list[Diagnostic]:
    return faults(estimate(compile_spec(load("toy")).manifest, Sizes(host=1 << 20)))


TRIGGERS: dict[str, Callable[[Path], list[Diagnostic]]] = {"DSV830": _too_small}
