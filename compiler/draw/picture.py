"""What a picture shows, before any format: nodes, and arrows that carry values. Coordinates and syntax come later.

Two levels: `op` (ops and values as nodes, as in the graph) and `layer` (a node a layer, arrows for what one layer reads
of another's), which is the one that stays readable for a whole model.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from dsv41c.compiler.ir import Graph, Op
from dsv41c.compiler.layer_map import SHARED_KINDS
from dsv41c.compiler.select import Selection, original
from dsv41c.diagnostics import Span
from dsv41c.kernels.catalog import CARRIERS, COLLECTIVES
from dsv41c.words import counted

Level = Literal["layer", "op"]


@dataclass(frozen=True, slots=True)
class Node:
    """A node: `shape` is op, layer or value; `kind` the op kind or the state kind."""

    id: str
    label: str
    shape: Literal["op", "value", "layer"]
    kind: str
    stage: int
    span: Span


@dataclass(frozen=True, slots=True)
class Arrow:
    """Values that go from one node to another. `kind` is the state kind to colour by, `crossing` between two stages."""

    source: str
    target: str
    values: tuple[str, ...]
    kind: str
    crossing: bool


@dataclass(frozen=True, slots=True)
class Picture:
    """Nodes in graph order and arrows in reading order; `remarks` are lines to lead with."""

    name: str
    level: Level
    devices: tuple[str, ...]
    nodes: tuple[Node, ...]
    arrows: tuple[Arrow, ...]
    remarks: tuple[str, ...] = ()
    focus: str | None = None  # the row or state to look at first

    def focused(self, node: Node) -> bool:
        """Whether a node is the one to look at first."""
        return self.focus is not None and self.focus == (node.label if node.shape != "layer" else node.id)


def picture(
    graph: Graph,
    level: Level,
    selection: Selection | None = None,
    devices: Sequence[str] = (),
    hidden: Collection[str] = (),
    remarks: Sequence[str] = (),
) -> Picture:
    """The picture of a graph or of a selection of it; values of the `hidden` kinds are left out."""
    make = _layer_level if level == "layer" else _op_level
    nodes, arrows = make(graph, selection, frozenset(hidden))
    return Picture(graph.name, level, tuple(devices), tuple(nodes), tuple(arrows), tuple(remarks))


def _op_level(graph: Graph, selection: Selection | None, hidden: frozenset[str]) -> tuple[list[Node], list[Arrow]]:
    chosen = graph.by_id.keys() if selection is None else selection.shown_ops
    ops = [op for op in graph.ops if op.id in chosen]
    touched = {value for op in ops for value in (*op.read_ids, *op.write_ids)}
    shown = touched if selection is None else touched | selection.shown_values
    values = [v for v in graph.values.values() if v.id in shown and v.kind not in hidden]
    kinds = {value.id: value for value in values}
    nodes = [Node(f"op:{op.id}", op.id, "op", op.kind, op.stage, op.span) for op in ops]
    nodes += [Node(f"value:{v.id}", v.id, "value", v.kind, v.stage, v.span) for v in values]
    arrows = []
    for op in ops:
        for value in dict.fromkeys(op.read_ids):
            if value in kinds:
                crossing = kinds[value].stage != op.stage
                arrows.append(Arrow(f"value:{value}", f"op:{op.id}", (value,), kinds[value].kind, crossing))
        arrows += [
            Arrow(f"op:{op.id}", f"value:{value}", (value,), kinds[value].kind, False)
            for value in dict.fromkeys(op.write_ids)
            if value in kinds
        ]
    return nodes, arrows


def group_of(op: Op) -> str:
    """The layer-level node of an op: its layer, the model's entry or exit, or itself where it belongs to a stage."""
    if op.layer is not None:
        return f"layers.{op.layer}"
    if op.id.startswith("stages."):  # a later device that hashes for itself
        return op.id
    return "embed" if op.kind in ("embed", "engram_ids") else "head"


