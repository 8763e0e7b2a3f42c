"""What sets off the codes of estimates (83x), and the same mended."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dsv41c.compiler.estimate import Sizes, estimate, faults
from dsv41c.compiler.plan import compile_spec
from dsv41c.compiler.spec import load
from dsv41c.diagnostics import Diagnostic


def _host(size: int) -> Callable[[Path], list[Diagnostic]]:
    return lambda _: faults(estimate(compile_spec(load("toy")).manifest, Sizes(host=size)))


TRIGGERS = {"DSV830": (_host(1 << 20), _host(1 << 34))}
