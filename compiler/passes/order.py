"""Order: a topological order of the ops, the same every time, as near to program order as the reads allow."""

from __future__ import annotations

from dataclasses import replace

from dsv41c.compiler.passes.program import Program


def order(program: Program) -> Program:
    """Stages one after the other; writers of a storage after every op that reads what was there before."""
    from networkx import lexicographical_topological_sort

    graph = program.graph
    rank = {op.id: (op.stage, number, 0) for number, op in enumerate(graph.ops)}
    rank |= {value: (*rank[op.id][:2], 1) for op in graph.ops for value in op.write_ids}
    first = (-1, -1, 0)
    nodes = lexicographical_topological_sort(graph.digraph(), key=lambda node: rank.get(node, first))
    ops = [graph.by_id[node] for node in nodes if node in graph.by_id]
    written = {value.id: value for value in graph.written}
    ordered = tuple(written[value] for op in ops for value in op.write_ids)
    return replace(program, graph=replace(graph, ops=tuple(ops), written=ordered))
