"""`validate --fix`: a diff of what can be mended, or the mended files themselves."""

from __future__ import annotations

import difflib
import re
import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from dsv41c.compiler.cli.console import Console
from dsv41c.compiler.cli.files import cannot_write, expect_writable, reason
from dsv41c.compiler.cli.parsing import UsageError
from dsv41c.compiler.cli.specs import load_spec
from dsv41c.diagnostics import Diagnostic
from dsv41c.report.escape import escape
from dsv41c.whole import replacing
from dsv41c.words import counted

if TYPE_CHECKING:
    from dsv41c.compiler.mend import Mended
    from dsv41c.compiler.spec import Loaded

_DIFFS = ("text", "concise")  # forms that can stand beside a diff


def check_arguments(arguments: Namespace) -> None:
    """Raise `UsageError` for options that do not go together."""
    if arguments.write and not arguments.fix:
        raise UsageError("`--write` goes with `--fix`")
    if arguments.write and "-" in arguments.specs:
        raise UsageError("standard input cannot be written: leave `--write` out to get a diff")
    if arguments.fix and not arguments.write and arguments.format not in _DIFFS:
        raise UsageError(f"`--fix` prints a diff; `--format {arguments.format}` by itself has the edits as data")


def tried(
    ref: str, loaded: Loaded, found: Sequence[Diagnostic], arguments: Namespace, console: Console
) -> Mended | None:
    """What can be mended in the text of a spec; None where no finding brings edits."""
    from dsv41c.compiler.mend import mend
    from dsv41c.compiler.spec import shipped_names

    text = loaded.sources.get(loaded.file)
    if text is None or ref in shipped_names() or not any(each.fix for each in found):
        return None
    quiet = replace(console, settings=replace(console.settings, debug=0))
    with console.step(f"mend {ref}"):
        return mend(loaded.file, text, found, lambda new: load_spec(ref, arguments, quiet, new)[1])


def offered(found: Sequence[Diagnostic], mended: Mended | None) -> tuple[Diagnostic, ...]:
    """The findings with those edits alone that were seen to help."""
    gone = mended.gone if mended is not None else ()
    return tuple(each if each in gone else replace(each, fix=()) for each in found)


def tell_others(loaded: Loaded, found: Sequence[Diagnostic], given: Sequence[str], console: Console) -> None:
    """Say of findings elsewhere (an override, a spec that is extended) that only what was given is mended."""
    own = {loaded.file, *given}
    for each in found:
        if any(edit.span.file not in own for edit in each.fix):
            place, file = escape(str(each.span)), escape(loaded.file)
            console.say(f"{place}: {each.code} is not mended, since it is not in {file}")


def diff(file: str, mended: Mended) -> str:
    """A unified diff as `patch -p0` takes it. On a terminal, what could move the cursor is escaped."""
    name = "spec.yaml" if file == "<stdin>" else escape(file)
    before, after = _lines(mended.before), _lines(mended.after)
    rows = []
    for row in difflib.unified_diff(before, after, name, name):
        text = row.removesuffix("\n")
        rows.append(f"{escape(text) if sys.stdout.isatty() else text}\n")
        if not row.endswith("\n"):
            rows.append("\\ No newline at end of file\n")
    return "".join(rows)


def write(file: str, mended: Mended, console: Console) -> None:
    """Put the mended text in the place of a file, whole or not at all. Raises `UserFault` (DSV154)."""
    expect_writable(file)
    try:
        if Path(file).read_bytes() != mended.before.encode():
            raise cannot_write(file, "it has changed while it was read", "run again")
        with replacing(Path(file).resolve()) as temporary:  # a link stays a link
            temporary.write_bytes(mended.after.encode())
    except OSError as error:
        raise cannot_write(file, reason(error)) from None
    console.say(f"{escape(file)}: {counted(len(mended.gone), 'finding')} mended")


def _lines(text: str) -> list[str]:
    return re.findall(r"[^\n]*\n|[^\n]+", text)
