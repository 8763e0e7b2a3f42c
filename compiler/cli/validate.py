"""`validate`: every finding about some specs or graphs, and about a checkpoint from its headers alone."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dsv41c.compiler.cli import mending
from dsv41c.compiler.cli.console import Console
from dsv41c.compiler.cli.faults import exit_code
from dsv41c.compiler.cli.files import expect_writable
from dsv41c.compiler.cli.graph_text import is_graph, judged_graph
from dsv41c.compiler.cli.parsing import UsageError
from dsv41c.compiler.cli.specs import load_spec
from dsv41c.diagnostics import Diagnostic, UserFault, has_errors, ordered
from dsv41c.report.escape import escape
from dsv41c.words import counted

if TYPE_CHECKING:
    from dsv41c.compiler.mend import Mended
    from dsv41c.compiler.spec import Loaded


@dataclass(frozen=True, slots=True)
class _Judged:
    """A spec with every finding; those that bring edits bring ones that were tried."""

    ref: str
    loaded: Loaded
    found: tuple[Diagnostic, ...]
    mended: Mended | None


def work(arguments: Namespace, console: Console) -> int:
    """Report on all specs together; exit 1 if any has an error."""
    if arguments.specs.count("-") > 1:
        raise UsageError("`-` can be given once: standard input is read once")
    mending.check_arguments(arguments)
    from dsv41c.report import render

    judged = [_judge(ref, arguments, console) for ref in _each_once(arguments.specs)]
    diffs = ""
    if arguments.write:
        judged = _written(judged, arguments, console)
    elif arguments.fix:
        diffs = "".join(mending.diff(each.loaded.file, each.mended) for each in judged if each.mended)
    for each in judged:
        if not has_errors(each.found):
            console.say(f"{escape(each.loaded.file)}: ok")
    shown = ordered(_findings_once(finding for each in judged for finding in each.found))
    sources = {file: text for each in judged for file, text in each.loaded.sources.items()}
    report = render(shown, sources, arguments.format, color=console.colored(sys.stderr if diffs else sys.stdout))
    if diffs:
        mendable = sum(len(each.mended.gone) for each in judged if each.mended)
        way = "the diff shows how" if "-" in arguments.specs else "`--fix --write` does it"
        console.say(f"{report}{mendable} of {counted(len(shown), 'finding')} can be mended: {way}")
    console.result(diffs or report)
    return exit_code(shown)


def _each_once(refs: Sequence[str]) -> list[str]:
    """The specs that were named, each file once however it was spelt."""
    return list({ref if ref == "-" else os.path.realpath(ref): ref for ref in reversed(refs)}.values())[::-1]


def _findings_once(found: Iterable[Diagnostic]) -> list[Diagnostic]:
    """Each finding once: one about a spec that others extend is theirs too, and has its edits where it is mended."""
    once: dict[Diagnostic, Diagnostic] = {}
    for finding in found:
        known = replace(finding, fix=(), left_out=0)
        before = once.get(known, finding)
        chosen = finding if finding.fix else before
        once[known] = replace(chosen, left_out=max(before.left_out, finding.left_out))
    return list(once.values())


def _judge(ref: str, arguments: Namespace, console: Console, instead: str | None = None) -> _Judged:
    loaded, found = load_spec(ref, arguments, console, instead)
    text, mended = loaded.sources.get(loaded.file, ""), None
    if is_graph(text):
        found = judged_graph(text, loaded.file, arguments)[1]
    else:
        mended = mending.tried(ref, loaded, found, arguments, console) if instead is None else None
        if arguments.fix and instead is None:
            mending.tell_others(loaded, found, arguments.specs, console)
        found = mending.offered(found, mended)
    if not is_graph(text) and arguments.checkpoint is not None and not has_errors(found):
        found = (*found, *_weights(loaded, arguments.checkpoint, console))
    return _Judged(ref, loaded, found, mended if mended is not None and mended.gone else None)


def _written(judged: Sequence[_Judged], arguments: Namespace, console: Console) -> list[_Judged]:
    """The same after every file that can be mended was."""
    for each in judged:
        if each.mended is not None:
            expect_writable(each.loaded.file)
    mended = [each for each in judged if each.mended is not None]
    for each in mended:
        assert each.mended is not None
        mending.write(each.loaded.file, each.mended, console)
    if not mended:
        return list(judged)
    # All of them anew: one may extend another.
    texts = [each.mended.after if each.mended else each.loaded.sources.get(each.loaded.file) for each in judged]
    return [_judge(each.ref, arguments, console, text) for each, text in zip(judged, texts, strict=True)]


def _weights(loaded: Loaded, path: str, console: Console) -> tuple[Diagnostic, ...]:
    """What does not fit between a spec and a checkpoint."""
    from dsv41c.compiler import compile_spec
    from dsv41c.compiler.importing import other_model
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
        assert loaded.spec is not None, "it was compiled"
        return (*matching.diagnostics, *other_model(loaded.spec, checkpoint))
    return matching.diagnostics
