"""Decode steps as captured work: static buffers for what goes in, ranges of regions that a device keeps and replays.

The reference kernels size what they read by `step.context`, a number on the host. So there is a graph for each bucket
of rows and each bucket of context, made when a step first needs that context, for the largest bucket of rows first.
Native kernels need one bucket of context, the plan's largest.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dsv41c.kernels.reference.encodings import e2m1_pairs
from dsv41c.kernels.reference.engram import RowTable
from dsv41c.kernels.step import Step
from dsv41c.runtime.device.protocol import Device, GraphKey, OnOp, Work
from dsv41c.runtime.device.ranges import buckets_of_context, ranges
from dsv41c.runtime.device.tensors import is_held, tensors_of
from dsv41c.runtime.executor import Calls, Executor, RegionWeights
from dsv41c.runtime.faults.told import How, raise_told
from dsv41c.runtime.manifest import buffers, weight_identifier
from dsv41c.runtime.prefetch import Fetched
from dsv41c.runtime.stages.crossing import Rows
from dsv41c.runtime.stages.layout import Stage

_DTYPES = {"i64": torch.long, "f32": torch.float32}


class StagedTable:
    """Stands for a stored table in captured work: rows are fetched before it runs, into a buffer that stays."""

    def __init__(self, table: RowTable, buffer: Tensor) -> None:
        """`buffer` f32 [B, 1, columns, head_dim], for the rows of the largest step."""
        self.table = table
        self.buffer = buffer

    def fetch(self, ids: Tensor, device: Device) -> None:
        """Bring the rows of int64 ids [B, 1, columns] of the device to where `rows` gives them."""
        self.put(self.table.rows(ids.to("cpu")), device)

    def put(self, rows: Tensor, device: Device) -> None:
        """Bring rows f32 [B, 1, columns, head_dim] to where `rows` gives them."""
        device.copy(rows, self.buffer[: rows.shape[0]])

    def rows(self, ids: Tensor) -> Tensor:
        """The rows fetched last, [*ids.shape, head_dim]; `ids` only say how many."""
        return self.buffer[: ids.shape[0]]


INPUTS = ("ids", "slots", "positions")


@dataclass(frozen=True, slots=True)
class StaticInputs:
    """What a step of one bucket reads from the outside: ids int64 [B, 1], slots and positions int64 [B].

    They are the rows of `packed` int64 [3, B], so that one copy fills them all. What many kernels read begins at 16
    bytes, whatever B is: the first row and the last.
    """

    packed: Tensor
    ids: Tensor
    slots: Tensor
    positions: Tensor

    @staticmethod
    def of(memory: Tensor, rows: int) -> StaticInputs:
        """Those of so many rows at the beginning of a memory, int64 [n]."""
        packed = memory[: 3 * rows].view(3, rows)
        slots, ids, positions = packed
        return StaticInputs(packed, ids[:, None], slots, positions)

    @staticmethod
    def filling(ids: Sequence[int], slots: Sequence[int], positions: Sequence[int]) -> Tensor:
        """The same on the host, as `packed` takes it."""
        return torch.tensor([slots, ids, positions], dtype=torch.int64)


class CapturedSteps:
    """The decode steps of an executor's stages on devices that capture, by place. `kernels` have to be capture-safe.

    `contexts`, ascending, are the buckets of context where the kernels ask for others than `buckets_of_context`.
    """

    def __init__(
        self,
        executor: Executor,
        devices: Mapping[int, Device],
        kernels: object,
        buckets: Sequence[int],
        contexts: Sequence[int] | None = None,
    ) -> None:
        self.executor = executor
        self.devices = devices
        self.kernels = kernels
        self.buckets = tuple(sorted(buckets))
        runtime = executor.manifest.runtime
        self.contexts = tuple(contexts or buckets_of_context(runtime.max_context))
        most = self.buckets[-1]
        self._buffers = {entry.name: entry for entry in executor.manifest.buffers or buffers(executor.manifest)}
        self._rows = {entry.readers[0]: name for name, entry in self._buffers.items() if name not in INPUTS}
        self._inputs = {place: self._static_inputs(most, devices[place]) for place in devices}
        self.inputs = self._inputs[executor.stages[0].place]  # by bucket: those of the first stage that is here
        self.tables: dict[str, StagedTable] = {}
        self.weights = {
            executor.regions[index].id: self._staged(executor.regions[index].id, stage)
            for stage in executor.stages
            for index in stage.regions
        }
        cut = ranges(executor.regions, executor.ops, runtime.capture, self.tables)
        self._parts = {stage.index: [part for part in cut if part.start in stage.regions] for stage in executor.stages}
        self.ranges = [part for parts in self._parts.values() for part in parts]
        self.values: dict[tuple[int, int], dict[str, Tensor]] = {}  # outputs at fixed addresses, by bucket and context

    def _static_inputs(self, most: int, device: Device) -> dict[int, StaticInputs]:
        memory = torch.zeros(3 * most, dtype=torch.int64, device=device.place)
        return {bucket: StaticInputs.of(memory, bucket) for bucket in self.buckets}

    def _staged(self, region: str, stage: Stage) -> RegionWeights:
        """A region's weights, with a staged table in place of a stored one."""
        weights = self.executor.weights[region]
        named = {name: getattr(weights, name) for name in weights}
        for op in self.executor.ops[region]:
            if op.kind == "engram_rows":
                name = weight_identifier(op.weights["table"])
                if is_held(named[name]):
                    continue
                rows = self._buffer(self._rows[region], self.buckets[-1], self.devices[stage.place])
                self.tables[region] = named[name] = StagedTable(named[name], rows)
        return RegionWeights(named)

    def _buffer(self, name: str, most: int, device: Device) -> Tensor:
        """A buffer of the plan for steps of so many rows, zeros."""
        entry = self._buffers[name]
        shape = [most if size == "B" else int(size) for size in entry.shape]
        return torch.zeros(shape, dtype=_DTYPES[entry.dtype], device=device.place)

    def context_of(self, context: int) -> int:
        """The smallest bucket of context that reaches so far."""
        return self.contexts[bisect_left(self.contexts, context)]

    def prepare(self, context: int) -> None:
        """Capture every bucket for a context, the largest first. Runs on padding rows alone: no session is touched."""
        reach = self.context_of(context)
        for bucket in reversed(self.buckets):
            if (bucket, reach) not in self.values:
                self._capture(bucket, reach)

    def run(self, ids: Sequence[int], rows: Rows, fetched: Fetched | None = None) -> Tensor | None:
        """One token for each row of a whole bucket; logits f32 [B, 1, V], overwritten by the next step.

        `fetched`: rows of stored tables that are on their way. None where the last stage is elsewhere.
        """
        self.prepare(rows.context)
        bucket, spare = len(ids), self.executor.pools.spare
        slots = [*rows.slots, *[spare] * rows.padding]
        self._fill(bucket, ids, slots, [*rows.positions, *[0] * rows.padding])
        return self.replay(bucket, rows.context, rows, fetched)

    def replay(
        self, bucket: int, context: int, rows: Rows | None = None, fetched: Fetched | None = None
    ) -> Tensor | None:
        """A step on what `inputs[bucket]` holds, every position of it below `context`, for which it is prepared.

        `rows` where the plan has several stages. Without `fetched`, ids of rows are asked of the device.
        """
        context = self.context_of(context)
        values = self.values[bucket, context]
        if rows is not None:
            rows = replace(rows, context=context)  # selections are as wide as the graphs' context makes them

        def work(stage: Stage) -> None:
            try:
                self.executor.arrive(stage, values, rows)
                with self.executor.at_work(stage):
                    self._replay(stage, GraphKey(bucket, context, 0, 0), values, rows, fetched)
                self.executor.leave(stage, values, rows, drop=False)
            except Exception as error:
                raise_told(error, self.executor.where("replay", stage, stage.regions, rows))

        self.executor.transport.run(self.executor.stages, rows, work)
        return values.get("logits")

    def _look(self, part: range, stage: Stage, bucket: int, context: int, rows: Rows | None) -> None:
        """Hold what a range is about to read to the ledger, where one is kept."""
        ledger = self.executor.pools.ledger
        if ledger is not None and rows is not None:
            given = self._inputs[stage.place][bucket]
            ops = [op for index in part for op in self.executor.ops[self.executor.regions[index].id]]
            ledger.before_replay(ops, Step(given.slots, given.positions, context), rows)

    def _replay(
        self, stage: Stage, step: GraphKey, values: dict[str, Tensor], rows: Rows | None, fetched: Fetched | None
    ) -> None:
        """The ranges of a stage; `step` has the bucket and the context."""
        device = self.devices[stage.place]
        for part in self._parts[stage.index]:
            self._fetch(part, values, device, fetched)
            self._look(part, stage, step.bucket, step.context, rows)
            try:
                device.replay(GraphKey(step.bucket, step.context, part.start, part.stop - 1))
                if self.executor.checks:
                    self._check(part, values, rows)
            except Exception as error:
                raise_told(error, self.executor.where("replay", stage, part, rows), of_device=True)

    def _check(self, part: range, values: Mapping[str, Tensor], rows: Rows | None) -> None:
        for index in part:
            region = self.executor.regions[index]
            written = {value: values[value] for value in region.writes if value in values}
            self.executor.check_numbers(region, written, rows)

    def release(self) -> None:
        """Drop what was captured."""
        for device in self.devices.values():
            device.release()
        self.values.clear()

    def _fill(self, bucket: int, ids: Sequence[int], slots: Sequence[int], positions: Sequence[int]) -> None:
        filling = StaticInputs.filling(ids, slots, positions)
        for place, device in self.devices.items():
            device.copy(filling, self._inputs[place][bucket].packed)

    def _capture(self, bucket: int, context: int) -> None:
        self._fill(bucket, [0] * bucket, [self.executor.pools.spare] * bucket, [0] * bucket)
        values = {"ids": self.inputs[bucket].ids}
        for stage in self.executor.stages:
            device = self.devices[stage.place]
            values |= self._arrivals(stage, bucket, context, device)
            for part in self._parts[stage.index]:
                how: How = "warm-up"
                try:
                    self._fetch(part, values, device)
                    work = self._work(part, stage, bucket, context, values)
                    device.warm_up(work)
                    how = "capture"
                    values.update(device.capture(GraphKey(bucket, context, part.start, part.stop - 1), work))
                except Exception as error:
                    raise_told(error, self.executor.where(how, stage, part, None), of_device=True)
        self.values[bucket, context] = values

    def _arrivals(self, stage: Stage, bucket: int, context: int, device: Device) -> dict[str, Tensor]:
        """Where a stage's graphs read what arrives, zeros, by value id."""
        if stage.boundary is None:
            return {}
        rows = Rows((0,) * bucket, (0,) * bucket, 1, context)
        forms = self.executor.crossings[stage.index].step_values(rows)
        return {value: torch.zeros(shape, dtype=dtype, device=device.place) for value, (shape, dtype) in forms.items()}

    def _fetch(self, part: range, values: Mapping[str, Tensor], device: Device, fetched: Fetched | None = None) -> None:
        """Bring the rows that a range reads from stored tables to where it reads them."""
        for index in part:
            region = self.executor.regions[index].id
            if region in self.tables:
                op = next(op for op in self.executor.ops[region] if op.kind == "engram_rows")
                ids = values[op.reads["engram_ids"]][:, :, int(op.attrs["index"])]
                if fetched is None:
                    self.tables[region].fetch(ids, device)
                    continue
                if self.executor.checks:
                    fetched.expect(region, ids)
                self.tables[region].put(fetched.rows(region, ids.shape[0]), device)

    def _work(self, part: range, stage: Stage, bucket: int, context: int, values: Mapping[str, Tensor]) -> Work:
        executor, regions = self.executor, self.executor.regions
        pools = executor.pools
        inside = [regions[index] for index in part]
        written = {value for region in inside for value in region.writes}
        reads = {value for region in inside for value in region.reads if value not in written}
        step_reads = [value for value in reads if value not in pools.storage_of]
        storages = {pools.storage_of[value] for value in reads | written if value in pools.storage_of}
        later = {value for region in regions[part.stop :] for value in region.reads} | {"logits"}
        later |= {move.value for move in executor.manifest.transfers}
        leaving = [value for value in written if value in later and value not in pools.storage_of]

        def call(on_op: OnOp | None) -> dict[str, Tensor]:
            given = self._inputs[stage.place][bucket]
            known = {value: values[value] for value in step_reads} | pools.environment()
            step = Step(given.slots, given.positions, context)
            executor.run_regions(part, known, step, Calls(self.kernels, self.weights, before=on_op, state_checks=True))
            return {value: known[value] for value in leaving}

        def inputs() -> dict[str, Tensor]:
            given = self._inputs[stage.place][bucket]
            named = {name: getattr(given, name) for name in INPUTS if name != "ids"}
            named |= {value: values[value] for value in step_reads}  # ids among them, where the range reads any
            tables = {region.id: self.tables[region.id] for region in inside if region.id in self.tables}
            return named | {self._rows[region]: table.buffer for region, table in tables.items()}

        def constants() -> Iterator[Tensor]:
            yield e2m1_pairs(self.devices[stage.place].place)
            for region in inside:
                weights = self.weights[region.id]
                yield from tensors_of(getattr(weights, name) for name in weights)

        name = inside[0].id if len(inside) == 1 else f"{inside[0].id} to {inside[-1].id}"
        state = sorted(storages)
        return Work(name, inside[0].span, call, inputs, lambda: {key: pools.tensors[key] for key in state}, constants)
