"""Checks of a placed graph: what is read on another device got there by a declared transfer, of the right sort."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from dsv41c.compiler.checks.ledger import Fact, Ledger, value
from dsv41c.compiler.checks.wiring import crossing, port, spoils_of_read
from dsv41c.compiler.ir import Graph, Op, Value, split_stage
from dsv41c.diagnostics import Diagnostic, Label
from dsv41c.kernels.catalog import CARRIERS, STATE_KINDS


def copies(graph: Graph, ledger: Ledger) -> None:
    """What arrives on a stage is what was there on an earlier one: its kind, shape and dtype, under its own id."""
    for op, given, arrived in _carried(graph):
        if not ledger.sound(port(op, "value"), value(given.id), value(arrived.id)):
            continue
        base, (name, _) = split_stage(given.id)[0], split_stage(arrived.id)
        before = base.endswith(".before") and base.removesuffix(".before") == name  # the check of versions has that
        copy = replace(given, id=f"{name if before else base}.S{op.stage}", stage=op.stage)
        backwards = given.stage >= op.stage
        if replace(arrived, span=copy.span) == copy and not backwards:
            continue
        message = f"`{op.id}` makes `{arrived}` of `{given}`, whose copy on stage {op.stage} is `{copy}`"
        help_text = f"write `{copy}`, or read `{name}` as the stage before has it"
        if backwards:
            message = f"`{op.id}` sends `{given.id}` of stage {given.stage} to stage {op.stage}"
            help_text = "values go from a stage to later ones: place its readers there"
        facts = ((f"`{op.id}` reads", f"`{given}`"), (f"`{op.id}` writes", f"`{arrived}`"))
        labels = (Label(given.span, f"`{given.id}`"),)
        spoils = [port(op, "value"), value(arrived.id), value(name)]
        spoils += [value(f"{name}.S{stage}") for stage in range(1, op.stage)]
        finding = Diagnostic("DSV506", message, op.span, labels, facts, help_text)
        ledger.report(finding, [*spoils, *_rest_on(graph, arrived.id)])


def _carried(graph: Graph) -> Iterator[tuple[Op, Value, Value]]:
    """Each op that carries a value, with what it reads and what it writes."""
    for op in graph.ops:
        if op.kind in CARRIERS and op.reads and op.writes:
            given, arrived = graph.values.get(op.read_ids[0]), graph.values.get(op.write_ids[0])
            if given is not None and arrived is not None:
                yield op, given, arrived


def _rest_on(graph: Graph, value_id: str) -> Iterator[Fact]:
    """The reads of a value, and of what later stages get of it."""
    known, seen = [value_id], {value_id}
    for known_id in known:
        for op in graph.readers(known_id):
            yield from (fact for name, read_id in op.reads if read_id == known_id for fact in spoils_of_read(op, name))
            if op.kind in CARRIERS:
                known += [written for written in op.write_ids if written not in seen]
                seen.update(op.write_ids)


def undeclared(graph: Graph, devices: Sequence[str] | None, ledger: Ledger) -> None:
    """Every read is of a value on the reader's device.

    `devices` has one for each stage. Without, two stages count as one device until something is carried between them.
    """
    apart = _apart(graph) if devices is None else None
    crossed: dict[tuple[str, int], list[Op]] = {}
    for op in graph.ops:
        carries = op.kind in CARRIERS
        here = op.stage - 1 if carries else op.stage
        for name, value_id in op.reads:
            given = graph.values.get(value_id)
            if given is None or given.stage == here or not ledger.sound(port(op, name), value(value_id)):
                continue
            pair = min(given.stage, here), max(given.stage, here)
            if pair in apart if apart is not None else _device(devices, pair[0]) != _device(devices, pair[1]):
                crossed.setdefault((value_id, -1 if carries else here), []).append(op)
    for (value_id, stage), readers in crossed.items():
        made = graph.values[value_id]
        finding = crossing(made, readers) if stage >= 0 else _skipping(made, readers[0])
        base = split_stage(value_id)[0]
        ledger.report(finding, [value(value_id), value(base), value(f"{base}.S{stage}")])


def _apart(graph: Graph) -> set[tuple[int, int]]:
    """Stages on different devices, as what is carried tells: it is nowhere on the target's before it arrives there."""
    made_on: dict[str, set[int]] = {}
    found = set()
    for op, given, arrived in _carried(graph):
        came_by = made_on.setdefault(given.id, {given.stage})
        found |= {(stage, op.stage) for stage in came_by if stage < op.stage}
        made_on[arrived.id] = {*came_by, op.stage}
    return found


def _device(devices: Sequence[str] | None, stage: int) -> str:
    return devices[stage] if devices is not None and 0 <= stage < len(devices) else f"stage {stage}"


def _skipping(made: Value, op: Op) -> Diagnostic:
    """The finding for an op that sends on what its neighbour stage does not have."""
    message = f"`{op.id}` sends on `{made.id}` (stage {made.stage}) from stage {op.stage - 1}, which does not get it"
    facts = ((f"stage of `{made.id}`", str(made.stage)), (f"stage of `{op.id}`", str(op.stage)))
    labels = (Label(made.span, f"`{made.id}` is made for stage {made.stage}"),)
    help_text = f"send `{made.id}` to stage {op.stage - 1} first: values go from stage to stage"
    return Diagnostic("DSV505", message, op.span, labels, facts, help_text)


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
