"""The selection language of `--select`: which ops and values of a graph a picture or a listing shows.

    EXPR   = ITEM {"," ITEM}
    ITEM   = ["+" | "++"] ATOM ["+" | "++"]
    ATOM   = layers.N | layers.N-M | layers.N.attn | OP | VALUE | kind:KIND | device:DEVICE

`+X` is what feeds X directly, `X+` what X feeds directly, `++X` and `X++` the same all the way; X itself is not in it
(`X,X+` is both). Of ops, what feeds them are the values they read from elsewhere; of a value, the op that writes it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from dsv41c.compiler.ir import Graph, Op
from dsv41c.diagnostics import Diagnostic, Span, UserFault
from dsv41c.kernels.catalog import CARRIERS, OPS, STATE_KINDS

SOURCE = "<--select>"
_ITEM = re.compile(r"(?P<before>\+{0,2})(?P<atom>[^+]+?)(?P<after>\+{0,2})")
_NEARLY_LAYERS = re.compile(r"(?:layers?[.@_]?L?|L)([0-9]{1,9}(?:-[0-9]{1,9})?)((?:\.(?:attn|ffn))?)", re.I)
_LAYERS = re.compile(r"layers\.([0-9]{1,9})(?:-([0-9]{1,9}))?(?:\.(attn|ffn))?")


@dataclass(frozen=True, slots=True)
class Item:
    """One item of an expression: an atom, how far to go before (0, 1 direct, 2 all) and after it, and its place."""

    atom: str
    before: int
    after: int
    span: Span


@dataclass(frozen=True, slots=True)
class Part:
    """What one item selects. `roots` are what its atom names, `nodes` the answer; both are ids in graph order."""

    item: Item
    root_ops: frozenset[str]
    root_values: frozenset[str]
    ops: frozenset[str]
    values: frozenset[str]


@dataclass(frozen=True, slots=True)
class Selection:
    """The union of an expression's parts."""

    parts: tuple[Part, ...]

    @property
    def ops(self) -> frozenset[str]:
        """Ids of the selected ops."""
        return frozenset().union(*(part.ops for part in self.parts))

    @property
    def values(self) -> frozenset[str]:
        """Ids of the selected values."""
        return frozenset().union(*(part.values for part in self.parts))

    @property
    def shown_ops(self) -> frozenset[str]:
        """The selected ops and those that the expression names: a picture shows both."""
        return self.ops.union(*(part.root_ops for part in self.parts))

    @property
    def shown_values(self) -> frozenset[str]:
        """The selected values and those that the expression names."""
        return self.values.union(*(part.root_values for part in self.parts))

    def subgraph(self, graph: Graph) -> Graph:
        """The selected ops, in order; selected values that none of them writes are inputs."""
        chosen, values = self.ops, self.values
        ops = tuple(op for op in graph.ops if op.id in chosen)
        written = {value for op in ops for value in op.write_ids}
        inputs = tuple(v for v in graph.values.values() if v.id in values and v.id not in written)
        kept = tuple(value for value in graph.written if value.id in written)
        return Graph(graph.name, ops, inputs, kept)


def select(graph: Graph, expression: str, devices: Sequence[str] = ()) -> Selection:
    """What an expression selects. `devices` are those of the stages, in order.

    Raises `UserFault` with DSV150 (not of this grammar) and DSV151 (names nothing) for every bad item.
    """
    return select_each([(graph, devices)], expression)[0]


def select_each(sides: Sequence[tuple[Graph, Sequence[str]]], expression: str) -> tuple[Selection, ...]:
    """What an expression selects in each of several graphs. An item has to name something in one of them at least.

    Raises `UserFault` as `select` does; what names nothing anywhere is told of the first graph.
    """
    faults: list[Diagnostic] = []
    items = _items(expression, faults)
    parts: list[list[Part]] = [[] for _ in sides]
    for item in items:
        unknown: list[Diagnostic] = []
        for own, (graph, devices) in zip(parts, sides, strict=True):
            ops, values = _atom(graph, item, devices, unknown)
            own.append(_part(graph, item, ops, values))
        faults += unknown[:1] if len(unknown) == len(sides) else ()
    if faults:
        raise UserFault(faults)
    return tuple(Selection(tuple(own)) for own in parts)


# --- the grammar ------------------------------------------------------------------------------------------------------


def _items(expression: str, faults: list[Diagnostic]) -> list[Item]:
    items = []
    column = 1
    for text in expression.split(","):
        word = text.strip()
        start = column + len(text) - len(text.lstrip())
        span = Span(SOURCE, 1, start, 1, start + max(len(word), 1))
        column += len(text) + 1
        match = _ITEM.fullmatch(word)
        if match is None or re.search(r"\s", word):
            faults.append(_malformed(word, span))
        else:
            items.append(Item(match["atom"], len(match["before"]), len(match["after"]), span))
    return items


def _malformed(word: str, span: Span) -> Diagnostic:
    what = f"`{word}` is not an item of a selection" if word else "an item of the selection is empty"
    help_text = (
        "write `layers.30`, `layers.20-29`, `compress_kv@L20`, `kind:topk` or `device:cuda:1`, "
        "with `+` or `++` before or after"
    )
    return Diagnostic("DSV150", what, span, help=help_text)


