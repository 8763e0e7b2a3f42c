"""Edits of a text by spans: everything outside of them stays as it was, byte for byte."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from dsv41c.diagnostics import Edit, Span

_LINE_END = re.compile(r"\r\n|\r|\n")


class Places:
    """Where the lines of a text begin, so that spans become offsets."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._starts = [0, *(end.end() for end in _LINE_END.finditer(text))]

    def extent(self, span: Span) -> tuple[int, int] | None:
        """First and last offset (exclusive) of a span; None for one that is not in the text."""
        first, last = self._offset(span.line, span.column), self._offset(span.end_line, span.end_column)
        return None if first is None or last is None or first > last else (first, last)

    def _offset(self, line: int, column: int) -> int | None:
        if not 1 <= line <= len(self._starts) or column < 1:
            return None
        offset = self._starts[line - 1] + column - 1
        end = self._starts[line] if line < len(self._starts) else len(self.text)
        return offset if offset <= end else None


def apply(text: str, edits: Iterable[Edit]) -> str | None:
    """The text with every edit made; None where one is outside of the text or two overlap."""
    places = Places(text)
    extents = [(places.extent(edit.span), edit.text) for edit in edits]
    done, parts = 0, []
    for extent, new in sorted(extents, key=lambda item: item[0] or (-1, -1)):
        if extent is None or extent[0] < done:
            return None
        parts += [text[done : extent[0]], new]
        done = extent[1]
    return "".join([*parts, text[done:]])


def takes_comments(text: str, edits: Sequence[Edit]) -> bool:
    """Whether edits that belong together have a `#` in or between them: a comment would go, or stand by another value.

    Edits of white space alone leave comments where they are.
    """
    places = Places(text)
    extents = [(places.extent(edit.span) or (0, 0), edit.text) for edit in edits]
    if not any(new.strip() or text[first:last].strip() for (first, last), new in extents):
        return False
    return "#" in text[min(first for (first, _), _ in extents) : max(last for (_, last), _ in extents)]
