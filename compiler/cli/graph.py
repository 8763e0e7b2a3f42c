"""`graph`: the graph of a spec or a plan (or one given as text), or what a selection of it answers."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from dsv41c.compiler.cli.console import Console
from dsv41c.compiler.cli.faults import Refused, show
from dsv41c.compiler.cli.files import expect_writable, write_text
from dsv41c.compiler.cli.graph_text import is_graph, judged_graph, stage_names
from dsv41c.compiler.cli.parsing import UsageError
from dsv41c.compiler.cli.specs import load_spec, sound
from dsv41c.diagnostics import UserFault, has_errors

if TYPE_CHECKING:
    from dsv41c.compiler.draw.facts import Facts
    from dsv41c.compiler.ir import Graph

MANIFEST = "manifest.json"
VIEWS = ("html", "svg")


def work(arguments: Namespace, console: Console) -> int:
    """Draw; the graph is the placed one, so that what crosses devices shows."""
    expect_writable(arguments.output)
    if arguments.format in VIEWS and arguments.level == "op":
        raise UsageError(f"`--format {arguments.format}` draws by layer; `--level op` goes with the other formats")
    graph, devices, sources, facts = _placed(arguments, console)
    from dsv41c.compiler.draw import Drawing, draw
    from dsv41c.compiler.select import SOURCE, select

    selection = None
    if arguments.select is not None:
        try:
            selection = select(graph, arguments.select, devices)
        except UserFault as fault:
            raise Refused(fault.diagnostics, {**sources, SOURCE: arguments.select}) from None
    with console.step("draw"):
        text = draw(Drawing(graph, selection, devices, arguments.level, arguments.hide, facts), arguments.format)
    write_text(arguments.output, text, console)
    return 0


def _placed(arguments: Namespace, console: Console) -> tuple[Graph, tuple[str, ...], Mapping[str, str], Facts]:
    """The graph of a spec, or the one that a text holds; the device of each stage; texts for snippets; more of it."""
    loaded, findings = load_spec(_file(arguments), arguments, console)
    text = loaded.sources.get(loaded.file, "")
    from dsv41c.compiler.draw.facts import Facts, facts

    if is_graph(text):
        graph, findings = judged_graph(text, loaded.file, arguments)
        if graph is None or has_errors(findings):
            raise Refused(findings, loaded.sources)
        show(console, findings, loaded.sources)
        return graph, stage_names(graph), loaded.sources, Facts()
    spec = sound(loaded, findings, console)
    from dsv41c.compiler import passes
    from dsv41c.compiler.build import build

    whole = arguments.format in VIEWS  # the others show nothing that later passes find
    with console.step("build and place"):
        spans = loaded.spans.named(loaded.names)  # as a plan names files: the same text in every folder
        program = passes.Program(spec, spans, build(spec, spans))
        placed = passes.run(program, pipeline=passes.PIPELINE if whole else passes.PIPELINE[:4])
    texts = {loaded.names.get(file, file): text for file, text in loaded.sources.items()}
    return placed.graph, placed.devices, loaded.sources, facts(placed, texts) if whole else Facts()


def _file(arguments: Namespace) -> str:
    """The spec's file: that of a plan, in which everything is resolved, where a plan folder is given."""
    given = str(arguments.spec)
    try:
        plan = (Path(given) / MANIFEST).is_file()
    except (OSError, ValueError):
        plan = False
    if not plan:
        return given
    for name, option in (("target", "--target"), ("sets", "--set")):
        if getattr(arguments, name):
            raise UsageError(f"`{given}` is a plan, and `{option}` goes with specs only")
    return str(Path(given) / "spec.yaml")
