"""Checks of a placed graph: what is read on another device got there by a declared transfer, of the right sort."""

from __future__ import annotations

from collections.abc import Sequence

from dsv41c.compiler.checks.ledger import Ledger, value
from dsv41c.compiler.checks.wiring import crossing, port
from dsv41c.compiler.ir import Graph, Op
from dsv41c.diagnostics import Diagnostic
from dsv41c.kernels.catalog import CARRIERS, STATE_KINDS


def undeclared(graph: Graph, devices: Sequence[str], ledger: Ledger) -> None:
    """Every read is of a value on the reader's device; `devices` has one for each stage."""
    crossed: dict[tuple[str, int], list[Op]] = {}
    for op in graph.ops:
        if op.kind in CARRIERS:
            continue
        for name, value_id in op.reads:
            given = graph.values.get(value_id)
            if given is None or given.stage == op.stage or not ledger.sound(port(op, name), value(value_id)):
                continue
            if _device(devices, given.stage) != _device(devices, op.stage):
                crossed.setdefault((value_id, op.stage), []).append(op)
    for (value_id, _), readers in crossed.items():
        ledger.report(crossing(graph.values[value_id], readers))


def _device(devices: Sequence[str], stage: int) -> str:
    return devices[stage] if stage < len(devices) else f"stage {stage}"


def wrong_carrier(graph: Graph, ledger: Ledger) -> None:
    """What travels with the chunk is transferred, of session state a mirror is kept, and some state stays."""
    for op in graph.ops:
        if op.kind not in CARRIERS or not op.reads or not ledger.sound(port(op, "value")):
            continue
        given = graph.values.get(op.read_ids[0])
        if given is None or STATE_KINDS[given.kind].crosses == CARRIERS[op.kind]:
            continue
        crosses = STATE_KINDS[given.kind].crosses
        right = {"chunk": "is transferred with the chunk", "mirror": "is mirrored", "never": "never leaves its stage"}
        message = f"`{op.id}` is a {op.kind} of `{given.id}`, and `{given.kind}` {right[crosses]}"
        facts = ((f"how `{given.kind}` crosses", crosses), ("stages", f"{given.stage} to {op.stage}"))
        carrier = {"chunk": "use a `transfer`", "mirror": "use a `mirror`", "never": "place its readers on its stage"}
        ledger.report(Diagnostic("DSV506", message, op.span, facts=facts, help=carrier[crosses]))
