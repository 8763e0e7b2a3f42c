"""From bytes to text that can be trusted to have lines and columns: size, UTF-8, control characters."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path as FilePath

from dsv41c.diagnostics import Diagnostic, Edit, Span, UserFault

MAX_BYTES = 8 << 20
# What YAML does not allow unescaped, and further line ends that editors and YAML count differently.
_REFUSED = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")
_LINE_END = re.compile(r"\r\n|\r|\n")
# What is open already, as a shell gives it for `<(COMMAND)`: reading it waits for nobody but the one who writes it.
_OPEN = re.compile(r"/dev/stdin|/dev/fd/\d+|/proc/(self|\d+)/fd/\d+")
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def read_file(path: str | FilePath, file: str | None = None) -> bytes:
    """The bytes of a spec or config file. `file` is the name to show. Raises UserFault."""
    name = file or str(path)
    help_text = "give the path of a file that exists and is readable"
    try:
        # A pipe would block and a device never end, so look before opening.
        kind = _other_kind(path)
        if kind is None:
            with open(path, "rb") as stream:
                return stream.read(MAX_BYTES + 1)
        reason = f"it is {kind}, expected a file"
        if kind != _KINDS[stat.S_IFDIR]:
            help_text = "give the path of a plain file, or `-` and the text on standard input"
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) and error.strerror else str(error)).lower()
    span = Span(name.encode("utf-8", "replace").decode())
    raise UserFault([Diagnostic("DSV117", f"cannot read `{span.file}`: {reason}", span, help=help_text)])


def _other_kind(path: str | FilePath) -> str | None:
    """What a path leads to that is no plain file, nor a pipe or terminal that is open already; None of those."""
    kind = stat.S_IFMT(os.stat(path).st_mode)
    if kind in (stat.S_IFIFO, stat.S_IFCHR) and _OPEN.fullmatch(str(path)):
        return None
    return _KINDS.get(kind)


def decode(data: bytes, file: str) -> str:
    """Text of some bytes. Raises UserFault for what is too large or not UTF-8."""
    if len(data) > MAX_BYTES:
        raise UserFault([_too_large(file)])
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        message = "text is UTF-16, expected UTF-8"
        raise UserFault([Diagnostic("DSV102", message, Span(file), help="save the file as UTF-8")])
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        before = data[: error.start].decode("utf-8")
        line, column = position(before, len(before))
        raise UserFault(
            [
                Diagnostic(
                    "DSV102",
                    "text is not UTF-8",
                    Span(file, line, column, line, column + 1),
                    facts=(("byte", f"0x{data[error.start]:02x} at offset {error.start}"),),
                    help="save the file as UTF-8",
                )
            ]
        ) from None


def refuse_strange(text: str, file: str) -> None:
    """Raise UserFault for text that is too large or holds characters that no spec has."""
    if len(text) > MAX_BYTES:
        raise UserFault([_too_large(file)])
    if text.startswith("\ufeff"):
        message = "text starts with a byte order mark"
        span = Span(file, 1, 1, 1, 2)
        fix = (Edit(span, ""),)
        raise UserFault([Diagnostic("DSV104", message, span, help="save the file as plain UTF-8", fix=fix)])
    found = _REFUSED.search(text)
    if found is None:
        return
    line, column = position(text, found.start())
    raise UserFault(
        [
            Diagnostic(
                "DSV103",
                f"character U+{ord(found.group()):04X} is not allowed in text",
                Span(file, line, column, line, column + 1),
                facts=(("such characters", str(len(_REFUSED.findall(text)))),),
                help="remove it, or write it as an escape in a double-quoted string",
            )
        ]
    )


def position(text: str, offset: int) -> tuple[int, int]:
    """Line and column (1-based) of an offset."""
    line, start = 1, 0
    for end in _LINE_END.finditer(text, 0, offset):
        line, start = line + 1, end.end()
    return line, offset - start + 1


def _too_large(file: str) -> Diagnostic:
    return Diagnostic(
        "DSV111",
        f"text is larger than {MAX_BYTES >> 20} MiB, which no spec is",
        Span(file),
        facts=(("limit", f"{MAX_BYTES} bytes"),),
        help="a spec is a few kilobytes; check that this is the file you meant",
    )
