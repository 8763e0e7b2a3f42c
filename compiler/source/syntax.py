"""What a YAML parser could not make sense of, in words for whoever wrote the text.

PyYAML's two parsers, the C one and its own, word the same fault differently, and both speak of tokens and productions.
"""

from __future__ import annotations

import re
from typing import Any

from dsv41c.diagnostics import Diagnostic, Edit, Label, Span

# Words of either parser, what they mean, and the way out; the first that is found counts.
_FAULTS: tuple[tuple[tuple[str, ...], str, str], ...] = (
    (
        ("indentation: did not find expected key", "indentation: expected <block end>"),
        "this line is indented like none of those that it could belong to",
        "indent it exactly like the lines beside it",
    ),
    (("',' or ']'",), "a list in brackets goes on without a comma", "put `,` between entries and `]` at the end"),
    (("',' or '}'",), "a map in braces goes on without a comma", "put `,` between entries and `}` at the end"),
    (
        ("mapping values are not allowed",),
        "a second `:` in what is still the value of the key before",
        "indent the line like those beside it, with a space behind each `:`; quote text that holds `: `",
    ),
    (
        ("sequence entries are not allowed",),
        "a list entry stands where none can be",
        "begin the list on a line of its own, below its key",
    ),
    (("'-' indicator",), "a line inside a list does not begin with `- `", "begin it with `- `, or indent it further"),
    (
        ("expected key", "<block end>"),
        "there is more text after the end of a value",
        "quote the whole value, or remove what follows",
    ),
    (("expected ':'",), "a key that no colon with a space follows", "write `key: value`"),
    (("unexpected end of stream",), "quotes that are not closed", "close them"),
    (("cannot start any token",), "no value begins with this character", "quote the value"),
    (
        ("unknown escape",),
        "a backslash in double quotes, and YAML has no such escape",
        "double the backslash, or use single quotes",
    ),
    (
        ("document start",),
        "text goes on after its end",
        "indent the line like the first one; a text is one map",
    ),
    (("node content",), "there is no value here", "write a value, or remove the bracket or comma that asks for it"),
    (("alphabetic or numeric",), "`*` and `&` begin a name here", "quote text that begins with `*` or `&`"),
)
# What is noticed at its end, or the end of the text, and is shown where it begins.
_BEGUN = ("expected ':'", "unexpected end of stream")
_ELSE = "check indentation, colons, and that brackets and quotes are closed"
_BEGINNINGS = {"sequence": "the list", "collection": "the list", "mapping": "the map"}


def syntax(error: Any, text: str, file: str) -> Diagnostic:
    """The finding (DSV101, or DSV105 for a tab) for PyYAML's `YAMLError` about a text."""
    problem = str(getattr(error, "problem", None) or getattr(error, "reason", None) or "cannot be read")
    begun = any(words in problem for words in _BEGUN)
    mark = getattr(error, "context_mark" if begun else "problem_mark", None)
    line, column = (mark.line + 1, mark.column + 1) if mark is not None else (1, 1)
    span = Span(file, line, column, line, column + 1)
    lines = re.split("\r\n|\r|\n", text)
    if mark is not None and mark.line < len(lines) and lines[mark.line][mark.column : mark.column + 1] == "\t":
        message = "tab where YAML takes only spaces"
        return Diagnostic("DSV105", message, span, help="indent with spaces", fix=_untabbed(lines, file))
    if not begun and mark is not None and mark.line < len(lines) and not lines[mark.line][: mark.column].strip():
        problem = f"indentation: {problem}"  # the line itself is in the wrong place, not something on it
    known = ((what, out) for words, what, out in _FAULTS if any(word in problem for word in words))
    what, help_text = next(known, (problem, _ELSE))
    return Diagnostic("DSV101", f"text is not valid YAML: {what}", span, _begun(error, file, line), help=help_text)


def _untabbed(lines: list[str], file: str) -> tuple[Edit, ...]:
    """Two spaces for each tab, where all of a text is indented by tabs alone; else nobody knows how wide one is."""
    indents = [(number, line[: len(line) - len(line.lstrip(" \t"))]) for number, line in enumerate(lines, 1)]
    if any(" " in indent for _, indent in indents):
        return ()
    return tuple(
        Edit(Span(file, number, 1, number, len(indent) + 1), "  " * len(indent)) for number, indent in indents if indent
    )


def _begun(error: Any, file: str, line: int) -> tuple[Label, ...]:
    """Where the list or map began that the fault is in, if on another line."""
    context, at = str(getattr(error, "context", None) or ""), getattr(error, "context_mark", None)
    if at is None or at.line == line - 1:
        return ()
    what = next((name for word, name in _BEGINNINGS.items() if word in context), "what it belongs to")
    return (Label(Span(file, at.line + 1, at.column + 1, at.line + 1, at.column + 2), f"{what} begins here"),)
