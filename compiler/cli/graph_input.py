"""What `graph` draws: the graph of a spec, of a plan, or one given as text, placed on its devices."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dsv41c.compiler.cli.console import Console
from dsv41c.compiler.cli.faults import Refused, show
from dsv41c.compiler.cli.graph_text import is_graph, judged_graph, stage_names
from dsv41c.compiler.cli.parsing import UsageError
from dsv41c.compiler.cli.specs import load_spec, sound
from dsv41c.diagnostics import has_errors
from dsv41c.report.escape import escape

if TYPE_CHECKING:
    from dsv41c.compiler.draw.facts import Facts
    from dsv41c.compiler.ir import Graph
    from dsv41c.compiler.passes import Program

MANIFEST = "manifest.json"


@dataclass(frozen=True, slots=True)
class Placed:
    """A graph with the device of each stage, the texts that places point into, and what later passes found, if asked.

    `program` is None of a graph that was given as text; `called` is how the command line says it.
    """

    called: str
    graph: Graph
    devices: tuple[str, ...]
    sources: Mapping[str, str]
    facts: Facts
    program: Program | None


def placed(ref: str, arguments: Namespace, console: Console, *, whole: bool) -> Placed:
    """The placed graph, so that what crosses devices shows. Tells warnings; raises `Refused` where there are errors."""
    loaded, findings = load_spec(_file(ref, arguments), arguments, console)
    text = loaded.sources.get(loaded.file, "")
    overrides = ["--target", arguments.target] if arguments.target else []
    overrides += [word for given in arguments.sets for word in ("--set", given)]
    called = escape(" ".join(["<stdin>" if ref == "-" else ref, *overrides]))
    from dsv41c.compiler.draw.facts import Facts, facts

    if is_graph(text):
        graph, findings = judged_graph(text, loaded.file, arguments)
        if graph is None or has_errors(findings):
            raise Refused(findings, loaded.sources)
        show(console, findings, loaded.sources)
        return Placed(called, graph, stage_names(graph), loaded.sources, Facts(), None)
    spec = sound(loaded, findings, console)
    from dsv41c.compiler import passes
    from dsv41c.compiler.build import build

    with console.step("build and place"):
        # As a plan names files, the same text in every folder; and a file's name cannot end a line.
        names = {file: escape(loaded.names.get(file, file)) for file in loaded.sources}
        spans = loaded.spans.named(names)
        program = passes.Program(spec, spans, build(spec, spans))
        program = passes.run(program, pipeline=passes.PIPELINE if whole else passes.PIPELINE[:4])
    texts = {names[file]: text for file, text in loaded.sources.items()}
    found = facts(program, texts) if whole else Facts()
    return Placed(called, program.graph, program.devices, loaded.sources, found, program)


def _file(given: str, arguments: Namespace) -> str:
    """The spec's file: that of a plan, in which everything is resolved, where a plan folder is given."""
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
