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
from dsv41c.diagnostics import Diagnostic, Span, UserFault, has_errors
from dsv41c.report.escape import escape

if TYPE_CHECKING:
    from dsv41c.compiler.draw.facts import Facts
    from dsv41c.compiler.ir import Graph
    from dsv41c.compiler.passes import Program
    from dsv41c.runtime.manifest import Manifest

MANIFEST = "manifest.json"
SPEC = "spec.yaml"
_AGAIN = "compile the plan again: `dsv41c compile SPEC -o DIR`"


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
    folder = _plan(ref, arguments)
    manifest = None if folder is None else _manifest(folder)
    loaded, findings = load_spec(ref if folder is None else str(folder / SPEC), arguments, console)
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
    if folder is not None and manifest is not None:
        _expect_same(program, manifest, folder)
    texts = {names[file]: text for file, text in loaded.sources.items()}
    found = facts(program, texts) if whole else Facts()
    return Placed(called, program.graph, program.devices, loaded.sources, found, program)


def _plan(given: str, arguments: Namespace) -> Path | None:
    """The folder, where a plan is given."""
    try:
        plan = (Path(given) / MANIFEST).is_file()
    except (OSError, ValueError):
        plan = False
    if not plan:
        return None
    for name, option in (("target", "--target"), ("sets", "--set")):
        if getattr(arguments, name):
            raise UsageError(f"`{given}` is a plan, and `{option}` goes with specs only")
    return Path(given)


def _manifest(folder: Path) -> Manifest:
    """The manifest of a plan whose spec, in which everything is resolved, is the one that was compiled.

    A plan is drawn from its spec, which knows more than the manifest. Raises `UserFault`: DSV801 to DSV804, DSV811.
    """
    from dsv41c.runtime.manifest import sha256
    from dsv41c.runtime.manifest_text import read
    from dsv41c.runtime.plan_code import MAX_SOURCE_BYTES

    manifest, spec = read(folder), folder / SPEC
    if spec.is_file():
        with spec.open("rb") as file:
            data = file.read(MAX_SOURCE_BYTES + 1)
        if sha256(data) != manifest.spec_sha256:
            message = f"`{SPEC}` is not the file that was compiled: its hash is not the manifest's"
            help_text = f"to draw it as it is now, give the file: `{spec}`; or {_AGAIN}"
            raise UserFault([Diagnostic("DSV811", message, Span(str(spec)), help=help_text)])
    return manifest


def _expect_same(program: Program, manifest: Manifest, folder: Path) -> None:
    """Raise `UserFault` (DSV804) where what is drawn is not what the manifest says.

    It was edited then, or made by a version that compiles otherwise.
    """
    drawn = {op.id: (op.kind, dict(op.reads), dict(op.writes)) for op in program.graph.ops}
    said = {op.id: (op.kind, op.reads, op.writes) for op in manifest.ops}
    other = [f"`{op}`" for op in {**said, **drawn} if drawn.get(op) != said.get(op)]
    if tuple(stage.device for stage in manifest.stages) != program.devices:
        other.append("the devices")
    if other:
        message = f"the manifest differs from what `{SPEC}` compiles to here, first in {other[0]}"
        raise UserFault([Diagnostic("DSV804", message, Span(str(folder / MANIFEST)), help=_AGAIN)])
