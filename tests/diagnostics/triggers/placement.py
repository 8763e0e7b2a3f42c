"""What makes the codes of placed graphs: two stages, with what crosses between them changed, and as it is."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from dsv41c.compiler.build import build
from dsv41c.compiler.checks import check_graph
from dsv41c.compiler.ir import Graph, Op
from dsv41c.compiler.passes import Program, run
from dsv41c.compiler.spec import load
from dsv41c.diagnostics import Diagnostic

DEVICES = ("cpu:0", "cpu:1")
CUT = ("placement.devices=[cpu:0, cpu:1]", "placement.layer_ends=[6, 8]")


def placed(*more: str) -> Graph:
    """The toy on two devices, with more settings: the second stage reads shared state of layer 5."""
    loaded = load("toy", sets=(*CUT, *more))
    assert loaded.spec is not None
    return run(Program(loaded.spec, loaded.spans, build(loaded.spec, loaded.spans))).graph


def _with(graph: Graph, ops: Iterable[Op]) -> Graph:
    return replace(graph, ops=tuple(ops))


def undeclared(graph: Graph) -> Graph:
    """The transfer of a selection left out, and its readers reading it where it was made."""
    ops = (op for op in graph.ops if op.id != "stages.1.transfer.topk.L5")
    reading = (
        replace(op, reads=tuple((name, old.replace("topk@L5.S1", "topk@L5")) for name, old in op.reads)) for op in ops
    )
    return _with(graph, reading)


def dropped(graph: Graph) -> Graph:
    """The transfer of a selection left out."""
    return _with(graph, (op for op in graph.ops if op.id != "stages.1.transfer.topk.L5"))


def copied_whole(graph: Graph) -> Graph:
    """Compressed KV sent whole instead of mirrored."""
    whole = (replace(op, kind="transfer") if op.kind == "mirror" and "compress_kv" in op.id else op for op in graph.ops)
    return _with(graph, whole)


def not_added_up(graph: Graph) -> Graph:
    """A collective left out, and its reader reading the part of this shard."""
    ops = (op for op in graph.ops if op.id != "layers.3.ffn.all_reduce")
    reading = (
        replace(op, reads=tuple((name, old.replace("sublayer_out@L3.ffn", "part@L3.ffn")) for name, old in op.reads))
        for op in ops
    )
    return _with(graph, reading)


def _of(change: Callable[[Graph], Graph], *more: str) -> Callable[[Path], list[Diagnostic]]:
    return lambda _: list(check_graph(change(placed(*more)), DEVICES))


def _shown(change: Callable[[Graph], Graph], *more: str) -> tuple[Callable[[Path], list[Diagnostic]], ...]:
    return _of(change, *more), _of(lambda graph: graph, *more)


TRIGGERS = {
    "DSV505": _shown(undeclared),
    "DSV506": _shown(copied_whole),
    "DSV508": _shown(not_added_up, "placement.tensor_parallel=2"),
}
