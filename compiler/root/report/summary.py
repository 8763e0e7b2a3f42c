"""How many findings of which severity."""

from __future__ import annotations

from collections.abc import Iterable

from dsv41c.diagnostics import Diagnostic


def counts(diagnostics: Iterable[Diagnostic]) -> dict[str, int]:
    """`{"errors": ..., "notes": ..., "warnings": ...}`."""
    numbers = {"errors": 0, "notes": 0, "warnings": 0}
    for diagnostic in diagnostics:
        numbers[diagnostic.severity + "s"] += 1
    return numbers


def summary_line(diagnostics: Iterable[Diagnostic]) -> str:
    """`2 errors, 1 warning`, or `no findings`."""
    numbers = counts(diagnostics)
    words = [
        f"{numbers[name]} {name if numbers[name] > 1 else name[:-1]}"
        for name in ("errors", "warnings", "notes")
        if numbers[name]
    ]
    return ", ".join(words) or "no findings"
