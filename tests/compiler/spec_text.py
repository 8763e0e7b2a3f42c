"""Specs from texts, and what they give: shared by the tests of specs."""

from __future__ import annotations

from typing import Any

from dsv41c.compiler.spec import Loaded, load
from dsv41c.diagnostics import Diagnostic


def load_text(source: str, **options: Any) -> Loaded:
    return load("-", stdin=lambda: source, **options)


def findings(source: str, **options: Any) -> list[Diagnostic]:
    return list(load_text(source, **options).diagnostics)


def only(source: str, **options: Any) -> Diagnostic:
    """The one finding of a spec."""
    found = findings(source, **options)
    assert len(found) == 1, [(finding.code, finding.message) for finding in found]
    assert found[0].span and found[0].help
    return found[0]


def place(finding: Diagnostic) -> tuple[str, int, int]:
    assert finding.span is not None
    return finding.span.file, finding.span.line, finding.span.column
