"""Checks of `layers.reads`: a read that the spec names itself names an existing producer, at or before the reader."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from dsv41c.compiler.checks.flow import LISTS, Flow
from dsv41c.compiler.checks.ledger import Ledger, listed, read
from dsv41c.compiler.checks.view import View
from dsv41c.compiler.checks.words import SOURCE, STATE
from dsv41c.diagnostics import Diagnostic, Label
from dsv41c.words import joined

_READERS = {
    "compress_kv": "layers with a ratio of 1 or more read it",
    "topk": "layers with a ratio of 1 or more read it",
    "index_k": "index sources read it",
    "candidates": "index sources after the candidate source read it",
}


def named_reads(view: View, ledger: Ledger) -> None:
    """Every read of `layers.reads` is one that its layer makes, of a layer that makes what is read, in time."""
    flow, layers = view.flow, view.layers
    if flow is None or layers is None:
        return
    for layer, kinds in sorted(layers.reads.items()):
        if layer not in flow.ratios:
            message = f"`layers.reads` names layer {layer}, the backbone has layers 0 to {len(flow.ratios) - 1}"
            place = view.loaded.spans.key(("layers", "reads", layer))
            facts = (("model.n_layers", str(len(flow.ratios))),)
            ledger.report(Diagnostic("DSV301", message, place, facts=facts, help="name a layer that exists"))
            continue
        for kind, source in kinds.items():
            _named_read(view, flow, ledger, layer, kind, source)


def _named_read(view: View, flow: Flow, ledger: Ledger, layer: int, kind: str, source: int) -> None:
    place = view.place("layers", "reads", layer, kind)
    facts = (
        (f"layers.reads[{layer}].{kind}", str(source)),
        (f"layers.compress_ratios[{layer}]", str(flow.ratios[layer])),
    )
    if layer not in flow.reads[kind]:
        lists = [listed("index_source_layers")] if kind in ("index_k", "candidates") else []
        if not ledger.sound(read(kind, layer), *lists):
            return
        message = f"`layers.reads` gives layer {layer} a source of {STATE[kind]}, which it does not read"
        label = Label(view.place("layers", "compress_ratios", layer), f"ratio of layer {layer}")
        help_text = f"remove `{kind}` here; {_READERS[kind]}"
        ledger.report(Diagnostic("DSV413", message, place, (label,), facts, help_text))
        return
    spoils = [read(kind, layer)]
    strictly = kind == "candidates"
    if source > layer or (strictly and source == layer):
        message = f"layer {layer} reads `{kind}@L{source}`, which is made after the read"
        help_text = _way_out(flow, kind, layer)
        ledger.report(Diagnostic("DSV411", message, place, facts=facts, help=help_text), spoils)
    elif not flow.produces(kind, source):
        if not ledger.sound(*map(listed, LISTS[kind])):
            ledger.spoil(spoils)
            return
        message = f"layer {layer} reads `{kind}@L{source}`, and layer {source} is no {SOURCE[kind]}"
        ledger.report(Diagnostic("DSV412", message, place, facts=facts, help=_way_out(flow, kind, layer)), spoils)


def _way_out(flow: Flow, kind: str, layer: int) -> str:
    producers = flow.producers[kind]
    end = bisect_left(producers, layer) if kind == "candidates" else bisect_right(producers, layer)
    near = [str(producer) for producer in producers[max(0, end - 3) : end]]
    name = "" if not near else f"name layer {joined(near, 'or')}, or "
    return f"{name}remove `{kind}` here to read the latest {SOURCE[kind]} at or before the layer"
