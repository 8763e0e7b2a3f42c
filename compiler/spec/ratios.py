"""`layers.compress_ratios`: a list or a compact map such as {0-1: 0, 2-39: 2}, brought to one entry a layer.

A checkpoint's config lists draft layers behind the backbone; those entries must be 0 and are cut. Nothing is padded.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from dsv41c.compiler.source import POISON, Node, Poison, shown, shown_key, to_data
from dsv41c.compiler.spec.models import MAX_LAYERS
from dsv41c.diagnostics import Diagnostic, Edit, Label, Sink, Span
from dsv41c.words import counted

_RANGE = re.compile(r"\s*([0-9]{1,9})\s*(?:-\s*([0-9]{1,9})\s*)?", re.ASCII)
_FORM = "write `first-last: ratio`, or `layer: ratio`"


@dataclass(frozen=True, slots=True)
class _Entry:
    """An entry of the compact map: layers `first` to `last` inclusive."""

    first: int
    last: int
    text: str
    node: Node

    @property
    def span(self) -> Span:
        key, value = self.node.key or self.node.span, self.node.span
        return Span(key.file, key.line, key.column, value.end_line, value.end_column)


def normalise(node: Node, n_layers: int, n_mtp_layers: int, sink: Sink) -> Node:
    """The ratios as a list of `n_layers` entries; `POISON` where a fault was reported."""
    ratios = _from_map(node, n_layers, n_mtp_layers, sink) if isinstance(node.value, Mapping) else node
    if not isinstance(ratios.value, tuple):
        return ratios
    length = len(ratios.value)
    if length not in (n_layers, n_layers + n_mtp_layers):
        sink.add(_wrong_length(node, length, n_layers, n_mtp_layers))
        return replace(ratios, value=POISON)
    for index, extra in enumerate(ratios.value[n_layers:], n_layers):
        if extra.value != 0 and not isinstance(extra.value, Poison):
            sink.add(_draft_ratio(index, extra, n_layers))
    return replace(ratios, value=ratios.value[:n_layers])


def expand(node: Node) -> Node | None:
    """A well-formed compact map as a list, whatever the number of layers; else None."""
    if not isinstance(node.value, Mapping):
        return None
    silent = Sink()
    entries = _entries(node, MAX_LAYERS, silent)
    if silent.failed or not entries or _holes(entries, silent) or silent.failed:
        return None
    return _listed(node, entries)


def _from_map(node: Node, n_layers: int, n_mtp_layers: int, sink: Sink) -> Node:
    before = sink.errors
    total = n_layers + n_mtp_layers
    entries = _entries(node, total, sink)
    if not entries and sink.errors == before:
        sink.add(_wrong_length(node, 0, n_layers, n_mtp_layers))
    _holes(entries, sink)
    if sink.errors > before:
        return replace(node, value=POISON)
    return _listed(node, entries)


def _entries(node: Node, total: int, sink: Sink) -> list[_Entry]:
    """The entries of the map by first layer; the malformed ones are reported."""
    assert isinstance(node.value, Mapping)
    entries = []
    for key, child in node.value.items():
        match = _RANGE.fullmatch(key)
        first = int(match[1]) if match else 0
        last = int(match[2] or match[1]) if match else -1
        entry = _Entry(first, last, shown_key(key), child)
        facts = (("entry", f"{entry.text}: {shown(to_data(child))}"), ("layers", f"0 to {total - 1}"))
        if match is None:
            sink.add(Diagnostic("DSV210", f"`{entry.text}` is not a range of layers", child.key, (), facts, _FORM))
        elif first > last:
            sink.add(Diagnostic("DSV210", f"range `{entry.text}` runs backwards", child.key, (), facts, _FORM))
        elif last >= total:
            message = f"range `{entry.text}` goes beyond the last layer, {total - 1}"
            sink.add(Diagnostic("DSV210", message, child.key, (), facts, f"end the last range at {total - 1}"))
        else:
            entries.append(entry)
    return sorted(entries, key=lambda entry: (entry.first, entry.last))


def _holes(entries: list[_Entry], sink: Sink) -> bool:
    """Report overlaps and gaps between entries in order; True if there are any."""
    expected, previous, found = 0, None, False
    for entry in entries:
        labels = (Label(previous.span, "the entry before"),) if previous else ()
        facts = (("entry", entry.text), ("next layer without a ratio", str(expected)))
        if entry.first < expected:
            message = f"range `{entry.text}` gives layer {entry.first} a second ratio"
            sink.add(Diagnostic("DSV210", message, entry.node.key, labels, facts, "let ranges follow one another"))
            found = True
        elif entry.first > expected:
            missing = f"layer {expected}" if entry.first == expected + 1 else f"layers {expected} to {entry.first - 1}"
            message = f"no ratio for {missing}, before range `{entry.text}`"
            help_text = f"add an entry for {missing}; 0 means window only"
            sink.add(Diagnostic("DSV210", message, entry.node.key, labels, facts, help_text))
            found = True
        expected, previous = max(expected, entry.last + 1), entry
    return found


def _listed(node: Node, entries: list[_Entry]) -> Node:
    items: list[Node] = []
    for entry in entries:
        items.extend([Node(entry.node.value, entry.span)] * (entry.last - entry.first + 1))
    return replace(node, value=tuple(items))


def _wrong_length(node: Node, length: int, n_layers: int, n_mtp_layers: int) -> Diagnostic:
    if n_mtp_layers:
        rule = f"{n_layers} backbone + {n_mtp_layers} MTP = {n_layers + n_mtp_layers} (or {n_layers} without MTP)"
    else:
        rule = f"the backbone has {counted(n_layers, 'layer')}"
    facts = (
        ("entries", str(length)),
        ("model.n_layers", str(n_layers)),
        ("model.n_mtp_layers", str(n_mtp_layers)),
    )
    message = f"compress_ratios has {counted(length, 'entry')}; {rule}"
    if fix := _without_drafts(node, n_layers):
        help_text = (
            f"leave out the {length - n_layers} zeros of draft layers behind the {n_layers} layers of the backbone"
        )
    else:
        help_text = "give every layer its ratio; nothing is padded"
    return Diagnostic("DSV208", message, node.key, facts=facts, help=help_text, fix=fix)


def _without_drafts(node: Node, n_layers: int) -> tuple[Edit, ...]:
    """The edit that takes zeros away behind the backbone, where its last layer is not one of them by looks."""
    items = node.value
    if not isinstance(items, tuple) or not n_layers or len(items) <= n_layers or items[n_layers - 1].value == 0:
        return ()
    if any(item.value != 0 for item in items[n_layers:]):
        return ()
    kept, last = items[n_layers - 1].span, items[-1].span
    return (Edit(Span(kept.file, kept.end_line, kept.end_column, last.end_line, last.end_column), ""),)


def _draft_ratio(index: int, node: Node, n_layers: int) -> Diagnostic:
    message = f"compress_ratios[{index}] is {shown(to_data(node))}, expected 0: layer {index} is a draft layer"
    facts = ((f"compress_ratios[{index}]", shown(to_data(node))), ("backbone layers", f"0 to {n_layers - 1}"))
    help_text = "draft layers are window-only: write 0, or leave their entries out"
    return Diagnostic("DSV209", message, node.span, facts=facts, help=help_text)
