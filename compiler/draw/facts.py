"""What the passes know of a graph's values and ops, for the viewer's panel."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod
from types import MappingProxyType

from dsv41c.compiler.draw.overlay import Overlay
from dsv41c.compiler.draw.picture import group_of
from dsv41c.compiler.draw.view import Facts, Measure
from dsv41c.compiler.ir import Value
from dsv41c.compiler.passes import Program
from dsv41c.compiler.passes.fuse import kernel_name
from dsv41c.compiler.plan.weights import weight_entries
from dsv41c.kernels.catalog import CARRIERS, DTYPE_BYTES, STATE_KINDS

__all__ = ["Facts", "facts", "sizes"]


def facts(program: Program, texts: Mapping[str, str] = MappingProxyType({})) -> Facts:
    """The facts of a program that went through every pass; `texts` of the files that its places name."""
    calls = [call for region in program.regions for call in region.calls]
    return Facts(
        {value: life.bytes for value, life in program.lifetimes.items()},
        {op: region.id for region in program.regions for op in region.ops},
        {op: kernel_name(program, call) for call in calls for op in call.covers},
        {transfer.arrives_as: transfer.bytes_per_token for transfer in program.transfers},
        dict(_growth(program, program.graph.values.values())),
        texts,
    )


def _growth(program: Program, values: Iterable[Value]) -> Iterable[tuple[str, float]]:
    """Session state that grows with the context: a row's bytes, or a token's share of its group's row."""
    for value in values:
        if value.layer is not None and STATE_KINDS[value.kind].crosses == "mirror":
            row = DTYPE_BYTES[value.dtype] * prod(int(size) for size in value.shape[1:])
            yield value.id, row / program.layer_map.ratios[value.layer]


def sizes(program: Program) -> Overlay:
    """The bytes of each layer: its weights as the official checkpoint stores them, its state of one session at
    `runtime.max_context`, and what of that a token adds; copies on other devices are left out."""
    weights, state, growth = dict[str, float](), dict[str, float](), dict[str, float]()
    for weight in weight_entries(program.spec, program.graph):
        row = group_of(program.graph.by_id[weight.ops[0]])
        weights[row] = weights.get(row, 0) + weight.bytes
    grows = dict(_growth(program, program.graph.written))
    for value in program.graph.written:
        producer = program.graph.producer(value.id)
        if value.scope == "session" and producer is not None and producer.kind not in CARRIERS:
            row = group_of(producer)
            state[row] = state.get(row, 0) + program.lifetimes[value.id].bytes
            growth[row] = growth.get(row, 0) + grows.get(value.id, 0)
    named = (("weights, as stored", weights), ("state of a session", state), ("state that a token adds", growth))
    return Overlay("What layers take", tuple(Measure(name, "B", tuple(found.items())) for name, found in named))
