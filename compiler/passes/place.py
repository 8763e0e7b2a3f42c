"""Place: the stage of every op and value, from `placement.layer_ends`."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import replace

from dsv41c.compiler.ir import Graph, Op, Value
from dsv41c.compiler.passes.program import Program


def place(program: Program) -> Program:
    """Ops of a layer go to its stage, the entry to the first stage, the exit to the last.

    `engram_ids` goes to the first stage that has an engram layer: a first stage without one would hash for nobody.
    """
    ends = tuple(program.spec.placement.layer_ends)
    engrams = program.layer_map.engrams
    hashing = bisect_right(ends, min(engrams)) if engrams else 0

    def stage(op: Op) -> int:
        if op.layer is not None:
            return bisect_right(ends, op.layer)
        if op.kind == "engram_ids":
            return hashing
        return 0 if op.kind == "embed" else len(ends) - 1

    ops = tuple(replace(op, stage=stage(op)) for op in program.graph.ops)
    written = {value: op.stage for op in ops for value in op.write_ids}

    def placed(value: Value) -> Value:
        if value.id in written:
            return replace(value, stage=written[value.id])
        if value.layer is not None:
            return replace(value, stage=bisect_right(ends, value.layer))
        return replace(value, stage=hashing if value.kind == "token_history" else 0)

    graph = program.graph
    inputs, values = tuple(map(placed, graph.inputs)), tuple(map(placed, graph.written))
    return replace(program, graph=Graph(graph.name, ops, inputs, values))
