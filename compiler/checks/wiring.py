"""Checks of a graph's wiring: ops have the ports of the catalogue, and every value read is one that is written once."""

from __future__ import annotations

from collections.abc import Iterator

from dsv41c.compiler.checks.ledger import Fact, Ledger, read, value
from dsv41c.compiler.checks.words import layers
from dsv41c.compiler.ir import Graph, Op, Value, split_stage
from dsv41c.diagnostics import Diagnostic, Label
from dsv41c.kernels.catalog import CARRIERS, OPS, STATE_KINDS, OpKind
from dsv41c.words import joined

# Reads that the checks of shared state report themselves where nobody produces them.
_SHARED_PORTS = {("attend", "compress_kv"), ("attend", "topk"), ("index_score", "index_k")}
_UNNAMED_PORT = "x"
_Signature = tuple[str, bool, tuple[tuple[str, ...], ...]]


def port(op: Op, name: str) -> Fact:
    """What an op reads at a port."""
    return ("port", op.id, name)


def spoils_of_read(op: Op, name: str) -> list[Fact]:
    """What is unknown once an op's read at a port is wrong."""
    facts = [port(op, name)]
    if op.layer is not None:
        facts.append(read(name, op.layer))
    return facts


def signatures(graph: Graph, ledger: Ledger) -> None:
    """Every op has the ports, weights and attributes of its kind."""
    known: dict[_Signature, tuple[str, ...]] = {}  # few signatures, many ops
    for op in graph.ops:
        signature = _signature(op)
        if signature not in known:
            known[signature] = tuple(_problems(*signature))
        problems = known[signature]
        if not problems:
            continue
        entry = OPS[op.kind]
        message = f"`{op.id}` does not fit the op `{op.kind}`: {'; '.join(problems[:4])}"
        facts = (
            ("reads of the op", ", ".join(item.name + "?" * item.optional for item in entry.reads) or "none"),
            ("writes of the op", ", ".join(item.name + "?" * item.optional for item in entry.writes)),
            ("weights and attributes", ", ".join(name for names in _parameters(entry) for name in names) or "none"),
        )
        spoils = [fact for item in entry.reads for fact in spoils_of_read(op, item.name)]
        help_text = "give the op the ports, weights and attributes of its kind"
        ledger.report(Diagnostic("DSV423", message, op.span, facts=facts, help=help_text), spoils)


def _signature(op: Op) -> _Signature:
    """An op's kind, whether it pools groups, and the names of its reads, writes, weights and attributes."""
    pools = op.kind == "compress" and ("ratio", 1) not in op.attrs
    names = (tuple(name for name, _ in pairs) for pairs in (op.reads, op.writes, op.weights, op.attrs))
    return (op.kind, pools, tuple(names))


def _parameters(entry: OpKind) -> tuple[tuple[str, ...], ...]:
    return entry.weights, entry.optional_weights, entry.attrs, entry.optional_attrs


def _problems(kind: str, needs_tail: bool, given: tuple[tuple[str, ...], ...]) -> Iterator[str]:
    entry = OPS[kind]
    tail = {"group_tail"} if needs_tail else set()
    wanted = {
        "read": ({item.name: not item.optional or item.name in tail for item in entry.reads}, given[0]),
        "write": ({item.name: not item.optional or item.name in tail for item in entry.writes}, given[1]),
        "weight": (dict.fromkeys(entry.weights, True) | dict.fromkeys(entry.optional_weights, needs_tail), given[2]),
        "attribute": (dict.fromkeys(entry.attrs, True) | dict.fromkeys(entry.optional_attrs, False), given[3]),
    }
    for what, (known, names) in wanted.items():
        yield from (f"no {what} `{name}`" for name, required in known.items() if required and name not in names)
        yield from (f"unknown {what} `{name}`" for name in dict.fromkeys(names) if name not in known)
        yield from (f"two of {what} `{name}`" for name in dict.fromkeys(names) if names.count(name) > 1)


def two_producers(graph: Graph, ledger: Ledger) -> None:
    """A value is written once, and what a call finds there is not written."""
    inputs = {item.id: item for item in graph.inputs}
    for value_id, ops in graph.producers.items():
        if len(ops) == 1 and value_id not in inputs:
            continue
        who = [f"`{op.id}`" for op in ops] + ["the call's inputs"] * (value_id in inputs)
        message = f"`{value_id}` has {len(who)} producers: {' and '.join(who[:6])}"
        labels = tuple(Label(op.span, f"written by `{op.id}`") for op in ops[1:3])
        facts = tuple((f"producer {number}", name) for number, name in enumerate(who[:6], 1))
        help_text = "let one of them write it, and give the other value its own id"
        ledger.report(Diagnostic("DSV421", message, ops[-1].span, labels, facts, help_text), [value(value_id)])
    if len(graph.by_id) == len(graph.ops):
        return
    seen: set[str] = set()
    for op in graph.ops:
        if op.id in seen and ledger.sound(*map(value, op.write_ids)):
            message = f"two ops have the id `{op.id}`"
            ledger.report(Diagnostic("DSV421", message, op.span, help="give each op an id of its own"))
        seen.add(op.id)


