"""What the passes know of a graph's values and ops, for the viewer's panel."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod
from types import MappingProxyType

from dsv41c.compiler.draw.view import Facts
from dsv41c.compiler.ir import Value
from dsv41c.compiler.passes import Program
from dsv41c.compiler.passes.fuse import kernel_name
from dsv41c.kernels.catalog import DTYPE_BYTES, STATE_KINDS

__all__ = ["Facts", "facts"]


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
