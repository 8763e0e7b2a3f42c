"""Transfers: what crosses each stage boundary, derived from who reads what.

A value goes from stage to stage, also through stages that only pass it on. Chunk values (streams, pre, topk,
candidates, ids) travel with the chunk; of compressed KV and index keys the other device keeps a mirror that gets the
appended rows. A device that comes again still has what it had: nothing is sent to it twice. N-gram ids are not sent: a
later device with an engram layer hashes the transferred `ids` itself and keeps its own history of them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import replace

from dsv41c.compiler.ir import Graph, Op, Value, split_stage
from dsv41c.compiler.passes.program import Program, Transfer
from dsv41c.diagnostics import Span
from dsv41c.kernels.catalog import DTYPE_BYTES, STATE_KINDS

# The order in which a boundary's list is written.
_KINDS = ("streams", "pre", "ids", "compress_kv", "index_k", "topk", "candidates")


def transfers(program: Program) -> Program:
    """The program with `transfer` and `mirror` ops, and every read naming the value on its own device."""
    return _Crossings(program).program()


class _Crossings:
    """Walks the ops in program order and gives each read a value on the reader's device."""

    def __init__(self, program: Program) -> None:
        self.start = program
        self.devices = program.devices
        self.stages_on: dict[str, list[int]] = {}
        for stage, device in enumerate(self.devices):
            self.stages_on.setdefault(device, []).append(stage)
        self.values = dict(program.graph.values)
        self.on: dict[str, dict[str, str]] = {}  # value id -> device -> its id there
        self.arrivals: dict[int, list[Op]] = {}
        self.hashing: dict[int, list[Op]] = {}
        self.inputs: list[Value] = []
        self.written: list[Value] = []
        self.transfers: list[Transfer] = []

    def program(self) -> Program:
        """The result."""
        ops: dict[int, list[Op]] = {}
        for op in self.start.graph.ops:
            reads = tuple((port, self._here(value, op.stage)) for port, value in op.reads)
            ops.setdefault(op.stage, []).append(replace(op, reads=reads))
        order = [
            op for stage in sorted(ops) for op in (*self._arrivals(stage), *self.hashing.get(stage, ()), *ops[stage])
        ]
        graph = self.start.graph
        inputs = (*graph.inputs, *self.inputs)
        result = Graph(graph.name, tuple(order), inputs, (*graph.written, *self.written))
        return replace(self.start, graph=result, transfers=tuple(self._listed()))

    def _here(self, value_id: str, stage: int) -> str:
        """The id under which a value is found on a stage's device."""
        value = self.values.get(value_id)
        if value is None or value.stage == stage:
            return value_id
        places = self.on.setdefault(value_id, {self.devices[value.stage]: value_id})
        if self.devices[stage] not in places:
            if value_id == "engram_ids":
                places[self.devices[stage]] = self._hash_again(stage)
            else:
                self._relay(value, stage, places)
        return places[self.devices[stage]]

    def _relay(self, value: Value, stage: int, places: dict[str, str]) -> None:
        """Send a value on to a stage's device, from neighbour to neighbour.

        It arrives on the first stage of that device behind its own, and before that on the stage next to it.
        """
        hops: list[int] = []
        while self.devices[stage] not in places:
            stages = self.stages_on[self.devices[stage]]
            hops.append(stages[bisect_right(stages, value.stage)])
            stage = hops[-1] - 1
        for to in reversed(hops):
            places[self.devices[to]] = self._send(value, places[self.devices[to - 1]], to)

    def _send(self, value: Value, source: str, to: int) -> str:
        how = STATE_KINDS[value.kind].crosses
        if how == "never":
            raise ValueError(f"{value.id} ({value.kind}) cannot leave its stage, but a later one reads it")
        arrived = replace(value, id=f"{value.id}.S{to}", stage=to)
        kind = "mirror" if how == "mirror" else "transfer"
        name = f"stages.{to}.{kind}.{value.id.replace('@', '.')}"
        op = Op(name, kind, None, (("value", source),), (("value", arrived.id),), (), (), self._cut(to), to)
        self.arrivals.setdefault(to, []).append(op)
        self.written.append(arrived)
        self.transfers.append(
            Transfer(name, source, arrived.id, value.kind, how, to - 1, to, self._bytes_per_token(value))
        )
        return arrived.id

    def _hash_again(self, stage: int) -> str:
        """A hash op of the stage's own, with its own token history."""
        op = self.start.graph.producers["engram_ids"][0]
        suffix = f".S{stage}"
        before = self.values[dict(op.reads)["token_history"]]
        self.inputs.append(replace(before, id=before.id + suffix, stage=stage))
        self.written += [replace(self.values[value], id=value + suffix, stage=stage) for value in op.write_ids]
        reads = (("ids", self._here("ids", stage)), ("token_history", before.id + suffix))
        writes = tuple((port, value + suffix) for port, value in op.writes)
        self.hashing.setdefault(stage, []).append(
            replace(op, id=f"stages.{stage}.engram_ids", reads=reads, writes=writes, stage=stage)
        )
        return "engram_ids" + suffix

    def _cut(self, stage: int) -> Span:
        """What asks for a crossing: the layer end that begins its stage."""
        return self.start.positions.value(("placement", "layer_ends", stage - 1))

    def _bytes_per_token(self, value: Value) -> float:
        """What goes over the wire for a token: of session state, an appended row's share."""
        if value.scope == "step":
            wire = STATE_KINDS[value.kind].wire
            elements = self.start.shapes.bytes(value.shape, "u8")
            if wire == "values":
                return float(self.start.shapes.bytes(value.shape, value.dtype))
            return float(4 * elements if wire == "i32" else -(-elements // 8))
        assert value.layer is not None
        row = DTYPE_BYTES[value.dtype]
        for size in value.shape[1:]:
            row *= int(size)
        return row / self.start.layer_map.ratios[value.layer]

    def _arrivals(self, stage: int) -> Iterable[Op]:
        return sorted(self.arrivals.get(stage, ()), key=lambda op: self._rank(op.write_ids[0]))

    def _listed(self) -> list[Transfer]:
        return sorted(self.transfers, key=lambda transfer: (transfer.to_stage, *self._rank(transfer.arrives_as)))

    def _rank(self, arrived: str) -> tuple[int, int]:
        value = self.values[split_stage(arrived)[0]]
        return _KINDS.index(value.kind), value.layer or 0
