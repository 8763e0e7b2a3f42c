"""Checks of shared state: does every reader have a source, of its ratio, and a selection over the history it uses?"""

from __future__ import annotations

from dsv41c.compiler.checks.flow import LISTS, Flow
from dsv41c.compiler.checks.ledger import Fact, Ledger, listed, made, read
from dsv41c.compiler.checks.words import layers, listing, plural
from dsv41c.diagnostics import Diagnostic, Label


def behind(flow: Flow, kind: str, layer: int) -> list[Fact]:
    """The facts a read rests on: itself, and the lists it follows from unless the spec names its source."""
    lists = () if (kind, layer) in flow.named else LISTS[kind]
    return [read(kind, layer), *map(listed, lists)]


def ratio_fact(flow: Flow, layer: int) -> tuple[str, str]:
    """A layer's ratio as a fact of a finding."""
    return (f"layers.compress_ratios[{layer}]", str(flow.ratios.get(layer, "none")))


def source_without_selection(flow: Flow, ledger: Ledger) -> None:
    """A KV source starts a history; layers that read it need a selection made over it."""
    selecting = set(flow.producers["topk"])
    for layer in flow.producers["compress_kv"]:
        if layer in selecting or not ledger.sound(listed("index_source_layers")):
            continue
        message = f"layer {layer} is a KV source and makes no selection over the history it starts"
        help_text = f"add {layer} to `index_source_layers`, or take it out of `kv_source_layers`"
        facts = (("layers.index_source_layers", listing(flow.producers["topk"])),)
        ledger.report(
            Diagnostic("DSV404", message, flow.made_place("compress_kv", layer), facts=facts, help=help_text),
            [made("topk", layer), made("index_k", layer)],
        )


def reader_without_source(flow: Flow, ledger: Ledger) -> None:
    """A layer with a compressed branch needs a KV source at or before it."""
    readers = [layer for layer, source in flow.reads["compress_kv"].items() if source is None]
    readers = [layer for layer in readers if ledger.sound(*behind(flow, "compress_kv", layer))]
    if not readers:
        return
    ratios = sorted({flow.ratios[layer] for layer in readers})
    message = (
        f"{layers(readers)} ({plural(ratios, 'ratio', 'ratios')} {', '.join(map(str, ratios))}) "
        f"{plural(readers, 'reads', 'read')} compressed KV, no KV source at or before {plural(readers, 'it', 'them')}"
    )
    sources = flow.producers["compress_kv"]
    labels = [Label(flow.made_place("compress_kv", sources[0]), "the first KV source")] if sources else []
    first = readers[0]
    help_text = (
        f"add {first} to `kv_source_layers` and `index_source_layers`, "
        f"or set the ratio of {layers(readers)} to 0 (no compressed branch)"
    )
    ledger.report(
        Diagnostic(
            "DSV401",
            message,
            flow.read_place("compress_kv", first),
            tuple(labels),
            (ratio_fact(flow, first), ("layers.kv_source_layers", listing(sources))),
            help_text,
        ),
        [read("compress_kv", layer) for layer in readers],
    )


def ratio_differs(flow: Flow, ledger: Ledger) -> None:
    """Rows of a history stand for groups of the source's ratio; a reader of another ratio would misread them."""
    for kind in ("compress_kv", "index_k"):
        for source, readers in _by_source(flow, kind).items():
            own = flow.ratios[source]
            wrong = [layer for layer in readers if flow.ratios[layer] != own and _sound(flow, ledger, kind, layer)]
            if wrong:
                ledger.report(_ratio_finding(flow, kind, source, wrong), [read(kind, layer) for layer in wrong])


def _sound(flow: Flow, ledger: Ledger, kind: str, layer: int) -> bool:
    rests_on = behind(flow, kind, layer)
    if kind == "index_k":
        history = flow.reads["compress_kv"].get(layer)
        rests_on += [read("compress_kv", layer), made("index_k", history), made("topk", layer)]
    return ledger.sound(*rests_on)


def _ratio_finding(flow: Flow, kind: str, source: int, wrong: list[int]) -> Diagnostic:
    first, own = wrong[0], flow.ratios[source]
    theirs = sorted({flow.ratios[layer] for layer in wrong})
    message = (
        f"{layers(wrong)} ({plural(theirs, 'ratio', 'ratios')} {', '.join(map(str, theirs))}) "
        f"{plural(wrong, 'reads', 'read')} `{kind}@L{source}`, whose rows are groups of ratio {own}"
    )
    labels = (Label(flow.made_place(kind, source), "the source"), Label(flow.ratio_place(source), f"ratio {own}"))
    if (kind, first) in flow.named:
        help_text = f"name a source of ratio {theirs[0]} in `layers.reads[{first}].{kind}`"
    else:
        help_text = (
            f"give {layers(wrong)} ratio {own}, or add {first} to `kv_source_layers` and `index_source_layers` "
            f"so that a history of ratio {flow.ratios[first]} starts there"
        )
    facts = (ratio_fact(flow, first), ratio_fact(flow, source))
    return Diagnostic("DSV403", message, flow.read_place(kind, first), labels, facts, help_text)


