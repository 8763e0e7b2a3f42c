"""Renders findings: for people (`text`, `concise`), for programs (`json`, `sarif`) and for GitHub's log (`github`).

A finding is plain data, a renderer a pure function over findings and the texts they point into. No control character
of those texts reaches a terminal in any format.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

from dsv41c.diagnostics import Diagnostic
from dsv41c.report.concise import concise
from dsv41c.report.github import github
from dsv41c.report.json_form import as_json
from dsv41c.report.sarif import sarif
from dsv41c.report.summary import summary_line
from dsv41c.report.text import text

Renderer = Callable[[Iterable[Diagnostic], Mapping[str, str]], str]

FORMATS: Mapping[str, Renderer] = MappingProxyType(
    {"text": text, "concise": concise, "json": as_json, "sarif": sarif, "github": github}
)


def render(
    diagnostics: Iterable[Diagnostic], sources: Mapping[str, str], form: str = "text", *, color: bool = False
) -> str:
    """Findings in one of `FORMATS`, ending with a newline unless empty; only `text` has colour."""
    if form == "text":
        return text(diagnostics, sources, color=color)
    return FORMATS[form](diagnostics, sources)


__all__ = ["FORMATS", "Renderer", "as_json", "concise", "github", "render", "sarif", "summary_line", "text"]
