"""What makes the codes of graph texts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dsv41c.compiler.ir import parse
from dsv41c.diagnostics import Diagnostic, UserFault


def _unreadable_line(_: Path) -> list[Diagnostic]:
    try:
        parse('dsv41c.graph/1 "x"\nlayers.0.attn.mix <- streams\n')
    except UserFault as fault:
        return list(fault.diagnostics)
    return []


TRIGGERS: dict[str, Callable[[Path], list[Diagnostic]]] = {"DSV130": _unreadable_line}
