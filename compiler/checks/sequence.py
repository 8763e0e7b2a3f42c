"""Checks of order in a graph: sublayers follow one another, `pre` is carried, state is read before it changes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dsv41c.compiler.checks.flow import root
from dsv41c.compiler.checks.ledger import Ledger, value
from dsv41c.compiler.checks.wiring import port, spoils_of_read
from dsv41c.compiler.ir import Graph, Op, Value, split_stage
from dsv41c.diagnostics import Diagnostic, Label
from dsv41c.kernels.catalog import CARRIERS, STATE_KINDS

_SHARED = ("compress_kv", "index_k")


@dataclass(frozen=True, slots=True)
class Sublayer:
    """A sublayer of a graph: the streams it starts from, the pre-mix carried to it, and its ops that read them."""

    name: str
    streams: str | None
    pre: str | None
    readers: tuple[Op, ...]


def sublayers(graph: Graph) -> Iterator[Sublayer]:
    """The sublayers in the order of the model, and last the exit; None for a version that no op writes."""
    ops = graph.by_id
    entry = ops.get("embed")
    streams, pre = _write(entry, "streams"), _write(entry, "pre")
    for layer in sorted({op.layer for op in graph.ops if op.layer is not None}):
        gate = ops.get(f"layers.{layer}.engram_gate")
        if gate is not None:
            yield Sublayer(f"the engram of layer {layer}", streams, None, (gate,))
            streams = _write(gate, "streams")
        for part in ("attn", "ffn"):
            own = [ops.get(f"layers.{layer}.{part}.{kind}") for kind in ("mix", "collapse", "expand")]
            yield Sublayer(f"layer {layer}'s {part}", streams, pre, tuple(op for op in own if op is not None))
            streams, pre = _write(own[2], "streams"), _write(own[0], "pre")
    final = ops.get("final.collapse")
    yield Sublayer("the exit", streams, pre, () if final is None else (final,))


def _write(op: Op | None, name: str) -> str | None:
    return None if op is None else dict(op.writes).get(name)


def carried(graph: Graph, ledger: Ledger) -> None:
    """Collapse reads the pre-mix of the sublayer before; every op of a sublayer reads the streams before it."""
    for sublayer in sublayers(graph):
        for op in sublayer.readers:
            for name, expected in (("streams", sublayer.streams), ("pre", sublayer.pre)):
                given = op.read(name)
                if given is None or expected is None or not ledger.sound(port(op, name), value(expected)):
                    continue
                if root(graph, given) != expected:
                    finding = _not_carried(graph, sublayer, op, name, given, expected)
                    ledger.report(finding, [*spoils_of_read(op, name), value(expected)])


def _not_carried(graph: Graph, sublayer: Sublayer, op: Op, name: str, given: str, expected: str) -> Diagnostic:
    producer = graph.producer(root(graph, given))
    facts = (
        (f"`{op.id}` reads", f"`{given}`"),
        ("its producer", f"`{producer.id}`" if producer else "the call's inputs"),
    )
    labels = () if producer is None else (Label(producer.span, f"`{given}` comes from here"),)
    help_text = f"read `{expected}` at `{name}` of `{op.id}`"
    if name == "streams":
        message = f"{sublayer.name} reads `{given}`, the streams before it are `{expected}`"
        return Diagnostic("DSV428", message, op.span, labels, facts, help_text)
    own = producer is not None and producer in sublayer.readers
    what = "its own pre-mix" if own else "the pre-mix"
    made = root(graph, given)
    message = f"{sublayer.name} collapses with {what} `{made}`, the one carried to it is `{expected}`"
    return Diagnostic("DSV427", message, op.span, labels, facts, help_text)


def private(graph: Graph, ledger: Ledger) -> None:
    """Temporaries stay in their sublayer, a ring and an open group in their layer."""
    for op in graph.ops:
        for name, value_id in op.reads:
            given = graph.values.get(value_id)
            if given is None or not ledger.sound(port(op, name), value(value_id)):
                continue
            owner = _owner(graph, given)
            here = _group(op) if given.kind == "temporary" else f"layers.{op.layer}"
            if owner is None or owner == here:
                continue
            message = f"`{op.id}` reads `{value_id}`, which belongs to `{owner}` alone"
            facts = ((f"owner of `{value_id}`", f"`{owner}`"), (f"owner of `{op.id}`", f"`{here}`"))
            labels = (Label(given.span, f"`{value_id}`"),)
            help_text = f"read the `{name}` of `{here}`"
            ledger.report(Diagnostic("DSV426", message, op.span, labels, facts, help_text), spoils_of_read(op, name))


def _owner(graph: Graph, given: Value) -> str | None:
    if given.kind in ("window_kv", "group_tail"):
        return f"layers.{given.layer}"
    producer = graph.producer(given.id)
    if given.kind != "temporary" or producer is None or producer.kind == "engram_ids":
        return None
    return _group(producer)


def _group(op: Op) -> str:
    return "the exit" if op.layer is None else op.id.rpartition(".")[0]


def versions(graph: Graph, ledger: Ledger) -> None:
    """Who updates state starts from its own `.before`; attention reads the ring before it, shared state after."""
    for op in graph.ops:
        carries = op.kind in CARRIERS  # a mirror follows another stage's state; it does not update it
        updates = {} if carries else dict(op.writes)
        for name, value_id in op.reads:
            given = graph.values.get(value_id)
            if given is None or given.scope != "session" or not ledger.sound(port(op, name), value(value_id)):
                continue
            before = split_stage(value_id)[0].endswith(".before")
            if name in updates and updates[name] in graph.values:
                written = updates[name]
                base, stage = split_stage(written)
                if value_id == graph.storage(written) or not ledger.sound(value(written)):
                    continue
                _wrong_version(op, name, value_id, f"{base}.before{stage}", f"`{op.id}` updates `{written}`", ledger)
            elif given.kind == "window_kv" and not before:
                why = "the ring is read as it was before this call; its own rows come beside it"
                _wrong_version(op, name, value_id, f"{value_id}.before", why, ledger)
            elif given.kind in _SHARED and before:
                base, stage = split_stage(value_id)
                why = "a query sees the groups that its own call completes"
                why = "a mirror gets the rows that the call appends" if carries else why
                _wrong_version(op, name, value_id, base.removesuffix(".before") + stage, why, ledger)


def _wrong_version(op: Op, name: str, given: str, wanted: str, why: str, ledger: Ledger) -> None:
    message = f"`{op.id}` reads `{given}`, the version it needs is `{wanted}`"
    facts = ((f"`{name}` of `{op.id}`", f"`{given}`"),)
    help_text = f"read `{wanted}` at `{name}`"
    finding = Diagnostic("DSV429", message, op.span, facts=facts, help=help_text, notes=(why,))
    ledger.report(finding, [*spoils_of_read(op, name), value(given), value(wanted)])


def read_before_written(graph: Graph, ledger: Ledger) -> None:
    """Ops stand in an order in which they can run: writers before readers, readers before who overwrites."""
    position = {op.id: index for index, op in enumerate(graph.ops)}
    for index, op in enumerate(graph.ops):
        for name, value_id in op.reads:
            producer = graph.producer(value_id)
            if producer is None or position[producer.id] < index or not ledger.sound(port(op, name), value(value_id)):
                continue
            message = f"`{op.id}` reads `{value_id}` before `{producer.id}` writes it"
            labels = (Label(producer.span, f"`{producer.id}`"),)
            facts = (("position of the reader", str(index)), ("position of the writer", str(position[producer.id])))
            finding = Diagnostic("DSV422", message, op.span, labels, facts, f"put `{producer.id}` before `{op.id}`")
            ledger.report(finding, [port(op, name)])
    for reader_id, writer_id in graph.overwrites():
        reader, writer = graph.by_id[reader_id], graph.by_id[writer_id]
        changed = {graph.storage(value_id): value_id for value_id in writer.write_ids if value_id in graph.values}
        lost = [(name, value_id) for name, value_id in reader.reads if value_id in changed]
        late = position[writer_id] < position[reader_id]
        for name, value_id in lost if late else ():
            if ledger.sound(port(reader, name), value(value_id)):
                message = f"`{reader_id}` reads `{value_id}` after `{writer_id}` has overwritten it"
                facts = (("storage", f"`{value_id}`"), ("what overwrites it", f"`{changed[value_id]}`"))
                labels = (Label(writer.span, f"`{writer_id}`"),)
                finding = Diagnostic(
                    "DSV430", message, reader.span, labels, facts, f"put `{reader_id}` before `{writer_id}`"
                )
                ledger.report(finding, [port(reader, name)])


def unread(graph: Graph, ledger: Ledger) -> None:
    """Streams, pre-mixes and copies on other stages are made to be read; session state is carried to the next call."""
    for op in graph.ops:
        for value_id in op.write_ids:
            given = graph.values.get(value_id)
            if given is None or graph.readers(value_id) or not ledger.sound(value(value_id)):
                continue
            if given.kind in ("streams", "pre") or op.kind in CARRIERS:
                message = f"`{op.id}` makes `{value_id}`, and no op reads it"
                facts = (("kind", f"`{given.kind}`: {STATE_KINDS[given.kind].meaning}"),)
                help_text = f"let an op read `{value_id}`, or leave out `{op.id}`"
                ledger.report(Diagnostic("DSV409", message, op.span, facts=facts, help=help_text))
    for given in graph.inputs:
        base, stage = split_stage(given.id)
        after = base.removesuffix(".before") + stage
        if given.scope != "session" or after in graph.producers or not ledger.sound(value(after), value(given.id)):
            continue
        message = f"`{given.id}` is carried from call to call, and no op writes `{after}`"
        facts = (("kind", f"`{given.kind}`: {STATE_KINDS[given.kind].meaning}"),)
        help_text = f"add the op that updates `{given.id}`"
        ledger.report(Diagnostic("DSV431", message, given.span, facts=facts, help=help_text))
