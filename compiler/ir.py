"""The graph: ops and values, bipartite.

A value is one version of a state, written once; every read names the value it reads. The text form is stable, one line
an op, and round-trips: `parse(str(graph))` prints the same text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import isfinite
from typing import TYPE_CHECKING

from dsv41c.diagnostics import Diagnostic, Span, UserFault
from dsv41c.kernels.catalog import OPS, STATE_KINDS, Scope

if TYPE_CHECKING:
    import networkx as nx

FORMAT = "dsv41c.graph/1"
MAX_LINE = 20_000  # characters; the longest line of a graph of ours has some hundreds
Scalar = int | float | str
NOWHERE = Span("<none>", 1, 1)


def layer_of(value_id: str) -> int | None:
    """The layer that a value id names: 20 of `compress_kv@L20.before`, None of `logits`."""
    match = re.search(r"@L([0-9]{1,9})(?:\.|$)", value_id)
    return int(match[1]) if match else None


@dataclass(frozen=True, slots=True)
class Value:
    """One version of a state. Shape entries are ints or the symbols B, T and `context/r`."""

    id: str
    kind: str
    shape: tuple[int | str, ...]
    dtype: str
    span: Span
    stage: int = 0

    @property
    def layer(self) -> int | None:
        """The layer it belongs to, if any."""
        return layer_of(self.id)

    @property
    def scope(self) -> Scope:
        """How long values of its kind live."""
        return STATE_KINDS[self.kind].scope

    def __str__(self) -> str:
        return f"{self.id}: {self.kind} {self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class Op:
    """An op. `reads`, `writes` and `weights` pair the catalogue's port and parameter names with ids, in its order."""

    id: str
    kind: str
    layer: int | None
    reads: tuple[tuple[str, str], ...]
    writes: tuple[tuple[str, str], ...]
    weights: tuple[tuple[str, str], ...]
    attrs: tuple[tuple[str, Scalar], ...]
    span: Span
    stage: int = 0

    @property
    def read_ids(self) -> tuple[str, ...]:
        """Ids of the values it reads."""
        return tuple(value for _, value in self.reads)

    @property
    def write_ids(self) -> tuple[str, ...]:
        """Ids of the values it writes."""
        return tuple(value for _, value in self.writes)

    def read(self, port: str) -> str | None:
        """The value read at a port, None where the op has no such read."""
        return dict(self.reads).get(port)

    def attr(self, name: str) -> Scalar:
        """An attribute's value."""
        return dict(self.attrs)[name]


@dataclass(frozen=True)
class Graph:
    """Ops in program order, the values they write, and the inputs: values that a call finds already there."""

    name: str
    ops: tuple[Op, ...]
    inputs: tuple[Value, ...]
    written: tuple[Value, ...]

    @cached_property
    def values(self) -> Mapping[str, Value]:
        """Every value by id; of two with one id, the first."""
        table: dict[str, Value] = {}
        for value in (*self.inputs, *self.written):
            table.setdefault(value.id, value)
        return table

    @cached_property
    def by_id(self) -> Mapping[str, Op]:
        """Every op by id."""
        return {op.id: op for op in self.ops}

    @cached_property
    def producers(self) -> Mapping[str, tuple[Op, ...]]:
        """The ops that write each value: one, in a graph that passes its checks."""
        return _grouped((value, op) for op in self.ops for value in op.write_ids)

    @cached_property
    def all_readers(self) -> Mapping[str, tuple[Op, ...]]:
        """The ops that read each value, in program order."""
        return _grouped((value, op) for op in self.ops for value in dict.fromkeys(op.read_ids))

    def producer(self, value_id: str) -> Op | None:
        """The op that writes a value, None for an input."""
        ops = self.producers.get(value_id, ())
        return ops[0] if ops else None

    def readers(self, value_id: str) -> tuple[Op, ...]:
        """The ops that read a value."""
        return self.all_readers.get(value_id, ())

    def storage(self, value_id: str) -> str:
        """The value whose memory a value lives in: session state is updated in place, so `X` lives in `X.before`."""
        value = self.values[value_id]
        if value.scope == "step":
            return value_id
        base, suffix = split_stage(value_id)
        before = f"{base}.before{suffix}"
        return before if before in self.values else value_id

    def digraph(self) -> nx.DiGraph[str]:
        """The graph for networkx: ops and values are nodes, keyed by id; edges also lead to who overwrites storage."""
        import networkx as nx

        graph: nx.DiGraph[str] = nx.DiGraph()
        graph.add_nodes_from(self.values)
        for op in self.ops:
            graph.add_node(op.id)
            graph.add_edges_from((value, op.id) for value in op.read_ids)
            graph.add_edges_from((op.id, value) for value in op.write_ids)
        graph.add_edges_from(self.overwrites())
        return graph

    def overwrites(self) -> Iterable[tuple[str, str]]:
        """Pairs (reader, writer): the writer of a storage runs after every op that reads what was there before."""
        for op in self.ops:
            for value_id in op.write_ids:
                before = self.storage(value_id)
                if before != value_id:
                    yield from ((reader.id, op.id) for reader in self.readers(before) if reader.id != op.id)

    def __str__(self) -> str:
        lines = [f"{FORMAT} {json.dumps(self.name, ensure_ascii=False)}"]
        lines += [f"input {value} @{value.stage} ; {value.span}" for value in self.inputs]
        written = {value.id: value for value in self.written}
        lines += [_op_line(op, written) for op in self.ops]
        return "\n".join(lines) + "\n"


def _grouped(pairs: Iterable[tuple[str, Op]]) -> dict[str, tuple[Op, ...]]:
    groups: dict[str, list[Op]] = {}
    for key, op in pairs:
        groups.setdefault(key, []).append(op)
    return {key: tuple(ops) for key, ops in groups.items()}


