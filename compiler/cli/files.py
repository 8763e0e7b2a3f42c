"""Files of the command line: `-` for the standard streams, whole or not at all, faults with codes."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

from dsv41c.compiler.cli.console import Console
from dsv41c.diagnostics import Diagnostic, Span, UserFault
from dsv41c.whole import replacing


def cannot_write(path: str, reason: str, help_text: str = "choose another place") -> UserFault:
    """The fault of a place that cannot take a result."""
    return UserFault([Diagnostic("DSV154", f"`{path}` cannot be written: {reason}", Span(path), help=help_text)])


def expect_plan(path: str) -> None:
    """Raise `UserFault` (DSV117) where there is no folder that could be a plan."""
    try:
        found = Path(path).is_dir()
    except (OSError, ValueError):
        found = False
    if not found:
        message = f"there is no plan folder `{path}`"
        raise UserFault([Diagnostic("DSV117", message, Span(path), help=_way_to_a_plan(path))])


def _way_to_a_plan(path: str) -> str:
    from dsv41c.compiler.spec import shipped_names

    file = Path(path)
    try:
        there, inside = file.is_file(), (file.parent / "manifest.json").is_file()
    except (OSError, ValueError):
        there = inside = False
    if there and inside:
        return f"give the plan's folder: `{file.parent}`"
    if path in shipped_names() or (there and file.suffix in (".yaml", ".yml")):
        return f"this is a spec; make a plan of it: `dsv41c compile {path} -o {file.stem}.plan`"
    return "give the folder that `dsv41c compile SPEC -o FOLDER` made"


def expect_writable(path: str) -> None:
    """Raise `UserFault` (DSV154) where a file could not be put, before work is done for it."""
    if path == "-":
        return
    expect_parent(path)
    if Path(path).is_dir():
        raise cannot_write(path, "it is a folder")
    if Path(path).exists() and not Path(path).is_file():  # a file that took its place would end the device or pipe
        raise cannot_write(path, "it is no plain file")


def expect_parent(path: str) -> None:
    """Raise `UserFault` (DSV154) where nothing can be put at a path: no folder to hold it, or none to write in."""
    try:
        parent = Path(path).parent
        if not parent.is_dir():
            make = f"make it first: mkdir -p {shlex.quote(str(parent))}"
            raise cannot_write(path, f"there is no folder `{parent}`", make)
        if not os.access(parent, os.W_OK):
            raise cannot_write(path, f"the folder `{parent}` is not writable")
    except (OSError, ValueError) as error:
        raise cannot_write(path, reason(error)) from None


def expect_no_other(path: str, text: str, help_text: str) -> None:
    """Raise `UserFault` (DSV154) where a file holds something else than a text that is about to replace it."""
    if path == "-" or not Path(path).exists():
        return
    data = text.encode()
    try:  # what has another size need not be read
        same = Path(path).stat().st_size == len(data) and Path(path).read_bytes() == data
    except OSError as error:
        raise cannot_write(path, reason(error)) from None
    if not same:
        raise cannot_write(path, "it is there with another text, perhaps edited by hand", help_text)


def write_text(path: str, text: str, console: Console) -> None:
    """Write a text to a file, whole or not at all, or to standard output."""
    if path == "-":
        console.result(text)
        return
    expect_writable(path)
    try:
        with replacing(Path(path)) as temporary:
            temporary.write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        raise cannot_write(path, reason(error)) from None


def read_text(path: str) -> str:
    """The text of a file, or of standard input. Raises `UserFault` where there is none."""
    from dsv41c.compiler.source import MAX_BYTES, decode, read_file

    if path == "-":
        return decode(sys.stdin.buffer.read(MAX_BYTES + 1), "<stdin>")
    return decode(read_file(path), path)


def reason(error: Exception) -> str:
    """What an operating system error says, without its number and path."""
    return (error.strerror or str(error)).lower() if isinstance(error, OSError) else str(error)