def unwritten(graph: Graph, ledger: Ledger) -> None:
    """Every value that is read is written by an op, or is state that the call finds there."""
    inputs = {item.id: item for item in graph.inputs if item.scope == "session" or item.kind == "ids"}
    names: dict[str, list[str]] = {}
    for known in (*inputs, *graph.producers):
        names.setdefault(known.partition("@")[0], []).append(known)
    for value_id, readers in graph.all_readers.items():
        if value_id in inputs or value_id in graph.producers:
            continue
        ports = [(op, name) for op in readers for name, read_id in op.reads if read_id == value_id]
        if value_id.endswith("@none"):
            ports = [(op, name) for op, name in ports if (op.kind, name) not in _SHARED_PORTS]
        ports = [(op, name) for op, name in ports if ledger.sound(port(op, name))]
        if ports:
            spoils = [fact for op, name in ports for fact in spoils_of_read(op, name)]
            near = names.get(value_id.partition("@")[0], [])[:3]
            finding = _unwritten(graph, value_id, [op for op, _ in ports], near)
            ledger.report(finding, [*spoils, value(value_id), value(split_stage(value_id)[0])])


def _unwritten(graph: Graph, value_id: str, readers: list[Op], near: list[str]) -> Diagnostic:
    who = f"`{readers[0].id}`" + (f" and {len(readers) - 1} more" if len(readers) > 1 else "")
    base, stage = split_stage(value_id)
    labels = tuple(Label(op.span, f"read by `{op.id}`") for op in readers[1:3])
    if stage and base in graph.values:
        return crossing(graph.values[base], readers)
    message = f"{who} {'read' if len(readers) > 1 else 'reads'} `{value_id}`, which no op writes"
    facts = tuple(("value of that name", f"`{other}`") for other in near)
    help_text = (
        f"add the op that writes it, or read {joined([f'`{n}`' for n in near], 'or')}" if near else "add its producer"
    )
    return Diagnostic("DSV420", message, readers[0].span, labels, facts, help_text)


def crossing(crossed: Value, readers: list[Op]) -> Diagnostic:
    """The finding for a value of one stage that ops of another read as if it were there."""
    numbers = sorted({op.layer for op in readers if op.layer is not None})
    who = layers(numbers) if numbers else f"`{readers[0].id}`"
    verb = "read" if len(numbers) > 1 else "reads"
    stage = readers[0].stage
    message = f"{who} (stage {stage}) {verb} `{crossed.id}` (stage {crossed.stage}), no transfer declared"
    labels = (Label(crossed.span, f"`{crossed.id}` is made for stage {crossed.stage}"),)
    facts = (
        (f"stage of `{crossed.id}`", str(crossed.stage)),
        (f"stage of `{readers[0].id}`", str(stage)),
        ("kind", crossed.kind),
    )
    carrier = STATE_KINDS[crossed.kind].crosses
    if carrier == "never":
        help_text = f"{crossed.kind} stays on its stage: place the reader there"
    else:
        op = "transfer" if carrier == "chunk" else "mirror"
        help_text = f"add a `{op}` of `{crossed.id}` to stage {stage}, or end a stage elsewhere"
    return Diagnostic("DSV505", message, readers[0].span, labels, facts, help_text)


def wrong_kind(graph: Graph, ledger: Ledger) -> None:
    """A port gets a value of its kind, and a temporary of its name."""
    roles = {value_id: name for op in graph.ops for name, value_id in op.writes}
    for op in graph.ops:
        entry = OPS[op.kind]
        kinds = {item.name: item.kind for item in entry.reads}
        for name, value_id in op.reads:
            given = graph.values.get(value_id)
            wanted = kinds.get(name, "*")
            if given is None or wanted == "*" or not ledger.sound(port(op, name), value(value_id)):
                continue
            role, expected = roles.get(value_id, given.kind), _role(op, name)
            carried = graph.producer(value_id)
            named = carried is None or carried.kind not in CARRIERS
            if given.kind != wanted or (wanted == "temporary" and named and role != expected):
                what = f"`{wanted}`" if wanted != "temporary" else f"`{expected}`"
                has = f"`{given.kind}`" if given.kind != "temporary" else f"`{role}`"
                message = f"`{op.id}` reads `{value_id}` at `{name}`, which is {has}, expected {what}"
                facts = ((f"`{op.id}` reads at `{name}`", f"`{value_id}`"),)
                help_text = f"read a {what} value at `{name}`"
                finding = Diagnostic("DSV424", message, op.span, facts=facts, help=help_text)
                ledger.report(finding, spoils_of_read(op, name))
        _wrong_writes(graph, op, ledger)


def _role(op: Op, name: str) -> str:
    if name != _UNNAMED_PORT:
        return name
    return "collapsed" if op.kind == "norm" else "normed"


def _wrong_writes(graph: Graph, op: Op, ledger: Ledger) -> None:
    """A value is of its port's kind, and of a kind that the op may write."""
    kinds = {item.name: item.kind for item in OPS[op.kind].writes}
    for name, value_id in op.writes:
        given, wanted = graph.values.get(value_id), kinds.get(name, "*")
        if given is None or wanted == "*" or given.kind == wanted or not ledger.sound(value(value_id)):
            continue
        writers = STATE_KINDS[given.kind].writers
        if op.kind in writers or "*" in writers:
            code, message = "DSV424", f"`{op.id}` writes `{wanted}` at `{name}`, `{value_id}` is `{given.kind}`"
        else:
            who = joined([f"`{writer}`" for writer in writers], "or") or "no op"
            code, message = (
                "DSV425",
                f"`{op.id}` writes `{value_id}` of kind `{given.kind}`, which only {who} may write",
            )
        facts = ((f"kind of `{name}`", wanted), (f"kind of `{value_id}`", given.kind))
        help_text = f"give `{value_id}` the kind `{wanted}`"
        ledger.report(Diagnostic(code, message, op.span, facts=facts, help=help_text), [value(value_id)])
