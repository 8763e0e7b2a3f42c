"""One line a finding, as editors parse it: `file:line:col: CODE message`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dsv41c.diagnostics import Diagnostic, ordered
from dsv41c.report.escape import escape, short
from dsv41c.report.summary import left_out


def concise(diagnostics: Iterable[Diagnostic], sources: Mapping[str, str] | None = None) -> str:
    """The concise form; findings without a place start with the code."""
    lines, found = [], ordered(diagnostics)
    for diagnostic in found:
        span = diagnostic.span
        place = f"{escape(span.file)}:{max(span.line, 1)}:{max(span.column, 1)}: " if span else ""
        lines.append(f"{place}{diagnostic.code} {short(diagnostic.message)}\n")
    lines += [f"{code} {count:,} more that are not shown\n" for code, count in left_out(found).items()]
    return "".join(lines)
