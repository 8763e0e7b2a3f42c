"""`validate`: every finding about some specs or graphs, and about a checkpoint from its headers alone."""

from __future__ import annotations

import sys
from argparse import Namespace
from typing import TYPE_CHECKING

from dsv41c.compiler.cli.console import Console
from dsv41c.compiler.cli.faults import exit_code
from dsv41c.compiler.cli.graph_text import is_graph, judged_graph
from dsv41c.compiler.cli.parsing import UsageError
from dsv41c.compiler.cli.specs import load_spec
from dsv41c.diagnostics import Diagnostic, UserFault, has_errors, ordered
from dsv41c.report.escape import escape
from dsv41c.words import counted

if TYPE_CHECKING:
    from dsv41c.compiler.spec import Loaded


def work(arguments: Namespace, console: Console) -> int:
    """Report on all specs together; exit 1 if any has an error."""
    if arguments.specs.count("-") > 1:
        raise UsageError("`-` can be given once: standard input is read once")
    from dsv41c.report import render

    findings: dict[Diagnostic, None] = {}
    sources: dict[str, str] = {}
    for ref in dict.fromkeys(arguments.specs):
        loaded, found = load_spec(ref, arguments, console)
        text = loaded.sources.get(loaded.file, "")
        if is_graph(text):
            found = judged_graph(text, loaded.file, arguments)[1]
        elif arguments.checkpoint is not None and not has_errors(found):
            found = (*found, *_weights(loaded, arguments.checkpoint, console))
        findings |= dict.fromkeys(found)
        sources |= loaded.sources
        if not has_errors(found):
            console.say(f"{escape(loaded.file)}: ok")
    shown = ordered(findings)
    console.result(render(shown, sources, arguments.format, color=console.colored(sys.stdout)))
    return exit_code(shown)


def _weights(loaded: Loaded, path: str, console: Console) -> tuple[Diagnostic, ...]:
    """What does not fit between a spec and a checkpoint."""
    from dsv41c.compiler import compile_spec
    from dsv41c.runtime.weights.headers import read_checkpoint
    from dsv41c.runtime.weights.match import match

    try:
        with console.step("compile"):
            manifest = compile_spec(loaded).manifest
        with console.step("read headers"):
            checkpoint = read_checkpoint(path)
    except UserFault as fault:
        return fault.diagnostics
    with console.step("match"):
        matching = match(manifest, checkpoint)
    if not matching.failed:
        unused = f", {matching.unused_count} of parts that the text model does not use" if matching.unused else ""
        counts = f"{counted(len(checkpoint.tensors), 'tensor')} for {counted(len(matching.bindings), 'weight')}"
        console.say(f"{escape(str(path))}: {counts}{unused}")
    return matching.diagnostics
