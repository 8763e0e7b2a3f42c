"""What checks report into, and the rule by which one cause gives one finding.

A check derives what it says from *facts*: what a list of the layer map holds, which value a layer reads, how a value
was made. A finding *spoils* the facts that are unknown until it is mended. A check says nothing that rests on a spoiled
fact. So checks run from causes to effects, and a follower drops out because of what it rests on, never because of who
found it.
"""

from __future__ import annotations

from collections.abc import Iterable

from dsv41c.diagnostics import Diagnostic, Sink

Fact = tuple[str | int | None, ...]


def listed(name: str) -> Fact:
    """What a list of the layer map holds, and lacks."""
    return ("list", name)


def read(kind: str, layer: int) -> Fact:
    """Which value of a kind a layer reads."""
    return ("read", kind, layer)


def made(kind: str, layer: int | None) -> Fact:
    """That a layer makes a value of a kind, and from what."""
    return ("made", kind, layer)


def value(value_id: str) -> Fact:
    """What is known of one value of a graph."""
    return ("value", value_id)


class Ledger:
    """Collects findings and spoiled facts."""

    def __init__(self) -> None:
        self.findings = Sink()
        self._spoiled: set[Fact] = set()

    def sound(self, *facts: Fact) -> bool:
        """Whether none of the facts is spoiled."""
        return self._spoiled.isdisjoint(facts)

    def spoil(self, facts: Iterable[Fact]) -> None:
        """Mark facts as unknown until an earlier finding is mended."""
        self._spoiled.update(facts)

    def report(self, diagnostic: Diagnostic, spoils: Iterable[Fact] = ()) -> None:
        """Keep a finding, and spoil what it leaves unknown."""
        self.findings.add(diagnostic)
        self._spoiled.update(spoils)
