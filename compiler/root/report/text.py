"""Findings for people: what, where, with the lines themselves, the facts in play, and a way out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache

from dsv41c.diagnostics import Diagnostic, Label, Span, ordered
from dsv41c.report.escape import cells, escape, short
from dsv41c.report.summary import summary_line

_COLORS = {"error": "1;31", "warning": "1;33", "note": "1;36", "frame": "34", "strong": "1"}
_MOST_LABELS = 4
_MOST_FACTS = 8
_BREAKS = re.compile("\r\n|[\n\r\x85\u2028\u2029]")  # as YAML counts lines
_WIDEST = 120  # columns of a line that are shown; longer lines are cut around the span


def text(diagnostics: Iterable[Diagnostic], sources: Mapping[str, str], *, color: bool = False) -> str:
    """Every finding with its snippets, and a last line that counts them; nothing where there is nothing to say."""
    found = ordered(diagnostics)
    if not found:
        return ""
    writer = _Writer(sources, color)
    return "\n".join([*(writer.finding(each) for each in found), summary_line(found)]) + "\n"


class _Writer:
    """Writes findings over a set of texts."""

    def __init__(self, sources: Mapping[str, str], color: bool) -> None:
        self.color = color
        self.lines = lru_cache(None)(lambda file: _BREAKS.split(sources[file]) if file in sources else [])

    def paint(self, name: str, words: str) -> str:
        """Words in a colour, if there are colours."""
        return f"\x1b[{_COLORS[name]}m{words}\x1b[0m" if self.color and words else words

    def finding(self, diagnostic: Diagnostic) -> str:
        """One finding, ending with an empty line."""
        severity = diagnostic.severity
        head = self.paint(severity, f"{severity}[{diagnostic.code}]") + self.paint(
            "strong", f": {short(diagnostic.message)}"
        )
        # A label of the very same place says its remark beside the carets.
        beside = [label.text for label in diagnostic.labels if label.span == diagnostic.span]
        others = [label for label in diagnostic.labels if label.span != diagnostic.span]
        labels = others[:_MOST_LABELS]
        width = self._gutter(diagnostic.span, labels)
        bar = self.paint("frame", " " * width + " |")
        rows = [head]
        if diagnostic.span is not None:
            rows += self._snippet("-->", diagnostic.span, ", ".join(beside), severity, width)
        for label in labels:
            rows += [bar, *self._snippet(":::", label.span, label.text, "frame", width)]
        if len(others) > len(labels):
            rows.append(f"{' ' * width} = note: {len(others) - len(labels)} more places take part")
        if (diagnostic.facts or diagnostic.notes) and len(rows) > 1:
            rows.append(bar)
        equals = self.paint("frame", " " * width + " =")
        rows += [f"{equals} {short(name)}: {short(value)}" for name, value in diagnostic.facts[:_MOST_FACTS]]
        rows += [f"{equals} note: {short(note)}" for note in diagnostic.notes]
        if diagnostic.help:
            rows.append(f"{self.paint('strong', 'help')}: {short(diagnostic.help)}")
        mends = "        dsv41c validate --fix mends it" if diagnostic.fix else ""
        rows.append(f"      dsv41c explain {diagnostic.code}{mends}")
        return "\n".join(rows) + "\n"

    def _gutter(self, span: Span | None, labels: Iterable[Label]) -> int:
        spans = [span, *(label.span for label in labels)]
        return max((len(str(each.line)) for each in spans if each is not None), default=1)

    def _snippet(self, arrow: str, span: Span, remark: str, color: str, width: int) -> list[str]:
        """A place, and its line underlined; the place alone where the text is not at hand."""
        place = (
            f"{' ' * width}{self.paint('frame', arrow)} {escape(span.file)}:{max(span.line, 1)}:{max(span.column, 1)}"
        )
        lines = self.lines(span.file)
        if not 1 <= span.line <= len(lines):
            return [place + (f"  {short(remark)}" if remark else "")]
        shown, start, length = _cut(lines[span.line - 1], span)
        before, under = escape(shown[:start]), escape(shown[start : start + length])
        mark = ("^" if arrow == "-->" else "-") * max(cells(under), 1)
        number = self.paint("frame", f"{span.line:>{width}} |")
        bar = self.paint("frame", " " * width + " |")
        remark = f" {short(remark)}" if remark else ""
        underline = " " * cells(before) + self.paint(color, mark + remark)
        return [place, bar, f"{number} {before}{under}{escape(shown[start + length :])}".rstrip(), f"{bar} {underline}"]


def _cut(line: str, span: Span) -> tuple[str, int, int]:
    """The part of a line to show, with the start and length of the span in it. A tab counts as one column."""
    line = line.replace("\t", " ")
    start = min(max(span.column - 1, 0), len(line))
    end = len(line) if span.end_line > span.line else start + 1
    if span.end_line == span.line:
        end = span.end_column - 1
    length = max(1, min(end, len(line)) - start)
    if len(line) <= _WIDEST:
        return line, start, length
    first = max(0, min(start - _WIDEST // 3, len(line) - _WIDEST))
    last = first + _WIDEST
    shown = ("…" if first else "") + line[first:last] + ("…" if last < len(line) else "")
    moved = start - first + (1 if first else 0)
    return shown, moved, max(1, min(length, _WIDEST - (start - first)))
