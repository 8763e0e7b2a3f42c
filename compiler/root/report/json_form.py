"""Findings as JSON, for programs: `dsv41c.diagnostics/1.2`. A minor version may add keys.

`summary` counts what `diagnostics` holds; `left_out` says of codes that came too often how many more there were.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from dsv41c.codes import TABLE
from dsv41c.diagnostics import Diagnostic, Span, ordered
from dsv41c.report.summary import counts, left_out

FORMAT = "dsv41c.diagnostics/1.2"


def as_json(diagnostics: Iterable[Diagnostic], sources: Mapping[str, str] | None = None) -> str:
    """The JSON form: ASCII, sorted keys, two spaces."""
    found = ordered(diagnostics)
    report = {
        "format": FORMAT,
        "summary": counts(found),
        "left_out": left_out(found),
        "diagnostics": [_finding(each) for each in found],
    }
    return json.dumps(report, indent=2, sort_keys=True) + "\n"


def _finding(diagnostic: Diagnostic) -> dict[str, Any]:
    return {
        "code": diagnostic.code,
        "name": TABLE[diagnostic.code].name,
        "severity": diagnostic.severity,
        "message": diagnostic.message,
        "span": _span(diagnostic.span) if diagnostic.span else None,
        "labels": [{"span": _span(label.span), "text": label.text} for label in diagnostic.labels],
        "facts": [{"name": name, "value": value} for name, value in diagnostic.facts],
        "help": diagnostic.help,
        "notes": list(diagnostic.notes),
        "fix": [{"span": _span(edit.span), "text": edit.text} for edit in diagnostic.fix],
    }


def _span(span: Span) -> dict[str, Any]:
    return {
        "file": span.file,
        "line": span.line,
        "column": span.column,
        "end_line": span.end_line or span.line,
        "end_column": span.end_column or span.column,
    }
