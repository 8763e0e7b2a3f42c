"""Fuse: the calls of each region. Where native kernels run the plan, one call may cover several ops.

A rule names a fused kind of `kernels.fusion`. It fits ops of one region that are wired to each other as the fused kind
says, value by value; ops that are wired otherwise are called one by one. A fit is used where nobody else needs what it
hides, and where the region's calls still have an order: what a call reads is written before it, and storage is written
after everybody has read what was there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from dsv41c.compiler.ir import Graph, Op, Scalar
from dsv41c.compiler.passes.program import Call, Program, Region
from dsv41c.kernels.fusion import FUSED, NATIVE, NATIVE_SPECS, NATIVE_VARIANT, FusedKind, Wired, part_name


@dataclass(frozen=True, slots=True)
class Rule:
    """Ops to look for: those of a fused kind. In plans the call has the place in the spec of its op `main`."""

    kind: str
    main: str


_GPU = (
    Rule("ffn", "experts"),
    Rule("ffn_shard", "experts"),
    Rule("attention_input", "query"),
    Rule("attention_output", "attend"),
    Rule("attention_output_shard", "attend"),
    Rule("index_candidates", "index_score"),
    Rule("index_select", "index_score"),
    Rule("logits", "head"),
)
# By family, in the order in which they are tried.
RULES: Mapping[str, tuple[Rule, ...]] = MappingProxyType({"cuda": _GPU, "rocm": _GPU})


def native(program: Program) -> bool:
    """Whether native kernels run the plan: the family has some, and numerics and stored weights are what they take."""
    sections = {name: getattr(program.spec, name) for name in ("numerics", "weights")}
    said = {path: getattr(sections[path.partition(".")[0]], path.partition(".")[2]) for path in NATIVE_SPECS}
    return bool(NATIVE[program.family]) and said == NATIVE_SPECS


def kernel_name(program: Program, call: Call) -> str:
    """The kernel that serves a call, `VARIANT.KIND`: a native one where the plan has it, else a reference one."""
    found = program.native and call.op.kind in NATIVE[program.family]
    return f"{NATIVE_VARIANT[program.family] if found else 'reference'}.{call.op.kind}"


def fuse(program: Program) -> Program:
    """The program with `calls` of every region."""
    found = native(program)
    rules = RULES.get(program.family, ()) if found else ()
    regions = tuple(replace(region, calls=_calls(program.graph, region, rules)) for region in program.regions)
    return replace(program, regions=regions, native=found)


def _calls(graph: Graph, region: Region, rules: Iterable[Rule]) -> tuple[Call, ...]:
    """The calls of a region: as many ops fused as rules and order allow."""
    calls = [Call(op, (op.id,)) for op in (graph.by_id[name] for name in region.ops)]
    for rule in rules:
        kind = FUSED[rule.kind]
        while True:
            single = [call.op for call in calls if len(call.covers) == 1]
            ordered = None
            for fit in _fits(kind, single):
                if not _hides(graph, kind, fit):
                    ordered = _ordered(graph, _joined(calls, _call(kind, rule, region, fit)))
                if ordered is not None:
                    break
            if ordered is None:
                break
            calls = ordered
    return tuple(calls)


# --- fits -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Fit:
    """Ops by kind that are wired as a fused kind says, and the values of its reads from outside."""

    ops: Mapping[str, Op]
    reads: Mapping[str, str]


def _fits(kind: FusedKind, ops: Sequence[Op], chosen: tuple[Op, ...] = ()) -> Iterator[_Fit]:
    """Every fit among some ops, in their order."""
    reads = kind.bound({op.kind: Wired(dict(op.reads), dict(op.writes)) for op in chosen})
    if reads is None:
        return
    if len(chosen) == len(kind.covers):
        yield _Fit({op.kind: op for op in chosen}, reads)
        return
    for op in ops:
        if op.kind == kind.covers[len(chosen)]:
            yield from _fits(kind, ops, (*chosen, op))


def _hides(graph: Graph, kind: FusedKind, fit: _Fit) -> bool:
    """Whether a fit would hide what somebody else needs, or read from outside what it writes itself."""
    inside = {op.id for op in fit.ops.values()}
    left = set(kind.leaves.values())
    if {value for op in fit.ops.values() for value in op.write_ids} & set(fit.reads.values()):
        return True
    hidden = [value for op in fit.ops.values() for port, value in op.writes if (op.kind, port) not in left]
    return any(
        graph.values[value].scope == "session"
        or value == "logits"
        or any(reader.id not in inside for reader in graph.readers(value))
        for value in hidden
    )


def _call(kind: FusedKind, rule: Rule, region: Region, fit: _Fit) -> Call:
    """The call of a fit, as an op of the fused kind: ports, weights and attributes in the order of its signature."""
    signature = kind.signature
    weights = {part_name(op.kind, name): weight for op in fit.ops.values() for name, weight in op.weights}
    attrs: dict[str, Scalar] = {part_name(op.kind, name): value for op in fit.ops.values() for name, value in op.attrs}
    first = fit.ops[kind.covers[0]]
    op = Op(
        f"{first.id.rpartition('.')[0] or region.id}.{kind.name}",
        kind.name,
        first.layer,
        tuple((port.name, fit.reads[port.name]) for port in signature.reads if port.name in fit.reads),
        tuple((write, dict(fit.ops[op].writes)[port]) for write, (op, port) in kind.leaves.items()),
        tuple((name, weights[name]) for name in (*signature.weights, *signature.optional_weights) if name in weights),
        tuple((name, attrs[name]) for name in (*signature.attrs, *signature.optional_attrs) if name in attrs),
        fit.ops[rule.main].span,
        first.stage,
    )
    return Call(op, tuple(fit.ops[op].id for op in kind.covers))


# --- order ----------------------------------------------------------------------------------------------------------


def _joined(calls: Sequence[Call], fused: Call) -> list[Call]:
    """The calls with a fused one in the place of the first op that it covers."""
    found: list[Call] = []
    for call in calls:
        if call.covers[0] not in fused.covers:
            found.append(call)
        elif fused not in found:
            found.append(fused)
    return found


def _ordered(graph: Graph, calls: Sequence[Call]) -> list[Call] | None:
    """The calls in an order in which each can run, near to the given one; None where there is none."""
    home = {op: number for number, call in enumerate(calls) for op in call.covers}
    waits: dict[int, set[int]] = {number: set() for number in range(len(calls))}
    for reader, writer in graph.overwrites():
        if reader in home and writer in home:
            waits[home[writer]].add(home[reader])
    for number, call in enumerate(calls):
        for name in call.covers:
            producers = (graph.producer(value) for value in graph.by_id[name].read_ids)
            waits[number] |= {home[op.id] for op in producers if op is not None and op.id in home}
    order: list[int] = []
    while len(order) < len(calls):
        ready = (n for n in range(len(calls)) if n not in order and waits[n] - {n} <= set(order))
        following = next(ready, None)
        if following is None:
            return None
        order.append(following)
    return [calls[number] for number in order]
