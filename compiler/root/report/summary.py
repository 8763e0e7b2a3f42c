"""How many findings of which severity."""

from __future__ import annotations

from collections.abc import Iterable

from dsv41c.diagnostics import Diagnostic
from dsv41c.words import counted


def counts(diagnostics: Iterable[Diagnostic]) -> dict[str, int]:
    """`{"errors": ..., "notes": ..., "warnings": ...}`."""
    numbers = {"errors": 0, "notes": 0, "warnings": 0}
    for diagnostic in diagnostics:
        numbers[diagnostic.severity + "s"] += 1
    return numbers


def summary_line(diagnostics: Iterable[Diagnostic]) -> str:
    """`2 errors, 1 warning`, or `no findings`."""
    numbers = counts(diagnostics)
    words = [counted(numbers[f"{name}s"], name) for name in ("error", "warning", "note") if numbers[f"{name}s"]]
    return ", ".join(words) or "no findings"
