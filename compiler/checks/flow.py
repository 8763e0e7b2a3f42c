"""Who produces and who reads the four shared states, as a spec's layer map or a graph says it.

Both give the same `Flow`, so one set of checks judges a spec before there is a graph, and any graph without a spec.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dsv41c.compiler.build import Positions
from dsv41c.compiler.ir import NOWHERE, Graph, Op, layer_of
from dsv41c.compiler.layer_map import SHARED_KINDS, LayerMap
from dsv41c.diagnostics import Span
from dsv41c.kernels.catalog import CARRIERS

# The op that produces each shared kind, and the one that reads it.
PRODUCERS = {
    "compress_kv": "compress",
    "index_k": "index_keys",
    "topk": "select_topk",
    "candidates": "select_candidates",
}
READERS = {"compress_kv": "attend", "index_k": "index_score", "topk": "attend", "candidates": "index_score"}
# The lists a default read is derived from.
LISTS = {
    "compress_kv": ("kv_source_layers",),
    "index_k": ("kv_source_layers", "index_source_layers"),
    "topk": ("index_source_layers",),
    "candidates": ("candidate_source_layer", "index_source_layers"),
}


@dataclass(frozen=True)
class Flow:
    """`ratios` by layer; `producers` of each kind, ascending; `reads[kind][layer]`: the layer read from, None = nobody.

    `named` holds the reads that the spec names itself. `read_place` and `made_place` give positions by kind and layer,
    `ratio_place` by layer. `candidate_sources` are the layers meant to make candidates, whether or not they can.
    """

    ratios: Mapping[int, int]
    producers: Mapping[str, tuple[int, ...]]
    reads: Mapping[str, Mapping[int, int | None]]
    named: frozenset[tuple[str, int]]
    candidate_sources: tuple[int, ...]
    read_place: Callable[[str, int], Span]
    made_place: Callable[[str, int], Span]
    ratio_place: Callable[[int], Span]

    def nearest(self, kind: str, layer: int) -> int | None:
        """The latest producer at or before a layer."""
        position = bisect_right(self.producers[kind], layer)
        return self.producers[kind][position - 1] if position else None

    def produces(self, kind: str, layer: int) -> bool:
        """Whether a layer produces a kind."""
        return self.nearest(kind, layer) == layer


def flow_of_map(layer_map: LayerMap, positions: Positions) -> Flow:
    """The flow that a spec's layer map describes."""
    ratios = dict(enumerate(layer_map.ratios))
    compressed = [layer for layer, ratio in ratios.items() if ratio > 0]
    selecting = layer_map.producers["topk"]
    readers: dict[str, list[int]] = {
        "compress_kv": compressed,
        "index_k": list(selecting),
        "topk": compressed,
        "candidates": [layer for layer in selecting if layer_map.reads_candidates(layer)],
    }
    lists = {
        kind: {layer: index for index, layer in reversed(list(enumerate(getattr(layer_map, name))))}
        for kind, name in (("compress_kv", "kv_source_layers"), ("topk", "index_source_layers"))
    }
    lists["index_k"] = lists["compress_kv"]

    def ratio_place(layer: int) -> Span:
        return positions.value(("layers", "compress_ratios", layer))

    def made_place(kind: str, layer: int) -> Span:
        if kind == "candidates":
            return positions.value(("layers", "candidate_source_layer"))
        return positions.value(("layers", LISTS[kind][0], lists[kind][layer]))

    def read_place(kind: str, layer: int) -> Span:
        if layer_map.explicit(kind, layer) is not None:
            return positions.value(("layers", "reads", layer, kind))
        return ratio_place(layer) if kind in ("compress_kv", "topk") else made_place("topk", layer)

    return Flow(
        ratios,
        layer_map.producers,
        {kind: {layer: layer_map.source(kind, layer) for layer in readers[kind]} for kind in SHARED_KINDS},
        frozenset((kind, layer) for layer, kinds in layer_map.reads.items() for kind in kinds),
        tuple(layer for layer in [layer_map.candidate_source_layer] if layer in ratios and layer is not None),
        read_place,
        made_place,
        ratio_place,
    )


def root(graph: Graph, value_id: str) -> str:
    """The value that a copy on another stage is a copy of."""
    for _ in range(len(graph.ops)):
        producer = graph.producer(value_id)
        if producer is None or producer.kind not in CARRIERS or not producer.reads:
            break
        value_id = producer.read_ids[0]
    return value_id


def flow_of_graph(graph: Graph) -> Flow:
    """The flow that a graph describes. Ops without a layer or a ratio take no part; signature checks report them."""
    attends = _by_layer(graph, "attend")
    ratios = {layer: ratio for layer, op in attends.items() if isinstance(ratio := dict(op.attrs).get("ratio"), int)}
    ops = {kind: _by_layer(graph, kind) for kind in {*PRODUCERS.values(), *READERS.values()}}
    reads: dict[str, dict[int, int | None]] = {kind: {} for kind in SHARED_KINDS}
    for kind, op_kind in READERS.items():
        for layer, op in ops[op_kind].items():
            value_id = op.read(kind)
            if value_id is not None and layer in ratios:
                reads[kind][layer] = layer_of(root(graph, value_id))
            elif kind in ("compress_kv", "topk") and ratios.get(layer, 0) > 0:
                reads[kind][layer] = None

    def place(op_kind: str, layer: int) -> Span:
        return ops[op_kind][layer].span if layer in ops[op_kind] else NOWHERE

    return Flow(
        ratios,
        {
            kind: tuple(sorted(layer for layer in ops[op_kind] if layer in ratios))
            for kind, op_kind in PRODUCERS.items()
        },
        reads,
        frozenset(),
        tuple(sorted(ops["select_candidates"])),
        lambda kind, layer: place(READERS[kind], layer),
        lambda kind, layer: place(PRODUCERS[kind], layer),
        lambda layer: place("attend", layer),
    )


def _by_layer(graph: Graph, kind: str) -> dict[int, Op]:
    return {op.layer: op for op in graph.ops if op.kind == kind and op.layer is not None}
