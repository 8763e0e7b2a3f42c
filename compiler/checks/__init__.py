"""Checks: named functions, from causes to effects, and the codes each can give.

`check` judges a loaded spec, `check_graph` a graph alone: one built from a spec, one parsed from text, or one between
two passes. Both run the same checks of shared state, and one cause gives one finding (see `ledger`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from dsv41c.compiler.build import build
from dsv41c.compiler.checks import (
    candidates,
    crossings,
    engram,
    lists,
    reads,
    sequence,
    shards,
    sources,
    stages,
    wiring,
)
from dsv41c.compiler.checks.flow import Flow, flow_of_graph
from dsv41c.compiler.checks.ledger import Ledger
from dsv41c.compiler.checks.view import View
from dsv41c.compiler.ir import Graph
from dsv41c.diagnostics import Diagnostic, Sink, ordered

if TYPE_CHECKING:
    from dsv41c.compiler.spec import Loaded

Subject = TypeVar("Subject")


@dataclass(frozen=True, slots=True)
class Check(Generic[Subject]):
    """A check: its name, what it runs on a subject, and the codes of the findings it can make."""

    name: str
    run: Callable[[Subject, Ledger], None]
    codes: tuple[str, ...]


LIST_CHECKS: tuple[Check[View], ...] = (
    Check("layers that exist", lists.out_of_range, ("DSV301",)),
    Check("layers named once", lists.repeated, ("DSV302",)),
    Check("sources with a compressed branch", lists.source_without_branch, ("DSV304",)),
    Check("lists in order", lists.unsorted, ("DSV303",)),
    Check("reads the spec names", reads.named_reads, ("DSV301", "DSV411", "DSV412", "DSV413")),
)
FLOW_CHECKS: tuple[Check[Flow], ...] = (
    Check("KV sources select", sources.source_without_selection, ("DSV404",)),
    Check("readers have a KV source", sources.reader_without_source, ("DSV401",)),
    Check("readers have their source's ratio", sources.ratio_differs, ("DSV403",)),
    Check("index sources have keys", sources.index_source_without_keys, ("DSV406",)),
    Check("readers have a selection", sources.reader_without_selection, ("DSV402",)),
    Check("selections are of the history they are used on", sources.selection_of_another_history, ("DSV405",)),
    Check("the candidate source scores keys of its own", candidates.candidate_source_without_keys, ("DSV407",)),
    Check("candidates index their readers' history", candidates.candidates_of_another_history, ("DSV408",)),
    Check("what is made is read", candidates.never_read, ("DSV409", "DSV410")),
)
PART_CHECKS: tuple[Check[View], ...] = (
    Check("engram layers and section", engram.engram_without_part, ("DSV306",)),
    Check("engram layers and tables", engram.engram_lists_disagree, ("DSV305",)),
    Check("layers whose hash is kept", engram.hash_layers_disagree, ("DSV309",)),
    Check("table rows", engram.rows_differ, ("DSV307", "DSV308")),
    Check("stages have devices", stages.stages_and_devices, ("DSV503",)),
    Check("stages in order", stages.stages_in_order, ("DSV502",)),
    Check("stages cover the layers", stages.stages_cover, ("DSV501",)),
    Check("one device family", stages.one_family, ("DSV504",)),
    Check("widths divide by shards", shards.uneven, ("DSV507",)),
)
WIRING_CHECKS: tuple[Check[Graph], ...] = (
    Check("ops fit the catalogue", wiring.signatures, ("DSV423",)),
    Check("values written once", wiring.two_producers, ("DSV421",)),
    Check("values written at all", wiring.unwritten, ("DSV420", "DSV505")),
    Check("copies on other stages", crossings.copies, ("DSV506",)),
    Check("kinds at ports", wiring.wrong_kind, ("DSV424", "DSV425")),
)
ORDER_CHECKS: tuple[Check[Graph], ...] = (
    Check("streams and pre-mix carried", sequence.carried, ("DSV427", "DSV428")),
    Check("private values stay", sequence.private, ("DSV426",)),
    Check("versions of state", sequence.versions, ("DSV429",)),
    Check("order of ops", sequence.read_before_written, ("DSV422", "DSV430")),
    Check("what is made is read, in a graph", sequence.unread, ("DSV409", "DSV431")),
    Check("what crosses, and how", crossings.wrong_carrier, ("DSV506",)),
    Check("parts of sums are added up", shards.part_as_whole, ("DSV508",)),
)
CHECKS = (*LIST_CHECKS, *FLOW_CHECKS, *PART_CHECKS, *WIRING_CHECKS, *ORDER_CHECKS)


def check(loaded: Loaded) -> tuple[Diagnostic, ...]:
    """Every finding about a loaded spec, those of loading among them, in the order to show them.

    Sections that are not valid silence only the checks that need them. A spec without errors is built, and its graph
    checked too: that gives findings only where the builder is wrong.
    """
    view, ledger = View.of(loaded), Ledger()
    ledger.spoil(view.unsound)
    _run(LIST_CHECKS, view, ledger)
    if view.flow is not None:
        _run(FLOW_CHECKS, view.flow, ledger)
    _run(PART_CHECKS, view, ledger)
    found = Sink()
    found.extend((*loaded.diagnostics, *ledger.findings))
    if loaded.spec is not None and not found.failed:
        graph_ledger = Ledger()
        graph = build(loaded.spec, loaded.spans)
        _run(WIRING_CHECKS, graph, graph_ledger)
        _run(ORDER_CHECKS, graph, graph_ledger)
        found.extend(graph_ledger.findings)
    return ordered(found)


def check_graph(graph: Graph, devices: Sequence[str] | None = None) -> tuple[Diagnostic, ...]:
    """Every finding about a graph. Give the `devices` of its stages once transfers are declared, not before.

    Without them, a read across stages is a finding only where other transfers say that these are different devices.
    """
    ledger = Ledger()
    _run(WIRING_CHECKS, graph, ledger)
    _run(FLOW_CHECKS, flow_of_graph(graph), ledger)
    crossings.undeclared(graph, devices, ledger)
    _run(ORDER_CHECKS, graph, ledger)
    return ordered(ledger.findings)


def _run(checks: Sequence[Check[Subject]], subject: Subject, ledger: Ledger) -> None:
    for each in checks:
        each.run(subject, ledger)
