"""Liveness: when each value is first written and last read, and what it weighs."""

from __future__ import annotations

from dataclasses import replace

from dsv41c.compiler.passes.program import Lifetime, Program


def liveness(program: Program) -> Program:
    """Lifetimes by value id. Session state and the graph's outputs outlive the call: they are live to the last op."""
    graph, shapes = program.graph, program.shapes
    first = {value.id: -1 for value in graph.inputs}
    last: dict[str, int] = {}
    for position, op in enumerate(graph.ops):
        first |= dict.fromkeys(op.write_ids, position)
        last |= dict.fromkeys(op.read_ids, position)
    end = len(graph.ops) - 1
    lifetimes = {
        value.id: Lifetime(
            first[value.id],
            end if value.scope == "session" else last.get(value.id, end if value.id == "logits" else first[value.id]),
            shapes.bytes(value.shape, value.dtype),
        )
        for value in graph.values.values()
    }
    return replace(program, lifetimes=lifetimes)
