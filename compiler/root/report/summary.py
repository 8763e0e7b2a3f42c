"""How many findings of which severity."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from dsv41c.diagnostics import Diagnostic
from dsv41c.words import counted


def counts(diagnostics: Iterable[Diagnostic]) -> dict[str, int]:
    """`{"errors": ..., "notes": ..., "warnings": ...}`, of those that are shown."""
    numbers = {"errors": 0, "notes": 0, "warnings": 0}
    for diagnostic in diagnostics:
        numbers[diagnostic.severity + "s"] += 1
    return numbers


def left_out(diagnostics: Iterable[Diagnostic]) -> dict[str, int]:
    """By code, how many more findings there were than are shown; codes of which all are shown are not in it."""
    numbers: Counter[str] = Counter()
    for diagnostic in diagnostics:
        numbers[diagnostic.code] += diagnostic.left_out
    return {code: count for code, count in sorted(numbers.items()) if count}


def summary_line(diagnostics: Iterable[Diagnostic]) -> str:
    """`2 errors, 1 warning`, or `no findings`; `200 errors, and 7 more of DSV201 that are not shown`."""
    found = tuple(diagnostics)
    numbers = counts(found)
    words = [counted(numbers[f"{name}s"], name) for name in ("error", "warning", "note") if numbers[f"{name}s"]]
    more = " and ".join(f"{count:,} more of {code}" for code, count in left_out(found).items())
    return (", ".join(words) or "no findings") + (f", and {more} that are not shown" if more else "")
