"""What makes the codes of graphs: the toy's graph with one thing changed, and as it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from dsv41c.compiler.build import build
from dsv41c.compiler.checks import check_graph
from dsv41c.compiler.ir import Graph, Op
from dsv41c.compiler.spec import load
from dsv41c.diagnostics import Diagnostic


def toy() -> Graph:
    loaded = load("toy")
    assert loaded.spec is not None
    return build(loaded.spec, loaded.spans)


def changed(graph: Graph, op_id: str, change: Callable[[Op], Op]) -> Graph:
    return replace(graph, ops=tuple(change(op) if op.id == op_id else op for op in graph.ops))


def reading(graph: Graph, op_id: str, port: str, value: str) -> Graph:
    """The graph with one read of another value."""
    assert graph.by_id[op_id].read(port) not in (None, value)
    return changed(
        graph,
        op_id,
        lambda op: replace(op, reads=tuple((name, value if name == port else old) for name, old in op.reads)),
    )


def without(graph: Graph, *op_ids: str) -> Graph:
    assert all(op_id in graph.by_id for op_id in op_ids)
    return replace(graph, ops=tuple(op for op in graph.ops if op.id not in op_ids))


def before(graph: Graph, op_id: str, other: str) -> Graph:
    """The graph with one op moved before another."""
    moved = graph.by_id[op_id]
    ops = [op for op in graph.ops if op.id != op_id]
    ops.insert(next(index for index, op in enumerate(ops) if op.id == other), moved)
    return replace(graph, ops=tuple(ops))


def twice(graph: Graph) -> Graph:
    return replace(graph, ops=(*graph.ops, replace(graph.by_id["layers.4.attn.select_topk"], id="layers.4.attn.again")))


def other_kind(graph: Graph) -> Graph:
    """The graph with a temporary declared to be compressed KV."""
    written = (replace(value, kind="compress_kv") if value.id == "routed@L3" else value for value in graph.written)
    return replace(graph, written=tuple(written))


GRAPHS: dict[str, Callable[[Graph], Graph]] = {
    "DSV402": lambda graph: reading(graph, "layers.4.attn.attend", "topk", "topk@none"),
    "DSV406": lambda graph: reading(graph, "layers.4.attn.index_score", "index_k", "index_k@none"),
    "DSV420": lambda graph: without(graph, "layers.3.attn.query"),
    "DSV421": twice,
    "DSV422": lambda graph: before(graph, "layers.3.ffn.route", "layers.3.ffn.norm"),
    "DSV423": lambda graph: changed(graph, "layers.3.ffn.norm", lambda op: replace(op, attrs=())),
    "DSV424": lambda graph: reading(graph, "layers.3.attn.attend", "query", "query_latent@L3"),
    "DSV425": other_kind,
    "DSV426": lambda graph: reading(graph, "layers.3.attn.expand", "post", "post@L2.attn"),
    "DSV427": lambda graph: reading(graph, "layers.3.attn.collapse", "pre", "pre@L3.attn"),
    "DSV428": lambda graph: reading(graph, "layers.4.attn.collapse", "streams", "streams@L3.ffn"),
    "DSV429": lambda graph: reading(graph, "layers.3.attn.attend", "window_kv", "window_kv@L3"),
    "DSV430": lambda graph: before(graph, "layers.3.attn.window_store", "layers.3.attn.attend"),
    "DSV431": lambda graph: without(graph, "layers.3.attn.window_store"),
}


def _of(change: Callable[[Graph], Graph]) -> Callable[[Path], list[Diagnostic]]:
    return lambda _: list(check_graph(change(toy())))


TRIGGERS = {code: (_of(change), _of(lambda graph: graph)) for code, change in GRAPHS.items()}