def split_stage(value_id: str) -> tuple[str, str]:
    """`compress_kv@L20.S1` as its id without, and its stage suffix."""
    match = re.fullmatch(r"(.*?)(\.S\d+)?", value_id)
    assert match is not None
    return match[1], match[2] or ""


def _pairs(pairs: Iterable[tuple[str, object]]) -> str:
    return ", ".join(f"{name}={value}" for name, value in pairs)


def _op_line(op: Op, written: Mapping[str, Value]) -> str:
    writes = ", ".join(f"{port}={written[value]}" for port, value in op.writes)
    attrs = ", ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in op.attrs)
    arguments = f"{_pairs(op.reads)} | {_pairs(op.weights)} | {attrs}"
    return f"{op.id} = {op.kind}({arguments}) -> ({writes}) @{op.stage} ; {op.span}"


_VALUE = r"(?P<id>[\w.@]+): (?P<kind>\w+) (?P<dtype>\w+)\[(?P<shape>[^\]]*)\]"
_PLACE = r" @(?P<stage>[0-9]{1,6}) ; (?P<file>.+):(?P<line>[0-9]{1,9}):(?P<column>[0-9]{1,9})"
_INPUT = re.compile(rf"input {_VALUE}{_PLACE}")
_OP = re.compile(
    r"(?P<id>[\w.]+) = (?P<kind>\w+)\((?P<reads>[^|]*) \| (?P<weights>[^|]*) \| (?P<attrs>.*)\)"
    r" -> \((?P<writes>[^()]*)\)" + _PLACE
)
_WRITE = re.compile(rf"(?P<port>\w+)={_VALUE}")
_ATTR = re.compile(r'(\w+)=("(?:[^"\\]|\\.)*"|[^,]+)')


def parse(text: str, file: str = "<graph>", *, here: bool = False) -> Graph:
    """A graph from its text form; with `here`, places are the lines of this text, not those it gives.

    Raises `UserFault` (DSV130) naming the line that is not of that form.
    """
    lines = text.splitlines()
    first = next((index for index, line in enumerate(lines) if not line.startswith("#")), len(lines))
    head = re.fullmatch(rf"{re.escape(FORMAT)} (\"(?:[^\"\\]|\\.)*\")", "".join(lines[first : first + 1]))
    if head is None:
        raise UserFault([_unreadable(file, first + 1, f'the first line is not `{FORMAT} "name"`')])
    inputs: list[Value] = []
    ops: list[Op] = []
    written: list[Value] = []
    number = first + 1
    try:
        name = _scalar(head[1])
        for number, line in enumerate(lines[first + 1 :], start=first + 2):
            if not line.strip() or line.startswith("#"):
                continue
            span = Span(file, number, 1, number, len(line) + 1) if here else None
            if match := _matched(_INPUT, line):
                inputs.append(_value(match, span or _place(match), int(match["stage"])))
            elif match := _matched(_OP, line):
                op, values = _parsed_op(match, span or _place(match))
                ops.append(op)
                written.extend(values)
            else:
                raise ValueError("this line is neither an input nor an op")
    except ValueError as error:
        raise UserFault([_unreadable(file, number, str(error))]) from None
    return Graph(str(name), tuple(ops), tuple(inputs), tuple(written))


def _matched(pattern: re.Pattern[str], line: str) -> re.Match[str] | None:
    # Matching a line that was made to be slow takes time with the square of its length.
    return pattern.fullmatch(line) if len(line) <= MAX_LINE else None


def _scalar(text: str) -> Scalar:
    """A name or an attribute: text, or a finite number. Raises ValueError."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if isinstance(value, bool) or not isinstance(value, Scalar) or (isinstance(value, float) and not isfinite(value)):
        raise ValueError(f"`{text[:40]}` is neither a finite number nor text in double quotes")
    return value


def _unreadable(file: str, line: int, message: str) -> Diagnostic:
    help_text = "print a graph with `dsv41c graph SPEC --format text` and keep its form"
    return Diagnostic("DSV130", message, Span(file, line, 1), help=help_text)


def _place(match: re.Match[str]) -> Span:
    return Span(match["file"], int(match["line"]), int(match["column"]))


def _value(match: re.Match[str], span: Span, stage: int) -> Value:
    if match["kind"] not in STATE_KINDS:
        raise ValueError(f"`{match['kind']}` is not a kind of value")
    shape = tuple(
        int(part) if re.fullmatch("[0-9]{1,18}", part) else part for part in match["shape"].split(", ") if part
    )
    return Value(match["id"], match["kind"], shape, match["dtype"], span, stage)


def _parsed_op(match: re.Match[str], span: Span) -> tuple[Op, list[Value]]:
    if match["kind"] not in OPS:
        raise ValueError(f"`{match['kind']}` is not a kind of op")
    stage = int(match["stage"])
    writes = [(write["port"], _value(write, span, stage)) for write in _WRITE.finditer(match["writes"])]
    layer = re.match(r"layers\.([0-9]{1,9})\.", match["id"])
    op = Op(
        match["id"],
        match["kind"],
        int(layer[1]) if layer else None,
        _named(match["reads"]),
        tuple((port, value.id) for port, value in writes),
        _named(match["weights"]),
        tuple((name, _scalar(text)) for name, text in _ATTR.findall(match["attrs"])),
        span,
        stage,
    )
    return op, [value for _, value in writes]


def _named(text: str) -> tuple[tuple[str, str], ...]:
    pairs = (part.partition("=") for part in text.split(", ") if part)
    return tuple((name, value) for name, _, value in pairs)
