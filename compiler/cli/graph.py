"""`graph`: the graph of a spec (or one given as text), or what a selection of it answers, as text or picture."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from typing import TYPE_CHECKING

from dsv41c.compiler.cli.console import Console
from dsv41c.compiler.cli.faults import Refused, show
from dsv41c.compiler.cli.files import expect_writable, write_text
from dsv41c.compiler.cli.graph_text import is_graph, judged_graph, stage_names
from dsv41c.compiler.cli.specs import load_spec, sound
from dsv41c.diagnostics import UserFault, has_errors

if TYPE_CHECKING:
    from dsv41c.compiler.ir import Graph


def work(arguments: Namespace, console: Console) -> int:
    """Draw; the graph is the placed one, so that what crosses devices shows."""
    expect_writable(arguments.output)
    graph, devices, sources = _placed(arguments, console)
    from dsv41c.compiler.draw import Drawing, draw
    from dsv41c.compiler.select import SOURCE, select

    selection = None
    if arguments.select is not None:
        try:
            selection = select(graph, arguments.select, devices)
        except UserFault as fault:
            raise Refused(fault.diagnostics, {**sources, SOURCE: arguments.select}) from None
    with console.step("draw"):
        text = draw(Drawing(graph, selection, devices, arguments.level, arguments.hide), arguments.format)
    write_text(arguments.output, text, console)
    return 0


def _placed(arguments: Namespace, console: Console) -> tuple[Graph, tuple[str, ...], Mapping[str, str]]:
    """The graph of a spec, or the one that a text holds; the device of each stage; texts for snippets."""
    loaded, findings = load_spec(arguments.spec, arguments, console)
    text = loaded.sources.get(loaded.file, "")
    if is_graph(text):
        graph, findings = judged_graph(text, loaded.file, arguments)
        if graph is None or has_errors(findings):
            raise Refused(findings, loaded.sources)
        show(console, findings, loaded.sources)
        return graph, stage_names(graph), loaded.sources
    spec = sound(loaded, findings, console)
    from dsv41c.compiler import passes
    from dsv41c.compiler.build import build

    with console.step("build and place"):
        spans = loaded.spans.named(loaded.names)  # as a plan names files: the same text in every folder
        program = passes.Program(spec, spans, build(spec, spans))
        placed = passes.run(program, pipeline=passes.PIPELINE[:4])
    return placed.graph, placed.devices, loaded.sources
