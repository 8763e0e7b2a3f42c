"""What the table of codes holds for each code."""

from __future__ import annotations

from dataclasses import dataclass

from dsv41c.diagnostics import Severity


@dataclass(frozen=True, slots=True)
class Code:
    """One kind of fault.

    `name` is the fault in kebab case (`reader-without-source`), never the remedy. `explanation` is Markdown for
    `dsv41c explain`: what it is, why it matters, how to get out. `bad` is a spec (YAML, usually `extends: toy` and a
    few lines) that gives exactly this code, `good` the same mended; a code that no spec can show leaves both empty,
    says in `situations` how it comes about, and has a trigger in tests/diagnostics. Tests run both kinds.
    """

    code: str
    name: str
    severity: Severity
    summary: str
    explanation: str
    bad: str = ""
    good: str = ""
