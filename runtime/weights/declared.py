"""What a checkpoint declares of its layout: keys `dsv41c.…` in the metadata of its index and of its files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from dsv41c.diagnostics import Diagnostic, Span
from dsv41c.runtime.weights.names import shown
from dsv41c.runtime.weights.variants import DECLARATIONS
from dsv41c.words import shortlist

PREFIX = "dsv41c."


def declarations(places: Iterable[tuple[str, Mapping[str, object]]]) -> tuple[Mapping[str, str], list[Diagnostic]]:
    """The declarations of all places, (file, metadata) each, and what is wrong with them (DSV712).

    What is declared holds for the whole checkpoint, whichever file says it.
    """
    declared: dict[str, tuple[str, str]] = {}
    findings: dict[str, Diagnostic] = {}
    for file, metadata in places:
        for key, value in metadata.items():
            if not key.startswith(PREFIX):
                continue
            text = _fault(key, value, declared.get(key))
            if text is None:
                declared.setdefault(key, (str(value), file))
            else:
                findings.setdefault(text, _finding(file, text, DECLARATIONS.get(key)))
    return MappingProxyType({key: value for key, (value, _) in declared.items()}), list(findings.values())


def _fault(key: str, value: object, other: tuple[str, str] | None) -> str | None:
    allowed = DECLARATIONS.get(key)
    if allowed is None:
        return f"`{shown(key)}` is no declaration that is known here"
    if not isinstance(value, str) or value not in allowed:
        return f"`{key}` is `{shown(value)}`"
    if other is not None and other[0] != value:
        return f"`{key}` is `{value}`, and `{other[0]}` in `{shown(other[1])}`"
    return None


def _finding(file: str, text: str, allowed: tuple[str, ...] | None) -> Diagnostic:
    names = shortlist([f"`{each}`" for each in allowed or DECLARATIONS], 8)
    facts = (("expected", f"one of {names}"),)
    return Diagnostic("DSV712", text, Span(file), facts=facts, help="declare what holds for every file, or nothing")
