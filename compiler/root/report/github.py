"""Findings as workflow commands, which GitHub shows beside the lines of a pull request."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dsv41c.codes import TABLE
from dsv41c.diagnostics import Diagnostic, ordered
from dsv41c.report.escape import short
from dsv41c.report.summary import left_out

_COMMANDS = {"error": "error", "warning": "warning", "note": "notice"}


def github(diagnostics: Iterable[Diagnostic], sources: Mapping[str, str] | None = None) -> str:
    """The GitHub form. A finding's help follows its message on a line of its own."""
    found = ordered(diagnostics)
    more = (Diagnostic(code, f"{count:,} more that are not shown") for code, count in left_out(found).items())
    return "".join(_command(each) for each in (*found, *more))


def _command(diagnostic: Diagnostic) -> str:
    span, properties = diagnostic.span, []
    if span is not None:
        properties = [f"file={_property(span.file)}", f"line={max(span.line, 1)}"]
        if span.end_line > span.line:
            properties.append(f"endLine={span.end_line}")
        properties.append(f"col={max(span.column, 1)}")
        if span.end_line == span.line and span.end_column > span.column:
            properties.append(f"endColumn={span.end_column}")
    properties.append(f"title={_property(f'{diagnostic.code} {TABLE[diagnostic.code].name}')}")
    message = _data(diagnostic.message) + (f"%0A{_data('help: ' + diagnostic.help)}" if diagnostic.help else "")
    return f"::{_COMMANDS[diagnostic.severity]} {','.join(properties)}::{message}\n"


def _data(text: str) -> str:
    # Line ends are escaped by `short` already, as \n and \r in letters.
    return short(text).replace("%", "%25")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
