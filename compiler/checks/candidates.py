"""Checks of the second level of selection, and of producers that nobody reads."""

from __future__ import annotations

from dsv41c.compiler.checks.flow import LISTS, Flow
from dsv41c.compiler.checks.ledger import Ledger, listed, made, read
from dsv41c.compiler.checks.sources import behind, ratio_fact
from dsv41c.compiler.checks.words import STATE, layers, listing, plural, runs
from dsv41c.compiler.layer_map import SHARED_KINDS
from dsv41c.diagnostics import Diagnostic, Label

_SOURCE_LISTS = (("compress_kv", "kv_source_layers"), ("topk", "index_source_layers"))


def candidates_of_another_history(flow: Flow, ledger: Ledger) -> None:
    """Candidate blocks are runs of groups of one history; a score over another one cannot be masked by them."""
    clashes: dict[int, list[int]] = {}
    for layer, source in flow.reads["candidates"].items():
        if source is None or source == layer:
            continue
        ours, theirs = flow.reads["index_k"].get(layer), flow.reads["index_k"].get(source)
        rests_on = [made("candidates", source), made("topk", layer), made("topk", source), read("compress_kv", layer)]
        for kind, reader in (("candidates", layer), ("index_k", layer), ("index_k", source)):
            rests_on += behind(flow, kind, reader)
        same = ours == theirs and flow.ratios.get(layer) == flow.ratios.get(source)
        if ours is not None and theirs is not None and not same and ledger.sound(*rests_on):
            clashes.setdefault(source, []).append(layer)
    for source, readers in clashes.items():
        ledger.report(_clash(flow, source, readers), [made("candidates", source)])


def _clash(flow: Flow, source: int, readers: list[int]) -> Diagnostic:
    first = readers[0]
    ours, theirs = flow.reads["index_k"][first], flow.reads["index_k"][source]
    message = (
        f"{layers(readers)} {plural(readers, 'masks its', 'mask their')} scores over `index_k@L{ours}` with "
        f"`candidates@L{source}`, whose blocks index `index_k@L{theirs}`"
    )
    labels = [Label(flow.read_place("candidates", first), f"layer {first} reads the blocks")]
    if flow.produces("index_k", ours or 0):
        labels.append(Label(flow.made_place("index_k", ours or 0), f"layer {ours} starts another history"))
    facts = (
        (f"keys that layer {source} scores", f"index_k@L{theirs}"),
        (f"keys that layer {first} scores", f"index_k@L{ours}"),
        ratio_fact(flow, source),
        ratio_fact(flow, first),
    )
    help_text = (
        f"make the last KV source the candidate source, leave out `candidate_source_layer`, "
        f"or take {ours} out of `kv_source_layers`"
    )
    return Diagnostic("DSV408", message, flow.made_place("candidates", source), tuple(labels), facts, help_text)


def candidate_source_without_keys(flow: Flow, ledger: Ledger) -> None:
    """The candidate source scores keys of its own: it is both a KV source and an index source."""
    for layer in flow.candidate_sources:
        rests_on = [listed(name) for _, name in _SOURCE_LISTS] + [listed("candidate_source_layer")]
        rests_on += [read("compress_kv", layer), made("topk", layer)]
        missing = [name for kind, name in _SOURCE_LISTS if not flow.produces(kind, layer)]
        if not missing or not ledger.sound(*rests_on):
            continue
        role = {"kv_source_layers": "KV source", "index_source_layers": "index source"}
        lacks = " and no ".join(role[name] for name in missing)
        message = f"layer {layer} is the candidate source and no {lacks}; it has to be both a KV and an index source"
        both = flow.producers["index_k"]
        where = " and ".join(f"`{name}`" for name in missing)
        help_text = f"add {layer} to {where}" + (f", or name one of {runs(both)} instead" if both else "")
        facts = tuple((f"layers.{name}", listing(flow.producers[kind])) for kind, name in _SOURCE_LISTS)
        place = flow.made_place("candidates", layer)
        ledger.report(
            Diagnostic("DSV407", message, place, facts=facts, help=help_text),
            [listed("candidate_source_layer"), made("candidates", layer)],
        )


def never_read(flow: Flow, ledger: Ledger) -> None:
    """What nobody reads was meant for somebody, or costs for nothing."""
    used = {kind: set(flow.reads[kind].values()) for kind in SHARED_KINDS}
    for kind in SHARED_KINDS:  # who would have read it, had its own read not been reported already
        lost = (layer for layer in flow.reads[kind] if not ledger.sound(read(kind, layer)))
        used[kind].update(flow.nearest(kind, layer) for layer in lost)
    unread: dict[int, list[str]] = {}
    for kind in SHARED_KINDS:
        for layer in flow.producers[kind]:
            sound = ledger.sound(made(kind, layer), *map(listed, LISTS[kind]))
            if layer not in used[kind] and sound:
                unread.setdefault(layer, []).append(kind)
    for layer, kinds in sorted(unread.items()):
        if kinds == ["candidates"]:
            _unread_candidates(flow, ledger, layer)
        else:
            _unread(flow, ledger, layer, kinds)


def _unread_candidates(flow: Flow, ledger: Ledger, layer: int) -> None:
    message = f"no layer reads `candidates@L{layer}`: no index source comes after the candidate source"
    help_text = "leave out `candidate_source_layer`, or add a later index source"
    facts = (("layers.index_source_layers", listing(flow.producers["topk"])),)
    ledger.report(Diagnostic("DSV410", message, flow.made_place("candidates", layer), facts=facts, help=help_text))


def _unread(flow: Flow, ledger: Ledger, layer: int, kinds: list[str]) -> None:
    what = " and ".join(f"`{kind}@L{layer}`" for kind in kinds)
    message = f"layer {layer} makes {what}, and no layer reads {plural(list(range(len(kinds))), 'it', 'them')}"
    labels = [
        Label(flow.read_place(kind, reader), f"layer {reader} reads `{kind}@L{flow.reads[kind][reader]}` instead")
        for kind in kinds
        for reader in flow.reads[kind]
        if reader >= layer and flow.nearest(kind, reader) == layer and (kind, reader) in flow.named
    ]
    facts = tuple((f"layer {layer} makes", STATE[kind]) for kind in kinds)
    help_text = f"let a layer read {what}, or take {layer} out of the source list"
    place = flow.made_place(kinds[0], layer)
    ledger.report(
        Diagnostic("DSV409", message, place, tuple(labels[:3]), facts, help_text),
        [made(kind, layer) for kind in kinds],
    )
