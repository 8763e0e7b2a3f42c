"""Rows: how many rows at the end of a prompt each region has to compute, where only the last logits are wanted.

What outlives a prompt is session state, and the logits of its last token. Backwards from these:

- a ring keeps the last W rows, so the region that writes one needs these; all other session state (compressed KV and
  index keys with their tails, the token history) keeps something of every row;
- a row's attention reads the ring's W-1 rows before it, so a region that is to give n rows needs n + W-1;
- a region gives as many rows as the readers of its values need of them.

With d layers from here to the last one, all after the last KV source, that is W + (d-1)(W-1): computing only those is
exact. It is worked out for whole regions: the layer that makes the last compressed KV computes every row, although only
its compressor has to.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from dsv41c.compiler.ir import Graph, Op
from dsv41c.compiler.passes.program import Program, Region
from dsv41c.kernels.catalog import CARRIERS, STATE_KINDS


def rows(program: Program) -> Program:
    """The program with `tail_rows` of every region: None where every row is needed."""
    graph = program.graph
    tails: dict[str, int | None] = {}  # by op; all ops of a region compute the same rows
    for region in reversed(program.regions):
        tail = _tail(graph, region, tails)
        tails |= dict.fromkeys(region.ops, tail)
    regions = tuple(replace(region, tail_rows=tails[region.ops[0]]) for region in program.regions)
    return replace(program, regions=regions)


def _tail(graph: Graph, region: Region, tails: dict[str, int | None]) -> int | None:
    """The rows of a region, from those of the regions behind it."""
    ops = [graph.by_id[op] for op in region.ops]
    given = _most(_given(graph, region, tails))
    kept = _most(_kept(graph, ops))
    if given is None or kept is None:
        return None
    return max(given + _reach(graph, ops), kept, 1)


def _given(graph: Graph, region: Region, tails: dict[str, int | None]) -> Iterable[int | None]:
    """The rows that each reader behind a region, on whatever stage, needs of what it writes."""
    values = [value for value in region.writes if graph.values[value].scope == "step"]
    for value in values:  # grows by the copies that other stages get
        if value == "logits":
            yield 1
        for reader in graph.readers(value):
            if reader.kind in CARRIERS:
                values += reader.write_ids
            elif reader.id not in region.ops:
                yield tails[reader.id]


def _kept(graph: Graph, ops: list[Op]) -> Iterable[int | None]:
    """The rows that each session state which a region writes keeps something of."""
    for op in ops:
        for value in op.write_ids:
            kind = STATE_KINDS[graph.values[value].kind]
            if kind.scope == "session":
                yield int(op.attr("window")) if kind.name == "window_kv" else None


def _reach(graph: Graph, ops: list[Op]) -> int:
    """How many rows before its own a region reads from its ring."""
    windows = [
        int(op.attr("window"))
        for op in ops
        if any(graph.values[value].kind == "window_kv" for value in op.read_ids)
        and any(graph.values[value].scope == "step" for value in op.write_ids)
    ]
    return max(windows, default=1) - 1


def _most(counts: Iterable[int | None]) -> int | None:
    """The largest of some counts, None (every row) above all; 0 of none."""
    known = list(counts)
    return None if None in known else max((count for count in known if count is not None), default=0)