def _layer_level(graph: Graph, selection: Selection | None, hidden: frozenset[str]) -> tuple[list[Node], list[Arrow]]:
    groups: dict[str, list[Op]] = {}
    for op in graph.ops:
        if op.kind not in CARRIERS:
            groups.setdefault(group_of(op), []).append(op)
    shown = shown_groups(graph, selection, groups)
    nodes = [
        Node(name, _layer_label(name, ops), "layer", "layer", ops[0].stage, layer_span(ops))
        for name, ops in groups.items()
        if name in shown
    ]
    return nodes, _layer_arrows(graph, groups, shown, selection, hidden)


def shown_groups(graph: Graph, selection: Selection | None, groups: dict[str, list[Op]]) -> set[str]:
    """The layer-level nodes that a selection shows: those of its ops, and those that make its values."""
    if selection is None:
        return set(groups)
    ops = {group_of(graph.by_id[op]) for op in selection.shown_ops}
    producers = {group_of(op) for value in selection.shown_values for op in _origins(graph, value)}
    return (ops | producers) & groups.keys()


def _origins(graph: Graph, value: str) -> tuple[Op, ...]:
    return graph.producers.get(original(graph, value), ())


def _layer_label(name: str, ops: Sequence[Op]) -> str:
    owned = [kind for kind in SHARED_KINDS if any(port == kind for op in ops for port, _ in op.writes)]
    label = name.replace("layers.", "layer ")
    details = details_of(ops)
    return "\n".join([label, *([details] if details else []), *([f"makes {', '.join(owned)}"] if owned else [])])


def details_of(ops: Sequence[Op]) -> str:
    """What tells a layer from others: ratio, engram, collectives with their bytes."""
    ratios = {int(op.attr("ratio")) for op in ops if op.kind == "attend"}
    details = [f"ratio {ratio}" if ratio else "window only" for ratio in sorted(ratios)]
    details += ["engram"] if any(op.kind == "engram_gate" for op in ops) else []
    meeting = [int(op.attr("bytes_per_token")) for op in ops if op.kind in COLLECTIVES]
    details += [f"{counted(len(meeting), 'collective')} ({sum(meeting):,} bytes a token)"] if meeting else []
    return ", ".join(details)


def layer_span(ops: Sequence[Op]) -> Span:
    """The layer's entry in `compress_ratios`, which its attention comes from."""
    return next((op.span for op in ops if op.kind in ("attend", "embed")), ops[0].span)


def _layer_arrows(
    graph: Graph,
    groups: dict[str, list[Op]],
    shown: set[str],
    selection: Selection | None,
    hidden: frozenset[str],
) -> list[Arrow]:
    """Arrows between layers: all that one reads of another in one arrow, coloured by its first shared state."""
    carried: dict[tuple[str, str], list[str]] = {}
    crossing: set[tuple[str, str]] = set()
    wanted = None if selection is None else {original(graph, v) for v in selection.values} or None
    for target, ops in groups.items():
        for value in dict.fromkeys(value for op in ops for value in op.read_ids):
            first = original(graph, value)
            producer = graph.producer(first)
            if producer is None or (wanted is not None and first not in wanted) or graph.values[first].kind in hidden:
                continue
            pair = (group_of(producer), target)
            if pair[0] == target or not shown.issuperset(pair):
                continue
            carried.setdefault(pair, [])
            if first not in carried[pair]:
                carried[pair].append(first)
            if producer.stage != ops[0].stage:
                crossing.add(pair)
    return [
        Arrow(*pair, tuple(values), _lead_kind(graph, values), pair in crossing) for pair, values in carried.items()
    ]


def _lead_kind(graph: Graph, values: Sequence[str]) -> str:
    kinds = [graph.values[value].kind for value in values]
    return next((kind for kind in kinds if kind in SHARED_KINDS), kinds[0])
