"""Graphs given as text where a spec is expected: what `dsv41c graph` printed, perhaps edited since."""

from __future__ import annotations

import re
from argparse import Namespace
from typing import TYPE_CHECKING

from dsv41c.compiler.cli.parsing import UsageError
from dsv41c.diagnostics import Diagnostic, UserFault

if TYPE_CHECKING:
    from dsv41c.compiler.ir import Graph

_OPENING = re.compile(r"(?:#[^\n]*\n)*+dsv41c\.graph/")
_SPEC_ONLY = {"target": "--target", "sets": "--set", "checkpoint": "--checkpoint"}


def is_graph(text: str) -> bool:
    """Whether a text is meant as a graph: its first line that is no comment names the format, of any version."""
    return _OPENING.match(text) is not None


def judged_graph(text: str, file: str, arguments: Namespace) -> tuple[Graph | None, tuple[Diagnostic, ...]]:
    """The graph of a text (None where it cannot be read) and every finding about it.

    Findings point into the text itself. A graph is complete: what changes or measures a spec does not go with it, and
    raises `UsageError`.
    """
    from dsv41c.compiler.checks import check_graph
    from dsv41c.compiler.ir import parse
    from dsv41c.compiler.source import refuse_strange

    for name, option in _SPEC_ONLY.items():
        if getattr(arguments, name, None):
            raise UsageError(f"`{file}` is a graph, and `{option}` goes with specs only")
    try:
        refuse_strange(text, file)
        return parse(text, file), check_graph(parse(text, file, here=True))
    except UserFault as fault:
        return None, fault.diagnostics


def stage_names(graph: Graph) -> tuple[str, ...]:
    """A name for each stage of a graph, whose text does not say on which devices they are."""
    last = max((op.stage for op in graph.ops), default=0)
    return tuple(f"stage:{stage}" for stage in range(last + 1))
