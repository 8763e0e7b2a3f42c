"""`--focus` and `--depth`: one thing of a graph, and what is within so many steps of it, upstream and downstream.

And the same part of two graphs, where they are compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Literal

from dsv41c.compiler.draw.picture import Level, group_of
from dsv41c.compiler.ir import Graph, Op
from dsv41c.compiler.select import Part, Selection, original, readers
from dsv41c.kernels.catalog import CARRIERS

Focus = tuple[Literal["row", "state"], str]


def focus_of(graph: Graph, selection: Selection, level: Level) -> Focus | None:
    """The row or the state that an expression of one item names; None where it names nothing in this graph."""
    (part,) = selection.parts
    if part.root_values:
        return "state", min(part.root_values)
    op = next((op for op in graph.ops if op.id in part.root_ops), None)
    if op is None:
        return None
    if op.kind in CARRIERS:
        return "state", op.write_ids[0]
    single = level == "op" and part.item.atom == op.id
    return "row", op.id if single else group_of(op)


def around(graph: Graph, selection: Selection, depth: int, level: Level) -> Selection:
    """What is at most `depth` steps from what a selection shows. A step leads from a reader to the maker of a value, or
    back; at layer level whole layers make and read."""
    inner = {op for op in selection.shown_ops if graph.by_id[op].kind not in CARRIERS}
    values = {original(graph, value) for value in selection.shown_values}
    up = down = _whole(graph, inner, level)
    feeding, fed = set(values), set(values)
    for _ in range(depth):
        made = _whole(graph, _makers(graph, feeding | _read(graph, up)), level)
        reading = _whole(graph, _readers(graph, fed | _written(graph, down)), level)
        if made <= up and reading <= down:
            break
        up, down, feeding, fed = up | made, down | reading, set(), set()
    ops = up | down
    for op in reversed(graph.ops):  # what carries values between them
        if op.kind in CARRIERS and any(reader.id in ops for value in op.write_ids for reader in graph.readers(value)):
            root = original(graph, op.write_ids[0])
            if root in values or (maker := graph.producer(root)) is None or maker.id in ops:
                ops.add(op.id)
    read = {v for op in ops for v in graph.by_id[op].read_ids}
    inside = {v for v in read if (maker := graph.producer(v)) is None or maker.id in ops}
    kept = values | inside | _written(graph, ops)
    item = replace(selection.parts[0].item, before=0, after=0)
    shown, held = frozenset(ops), frozenset(kept & graph.values.keys())
    return Selection((Part(item, shown, held, shown, held),))


def alike(sides: Sequence[tuple[Graph, Selection]], level: Level) -> list[Selection]:
    """Selections of graphs that are compared, each with the rows and values of the others: what is drawn of one graph
    alone is then in that graph alone, and not only in what was asked of it."""
    values = {original(graph, value) for graph, one in sides for value in one.shown_values}
    rows = {_row(graph.by_id[op], level) for graph, one in sides for op in one.shown_ops}
    rows |= {_row(op, level) for graph, _ in sides for value in values for op in graph.producers.get(value, ())}
    united = []
    for graph, one in sides:
        ops = frozenset(op.id for op in graph.ops if op.kind not in CARRIERS and _row(op, level) in rows)
        part = Part(one.parts[0].item, ops, frozenset(values), ops, frozenset(values))
        united.append(Selection((part,)))
    return united


def _row(op: Op, level: Level) -> str:
    return op.id if level == "op" else group_of(op)


def _whole(graph: Graph, ops: Iterable[str], level: Level) -> set[str]:
    """The ops, or at layer level all ops of their layers."""
    chosen = set(ops)
    if level == "op":
        return chosen
    groups = {group_of(graph.by_id[op]) for op in chosen}
    return {op.id for op in graph.ops if op.kind not in CARRIERS and group_of(op) in groups}


def _read(graph: Graph, ops: Iterable[str]) -> set[str]:
    return {original(graph, value) for op in ops for value in graph.by_id[op].read_ids if value in graph.values}


def _written(graph: Graph, ops: Iterable[str]) -> set[str]:
    return {value for op in ops for value in graph.by_id[op].write_ids}


def _makers(graph: Graph, values: Iterable[str]) -> set[str]:
    return {op.id for value in values for op in graph.producers.get(value, ())}


def _readers(graph: Graph, values: Iterable[str]) -> set[str]:
    found: set[Op] = {op for value in values for op in readers(graph, value)}
    return {op.id for op in found if op.kind not in CARRIERS}
