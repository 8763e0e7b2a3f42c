"""Shards: the graph of one of N processes that share every stage (tensor parallelism).

All N run the same code on their own parts of the weights. Heads with their output groups, the inner width of every
expert and the rows of the head are split; all else, state of sessions among it, is whole in each. Of experts each shard
has a part and none has whole ones: those that a token chooses would fall unevenly on the shards, and all wait for the
busiest. A sublayer's result is then a sum over the shards: one `all_reduce` behind the output projection, one behind
routed and shared experts together. The logits of a shard's vocabulary are joined by an `all_gather`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from dsv41c.compiler.ir import Graph, Op, Scalar, Value
from dsv41c.compiler.passes.program import Program
from dsv41c.kernels.catalog import OPS

_LOGITS = "logits@shard"
# Where a width that is split stands in the shape of what an op writes.
_AXES = {"query": 2, "attended": 2, "logits": -1}
# Attributes that count what is split.
_COUNTS = {"query": "heads", "output": "groups"}
# Ops that give a part of a sum; those that the collective stands behind.
_PARTS = ("output", "experts", "shared_expert")
_SUMS = ("output", "shared_expert")


def shards(program: Program) -> Program:
    """The program of one shard; the same program where a stage is one process."""
    if program.spec.placement.tensor_parallel == 1:
        return program
    return replace(program, graph=_Split(program).graph())


class _Split:
    """Goes through the ops in order; `values` are all values so far, as a shard has them."""

    def __init__(self, program: Program) -> None:
        self.start = program
        self.count = program.spec.placement.tensor_parallel
        self.span = program.positions.value(("placement", "tensor_parallel"))
        self.values = {value.id: value for value in program.graph.written}

    def graph(self) -> Graph:
        """The graph of a shard."""
        ops = [op for whole in self.start.graph.ops for op in self._split(whole)]
        written = tuple(self.values[value] for op in ops for value in op.write_ids)
        return Graph(self.start.graph.name, tuple(ops), self.start.graph.inputs, written)

    def _split(self, op: Op) -> Iterable[Op]:
        """An op as a shard has it, and the collective behind it, if any."""
        for port, value in op.writes:
            if port in _AXES:
                self.values[value] = self._narrowed(self.values[value], _AXES[port])
        if op.kind in _COUNTS:
            name = _COUNTS[op.kind]
            op = _with_attrs(op, **{name: int(op.attr(name)) // self.count})
        if op.kind in _PARTS:
            op = _with_attrs(op, shards=self.count)
        if op.kind in _SUMS:
            return self._met(op, f"part@{op.write_ids[0].partition('@')[2]}", "all_reduce")
        return self._met(op, _LOGITS, "all_gather") if op.kind == "head" else (op,)

    def _narrowed(self, value: Value, axis: int) -> Value:
        shape = list(value.shape)
        shape[axis] = int(shape[axis]) // self.count
        return replace(value, shape=tuple(shape))

    def _met(self, op: Op, part_id: str, kind: str) -> tuple[Op, Op]:
        """An op that writes `part_id` instead, and the collective that makes of all parts what the op wrote."""
        ((port, value),) = op.writes
        whole = self.start.graph.values[value]
        part = replace(self.values[value], id=part_id, dtype="f32")
        self.values |= {value: replace(whole, span=self.span), part_id: part}
        attrs: dict[str, Scalar] = {
            "shards": self.count,
            "dtype": whole.dtype,
            "bytes_per_token": self.start.shapes.bytes(part.shape, part.dtype),
        }
        meeting = Op(
            f"{op.id.rpartition('.')[0] or op.id}.{kind}",
            kind,
            op.layer,
            ((port, part_id),),
            ((port, value),),
            (),
            tuple((name, attrs[name]) for name in OPS[kind].attrs),
            self.span,
            op.stage,
        )
        return replace(op, writes=((port, part_id),)), meeting


def _with_attrs(op: Op, **attrs: Scalar) -> Op:
    """An op with attributes changed or added, in the catalogue's order."""
    given, entry = dict(op.attrs) | attrs, OPS[op.kind]
    names = (name for name in (*entry.attrs, *entry.optional_attrs) if name in given)
    return replace(op, attrs=tuple((name, given[name]) for name in names))
