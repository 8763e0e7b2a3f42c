"""Segment: capture regions, one function each: the embedding, every layer, the head.

`runtime.capture` only says which regions the runtime captures, alone or together; it does not change them.
"""

from __future__ import annotations

from dataclasses import replace

from dsv41c.compiler.ir import Op
from dsv41c.compiler.passes.program import Program, Region
from dsv41c.kernels.catalog import CARRIERS

# One order of parameters and results everywhere, so that two layers read alike: what travels, then what is shared, then
# the state a layer keeps for itself.
_ORDER = (
    "ids",
    "streams",
    "pre",
    "temporary",
    "topk",
    "candidates",
    "compress_kv",
    "index_k",
    "group_tail",
    "window_kv",
    "token_history",
)


def segment(program: Program) -> Program:
    """Regions in order. Transfers and mirrors belong to none: the runtime does them between two stages."""
    graph = program.graph
    entry = next((op.stage for op in graph.ops if op.kind == "embed"), 0)
    groups: dict[tuple[int, str], list[Op]] = {}
    for op in graph.ops:
        if op.kind not in CARRIERS:
            groups.setdefault((op.stage, _region(op, entry)), []).append(op)
    return replace(program, regions=tuple(_built(program, name, ops) for (_, name), ops in groups.items()))


def _region(op: Op, entry: int) -> str:
    if op.layer is not None:
        return f"layers.{op.layer}"
    if op.kind == "engram_ids":
        return "embed" if op.stage == entry else f"stages.{op.stage}.engram_ids"
    return "embed" if op.kind == "embed" else "head"


def _built(program: Program, name: str, ops: list[Op]) -> Region:
    """The region of some ops: what they read from outside, and what of theirs is wanted outside."""
    graph, inside = program.graph, {op.id for op in ops}
    written = [value for op in ops for value in op.write_ids]
    own = set(written)
    reads = dict.fromkeys(value for op in ops for value in op.read_ids if value not in own)

    def leaves(value: str) -> bool:
        if graph.values[value].scope == "session" or value == "logits":
            return True
        return any(reader.id not in inside for reader in graph.readers(value))

    def rank(value: str) -> tuple[bool, int]:
        return ".before" in value, _ORDER.index(graph.values[value].kind)

    reads_in_order = tuple(sorted(reads, key=rank))
    writes = tuple(sorted((value for value in written if leaves(value)), key=rank))
    # A layer is its entry in the layer map, which attention carries; other regions are their first op.
    origin = next((op for op in ops if op.kind == "attend"), ops[0])
    return Region(
        name, function_name(name), ops[0].stage, tuple(op.id for op in ops), reads_in_order, writes, origin.span
    )


def function_name(region: str) -> str:
    """`layer_4` for `layers.4`; other regions go by their last word."""
    kind, _, rest = region.partition(".")
    return f"layer_{rest}" if kind == "layers" else region.rpartition(".")[2]
