"""Checks of the layer map's lists by themselves: in range, once, in order, on layers that have a compressed branch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from dsv41c.compiler.checks.ledger import Ledger, listed, read
from dsv41c.compiler.checks.view import LAYER_LISTS, View
from dsv41c.compiler.checks.words import listing
from dsv41c.compiler.layer_map import SHARED_KINDS
from dsv41c.diagnostics import Diagnostic, Edit, Label, Span

_SOURCES = {"kv_source_layers": "KV source", "index_source_layers": "index source"}
_CANDIDATE = "candidate_source_layer"
_FEW = 16  # entries of a list that a way out writes whole


def out_of_range(view: View, ledger: Ledger) -> None:
    """Every layer that is named exists; where the number of layers is not known, none is negative."""
    if view.layers is None:
        return
    end = None if view.model is None else view.model.n_layers
    named = [(name, index, layer) for name in LAYER_LISTS for index, layer in view.entries(name)]
    for name, index, layer in named:
        if _beyond(layer, end):
            key = f"layers.{name}[{index}]"
            ledger.report(_no_layer(name, key, view.place("layers", name, index), layer, end), [listed(name)])
    candidate = view.layers.candidate_source_layer
    if candidate is not None and _beyond(candidate, end):
        key, place = f"layers.{_CANDIDATE}", view.place("layers", _CANDIDATE)
        ledger.report(_no_layer(_CANDIDATE, key, place, candidate, end), [listed(_CANDIDATE)])


def _beyond(layer: int, end: int | None) -> bool:
    return layer < 0 or (end is not None and layer >= end)


def _no_layer(name: str, key: str, place: Span, layer: int, end: int | None) -> Diagnostic:
    if end is None:
        message = f"`{name}` names layer {layer}, layers are counted from 0"
        return Diagnostic("DSV301", message, place, facts=((key, str(layer)),), help="name a layer of the backbone")
    message = f"`{name}` names layer {layer}, the backbone has layers 0 to {end - 1}"
    facts = ((key, str(layer)), ("model.n_layers", str(end)))
    help_text = f"name a layer from 0 to {end - 1}" + ("; layers are zero-based" if layer == end else "")
    return Diagnostic("DSV301", message, place, facts=facts, help=help_text)


def repeated(view: View, ledger: Ledger) -> None:
    """No list names a layer twice."""
    for name in LAYER_LISTS:
        first: dict[int, int] = {}
        for index, layer in view.entries(name):
            if first.setdefault(layer, index) == index:
                continue
            message = f"`{name}` names layer {layer} twice"
            labels = (Label(view.place("layers", name, first[layer]), "named here first"),)
            facts = ((f"layers.{name}[{first[layer]}]", str(layer)), (f"layers.{name}[{index}]", str(layer)))
            help_text = "remove one of the two, or name the layer that was meant"
            place = view.place("layers", name, index)
            ledger.report(Diagnostic("DSV302", message, place, labels, facts, help_text), [listed(name)])


def unsorted(view: View, ledger: Ledger) -> None:
    """Every list is ascending; judged on entries that are in range, not repeated and not on a ratio-0 layer."""
    ratios = None if view.layer_map is None else view.layer_map.ratios
    for name in LAYER_LISTS:
        times = Counter(layer for _, layer in view.entries(name))
        highest = (-1, -1)
        for index, layer in view.entries(name):
            if layer < 0 or times[layer] > 1:
                continue
            if ratios is not None and (layer >= len(ratios) or (name in _SOURCES and ratios[layer] == 0)):
                continue
            if layer > highest[1]:
                highest = (index, layer)
                continue
            _disorder(view, ledger, name, (index, layer), highest)
            break


def _disorder(view: View, ledger: Ledger, name: str, entry: tuple[int, int], before: tuple[int, int]) -> None:
    message = f"`{name}` is not ascending: layer {entry[1]} comes after layer {before[1]}"
    labels = (Label(view.place("layers", name, before[0]), f"layer {before[1]}"),)
    facts = tuple((f"layers.{name}[{index}]", str(layer)) for index, layer in (before, entry))
    numbers = sorted(layer for _, layer in view.entries(name))
    help_text = "write the layers in ascending order" + (f": {listing(numbers)}" if len(numbers) <= _FEW else "")
    if name == "engram_layers":
        help_text += ", and `engram.num_embeddings` with them"
    place = view.place("layers", name, entry[0])
    ledger.report(Diagnostic("DSV303", message, place, labels, facts, help_text, fix=_in_order(view, name)))


def _in_order(view: View, name: str) -> tuple[Edit, ...]:
    """The entries of a list in ascending order, each where another one stood.

    Engram layers take the rows of their tables along, or stay: in a list of rows that is not valid they cannot.
    """
    numbers = [layer for _, layer in view.entries(name)]
    order = sorted(range(len(numbers)), key=numbers.__getitem__)
    lists: list[tuple[tuple[str, str], Sequence[int]]] = [(("layers", name), numbers)]
    if name == "engram_layers":
        lists.append((("engram", "num_embeddings"), () if view.engram is None else view.engram.num_embeddings))
    edits: list[Edit] = []
    for path, values in lists:
        places = [view.place(*path, index) for index in range(len(values))]
        ascending = all((a.file, a.line, a.column) < (b.file, b.line, b.column) for a, b in pairwise(places))
        if len(values) != len(order) or not ascending or len({place.file for place in places}) != 1:
            return ()
        pairs = zip(places, values, (values[source] for source in order), strict=True)
        edits += (Edit(at, str(new)) for at, old, new in pairs if new != old)
    return tuple(edits)


def source_without_branch(view: View, ledger: Ledger) -> None:
    """A source sits on a layer with a compressed branch; one finding a layer, whatever lists it is in."""
    layer_map, layers = view.layer_map, view.layers
    if layer_map is None or layers is None:
        return
    places: dict[int, dict[str, Span]] = {}
    for name in _SOURCES:
        for index, layer in view.entries(name):
            places.setdefault(layer, {}).setdefault(name, view.place("layers", name, index))
    if layers.candidate_source_layer is not None:
        places.setdefault(layers.candidate_source_layer, {})[_CANDIDATE] = view.place("layers", _CANDIDATE)
    roles = {**_SOURCES, _CANDIDATE: "candidate source"}
    for layer, named in sorted(places.items()):
        if not 0 <= layer < len(layer_map.ratios) or layer_map.ratios[layer] > 0:
            continue
        role = " and ".join(roles[name] for name in named)
        message = f"layer {layer} is a {role} and has ratio 0, which means no compressed branch"
        first, *others = named.items()
        labels = [Label(place, f"also in `{name}`") for name, place in others]
        labels.append(Label(view.place("layers", "compress_ratios", layer), f"ratio of layer {layer}"))
        lists = " and ".join(f"`{name}`" for name in named)
        instead = f"take it out of {lists}" if set(named) != {_CANDIDATE} else "name another layer, or none"
        help_text = f"give layer {layer} a ratio of 1 or more, or {instead}"
        facts = ((f"layers.compress_ratios[{layer}]", "0"),)
        spoils = [*map(listed, named), *(read(kind, layer) for kind in SHARED_KINDS)]
        ledger.report(Diagnostic("DSV304", message, first[1], tuple(labels), facts, help_text), spoils)