def index_source_without_keys(flow: Flow, ledger: Ledger) -> None:
    """An index source scores keys; a layer owns keys only if it is both a KV source and an index source."""
    for layer, owner in flow.reads["index_k"].items():
        history = flow.reads["compress_kv"].get(layer)
        rests_on = [*behind(flow, "index_k", layer), read("compress_kv", layer), made("index_k", history)]
        if owner is not None:
            continue
        spoils = [read("index_k", layer), made("topk", layer)]
        if not ledger.sound(*rests_on):
            ledger.spoil(spoils)
            continue
        message = f"layer {layer} is an index source, and no layer at or before it owns index keys to score"
        help_text = "put a layer at or before it in both `kv_source_layers` and `index_source_layers`"
        facts = (("layers that own index keys", listing(flow.producers["index_k"])),)
        ledger.report(
            Diagnostic("DSV406", message, flow.read_place("index_k", layer), facts=facts, help=help_text), spoils
        )


def reader_without_selection(flow: Flow, ledger: Ledger) -> None:
    """A layer with a compressed branch needs to know which groups to attend to."""
    readers = []
    for layer, source in flow.reads["topk"].items():
        history = flow.reads["compress_kv"].get(layer)
        rests_on = [*behind(flow, "topk", layer), read("compress_kv", layer), made("topk", history)]
        if source is None and ledger.sound(*rests_on):
            readers.append(layer)
    if not readers:
        return
    first = readers[0]
    message = (
        f"{layers(readers)} {plural(readers, 'reads', 'read')} a selection, no index source at or before "
        + plural(readers, "it", "them")
    )
    facts = (ratio_fact(flow, first), ("layers.index_source_layers", listing(flow.producers["topk"])))
    help_text = f"add the KV source that {layers(readers)} {plural(readers, 'reads', 'read')} to `index_source_layers`"
    place = flow.read_place("topk", first)
    spoils = [read("topk", layer) for layer in readers]
    ledger.report(Diagnostic("DSV402", message, place, facts=facts, help=help_text), spoils)


def selection_of_another_history(flow: Flow, ledger: Ledger) -> None:
    """Selected group numbers mean something only in the history whose keys were scored."""
    clashes: dict[tuple[int, int, int], list[int]] = {}
    for layer, selection in flow.reads["topk"].items():
        history = flow.reads["compress_kv"].get(layer)
        if selection is None or history is None:
            continue
        scored = flow.reads["index_k"].get(selection)
        rests_on = [*behind(flow, "topk", layer), *behind(flow, "compress_kv", layer)]
        rests_on += [*behind(flow, "index_k", selection), made("topk", selection)]
        rests_on += [made("topk", history), made("index_k", history)]
        if scored is not None and scored != history and ledger.sound(*rests_on):
            clashes.setdefault((selection, scored, history), []).append(layer)
    for (selection, scored, history), readers in clashes.items():
        spoils = [read(kind, layer) for kind in ("topk", "compress_kv") for layer in readers]
        ledger.report(_clash(flow, selection, scored, history, readers), [*spoils, made("topk", selection)])


def _clash(flow: Flow, selection: int, scored: int, history: int, readers: list[int]) -> Diagnostic:
    first = readers[0]
    message = (
        f"{layers(readers)} {plural(readers, 'uses', 'use')} the selection `topk@L{selection}`, made over "
        f"`index_k@L{scored}`, on `compress_kv@L{history}`"
    )
    named = [kind for kind in ("topk", "compress_kv") if (kind, first) in flow.named]
    if ("index_k", selection) in flow.named:
        place = flow.read_place("index_k", selection)
    else:
        place = flow.read_place(named[0] if named else "topk", first)
    labels = (
        [Label(flow.made_place("topk", selection), f"the selection of layer {selection}")]
        if (flow.produces("topk", selection))
        else []
    )
    if flow.produces("compress_kv", history):
        labels.append(Label(flow.made_place("compress_kv", history), f"layer {history} starts another history"))
    facts = (
        (f"selection that layer {first} reads", f"topk@L{selection}"),
        (f"keys that layer {selection} scores", f"index_k@L{scored}"),
        (f"history that layer {first} reads", f"compress_kv@L{history}"),
    )
    help_text = f"let {layers(readers)} read a selection made over `index_k@L{history}`"
    if flow.ratios.get(first) == flow.ratios.get(scored):
        help_text += f", or read `compress_kv@L{scored}` with this one"
    return Diagnostic("DSV405", message, place, tuple(labels), facts, help_text)


def _by_source(flow: Flow, kind: str) -> dict[int, list[int]]:
    groups: dict[int, list[int]] = {}
    for layer, source in flow.reads[kind].items():
        if source is not None and source in flow.ratios and flow.produces(kind, source):
            groups.setdefault(source, []).append(layer)
    return groups