def _atom(
    graph: Graph, item: Item, devices: Sequence[str], faults: list[Diagnostic]
) -> tuple[frozenset[str], frozenset[str]]:
    """The ops and values that an atom names; reports one that names nothing."""
    atom = item.atom
    if atom.startswith("kind:"):
        ops, values, known = _of_kind(graph, atom.removeprefix("kind:"))
    elif atom.startswith("device:"):
        ops, values, known = _of_device(graph, atom.removeprefix("device:"), devices)
    elif match := _LAYERS.fullmatch(atom):
        first, last = int(match[1]), int(match[2] or match[1])
        ops = {op.id for op in graph.ops if op.layer is not None and first <= op.layer <= last and _in(op, match[3])}
        values, known = set(), sorted({f"layers.{op.layer}" for op in graph.ops if op.layer is not None}, key=_natural)
        if last < first:
            ops = set()
    else:
        ops = {atom} & graph.by_id.keys()
        values = {atom} & graph.values.keys()
        known = [*graph.values, *graph.by_id]
    if not ops and not values:
        faults.append(_names_nothing(graph, item, known))
    return frozenset(ops), frozenset(values)


def _natural(text: str) -> tuple[object, ...]:
    return tuple(int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", text))


def _in(op: Op, sublayer: str | None) -> bool:
    return sublayer is None or op.id.split(".")[2] == sublayer


def _of_kind(graph: Graph, kind: str) -> tuple[set[str], set[str], list[str]]:
    ops = {op.id for op in graph.ops if op.kind == kind}
    values = {value.id for value in graph.values.values() if value.kind == kind}
    return ops, values, [f"kind:{name}" for name in (*STATE_KINDS, *OPS)]


def _of_device(graph: Graph, device: str, devices: Sequence[str]) -> tuple[set[str], set[str], list[str]]:
    stages = {stage for stage, name in enumerate(devices) if name == device}
    return (
        {op.id for op in graph.ops if op.stage in stages},
        set(),
        [f"device:{name}" for name in dict.fromkeys(devices)],
    )


def _names_nothing(graph: Graph, item: Item, known: Sequence[str]) -> Diagnostic:
    near = get_close_matches(item.atom, known, n=3, cutoff=0.6)
    facts = []
    layers = [op.layer for op in graph.ops if op.layer is not None]
    layer = _meant_layers(item.atom, set(layers))
    if layer is not None:
        near = [layer]
    elif item.atom.startswith("layers") and layers:
        facts.append(("layers of this graph", f"{min(layers)}-{max(layers)}"))
        near = []
    if item.atom.startswith(("device:", "kind:")):
        facts.append(("known", ", ".join(known)))
    if near:
        help_text = "did you mean " + " or ".join(f"`{name}`" for name in near) + "?"
    elif facts:
        help_text = "name one that the graph has"
    else:
        help_text = "`dsv41c graph SPEC --format text` lists every op and value"
    message = f"`{item.atom}` names nothing in the graph of `{graph.name}`"
    return Diagnostic("DSV151", message, item.span, facts=tuple(facts), help=help_text)


def _meant_layers(atom: str, layers: set[int]) -> str | None:
    """`layers.3` for `layer.3`, `layer3`, `L3` and the like, where there are such layers."""
    match = _NEARLY_LAYERS.fullmatch(atom)
    if match is None or not {int(number) for number in match[1].split("-")} <= layers:
        return None
    meant = f"layers.{match[1]}{match[2]}"
    return meant if meant != atom else None


# --- before and after -------------------------------------------------------------------------------------------------


def _part(graph: Graph, item: Item, root_ops: frozenset[str], root_values: frozenset[str]) -> Part:
    if not item.before and not item.after:
        return Part(item, root_ops, root_values, root_ops, root_values)
    ops: set[str] = set()
    values: set[str] = set()
    for steps, walk in ((item.before, feeding), (item.after, fed)):
        if not steps:
            continue
        front_ops, front_values = walk(graph, root_ops, root_values)
        while front_ops or front_values:
            ops |= front_ops
            values |= front_values
            if steps == 1:
                break
            next_ops, next_values = walk(graph, front_ops, front_values)
            front_ops, front_values = next_ops - ops, next_values - values
    return Part(item, root_ops, root_values, frozenset(ops - root_ops), frozenset(values - root_values))


def feeding(graph: Graph, ops: Iterable[str], values: Iterable[str]) -> tuple[set[str], set[str]]:
    """What feeds some ops and values directly: values the ops read from elsewhere, writers of the values."""
    chosen = [graph.by_id[op] for op in ops]
    written = {value for op in chosen for value in op.write_ids}
    read = {value for op in chosen for value in op.read_ids if value in graph.values}
    producers = {op.id for value in values for op in graph.producers.get(value, ())}
    return producers, read - written


def fed(graph: Graph, ops: Iterable[str], values: Iterable[str]) -> tuple[set[str], set[str]]:
    """What some ops and values feed directly: values read elsewhere or left for later, and the readers of the values.

    A copy on another device is the same value to its readers, so they count as readers of the original.
    """
    inside = set(ops)
    leaving = {value for op in inside for value in graph.by_id[op].write_ids if _leaves(graph, value, inside)}
    return {op.id for value in values for op in readers(graph, value)}, leaving


def _leaves(graph: Graph, value: str, inside: set[str]) -> bool:
    read_by = graph.readers(value)
    if any(op.id not in inside for op in read_by):
        return True
    return graph.values[value].scope == "session" or (not read_by and value == "logits")


def readers(graph: Graph, value: str) -> tuple[Op, ...]:
    """The ops that read a value, here or as a copy on another device; the copying ops come first."""
    found: dict[str, Op] = {}
    waiting = [value]
    while waiting:
        for op in graph.readers(waiting.pop(0)):
            if op.id not in found:
                found[op.id] = op
                waiting += op.write_ids if op.kind in CARRIERS else ()
    return tuple(found.values())


def original(graph: Graph, value: str) -> str:
    """The value that a copy on another device is a copy of; any other value itself."""
    producer = graph.producer(value)
    while producer is not None and producer.kind in CARRIERS:
        value = producer.read_ids[0]
        producer = graph.producer(value)
    return value
