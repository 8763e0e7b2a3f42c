"""What steps of a plan need while they run, from the manifest alone, on one device: no torch.

Exact: the step values that are alive at once. A region's values live until its function returns, what it hands on until
its last reader is done. Known: what a kernel itself holds for a while, `runtime.scratch`. Graphs keep what leaves them.
Sizes are those at the end of a session that is full.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from dsv41c.kernels.fusion import FUSED, NATIVE_VARIANT
from dsv41c.runtime.device.ranges import buckets_of_context, ranges
from dsv41c.runtime.manifest import BufferEntry, CallEntry, Manifest, OpEntry, RegionEntry, buffers
from dsv41c.runtime.memory import TABLE, group_count, value_bytes
from dsv41c.runtime.scratch import Call, peak_of
from dsv41c.runtime.shards import of_shard


@dataclass(frozen=True, slots=True)
class WorkSpace:
    """Bytes on one device: of `inputs` that captured steps read, of what `graphs` keep, and at most of steps."""

    inputs: int
    graphs: int
    prefill: Peak
    decode: Peak

    @property
    def steps(self) -> int:
        """What steps take: graphs have memory of their own for that, other steps share theirs."""
        together = (self.prefill.total, self.decode.total)
        return sum(together) if self.graphs else max(together)


@dataclass(frozen=True, slots=True)
class Peak:
    """The most bytes at once: step values of before a call, and what its kernel allocates, results among it."""

    values: int = 0
    kernel: int = 0

    @property
    def total(self) -> int:
        """Both."""
        return self.values + self.kernel


def work_space(manifest: Manifest, device: str) -> WorkSpace:
    """What steps need on a device: prefill chunks with the exact tail, decode steps of the largest bucket."""
    walk = _Walk(manifest, device)
    most = decode_sizes(manifest)[-1]
    prefill = walk.peak(1, manifest.runtime.prefill_chunk, tail=True)
    decode = walk.peak(most, 1)
    if not captures(manifest):
        return WorkSpace(0, 0, prefill, decode)
    inputs = (value_bytes(entry.shape, entry.dtype, batch=most) for entry in walk.inputs())
    return WorkSpace(sum(inputs), walk.graphs(), prefill, decode)


def decode_sizes(manifest: Manifest) -> tuple[int, ...]:
    """Batches of decode steps, ascending: the buckets that sessions can fill, 1 where there are none."""
    runtime = manifest.runtime
    return tuple(sorted({size for size in runtime.decode_buckets if 1 <= size <= runtime.max_sessions} or {1}))


def captures(manifest: Manifest) -> bool:
    """Whether decode steps are captured: a CPU does not, the rules of other families ask for it."""
    return manifest.target.family != "cpu" and manifest.runtime.capture != "off"


def native_kinds(manifest: Manifest) -> frozenset[str]:
    """The kinds of calls that native kernels serve."""
    variant = NATIVE_VARIANT.get(manifest.target.family)
    names = (entry.kernel.partition(".") for entry in manifest.kernels)
    return frozenset(kind for found, _, kind in names if found == variant)


def contexts(manifest: Manifest) -> tuple[int, ...]:
    """The contexts that graphs are made for: one with native kernels, powers of two with plain torch ones."""
    longest = manifest.runtime.max_context
    return (longest,) if native_kinds(manifest) else buckets_of_context(longest)


def tables_on_device(manifest: Manifest) -> bool:
    """Whether engram tables are in the memory of the devices that use them."""
    return manifest.engram is not None and manifest.engram.storage == "device"


def rows_from_host(manifest: Manifest) -> bool:
    """Whether the host reads the rows of engram tables for steps: of tables in the official layout.

    Kernels do where tables are on the device, and native ones where codes and scales are in pinned memory.
    """
    if tables_on_device(manifest):
        return False
    packed = all(weight.stored == "fp8_row32" for weight in manifest.weights if weight.role == TABLE)
    pinned = manifest.engram is not None and manifest.engram.storage == "host"
    return not (pinned and packed and "engram_rows" in native_kinds(manifest))


def captured_together(manifest: Manifest, regions: Sequence[RegionEntry] | None = None) -> list[range]:
    """The regions that are one graph of a decode step, by index among `regions`: those of the plan, or of a device."""
    chosen = manifest.regions if regions is None else regions
    ops = {op.id: op for op in manifest.ops}
    by_region = {region.id: [ops[op] for op in region.ops] for region in chosen}
    staged = None if rows_from_host(manifest) else frozenset[str]()
    return ranges(chosen, by_region, manifest.runtime.capture, staged)


class _Walk:
    """The regions of one device in order, with what arrives before a stage and what is sent on behind it."""

    def __init__(self, manifest: Manifest, device: str) -> None:
        self.manifest = manifest
        self.native = native_kinds(manifest)
        self.values = {value.id: value for value in manifest.values}
        self.ops = {op.id: op for op in manifest.ops}
        self.weights = {weight.id: of_shard(weight) for weight in manifest.weights}
        self.stages = [stage.index for stage in manifest.stages if stage.device == device]
        self.regions = [region for region in manifest.regions if region.stage in self.stages]
        self.last = self._last_reads()
        rows = [op for op in manifest.ops if op.kind == "engram_rows" and op.kind not in self.native]
        self.wide = {
            value for op in rows for value in op.writes.values()
        }  # plain torch gives the rows of tables as f32
        self.selected_from = {
            op.writes["topk"]: self.values[op.reads["index_score"]].shape[-1]
            for op in manifest.ops
            if op.kind == "select_topk"
        }
        for move in manifest.transfers:
            if move.value in self.selected_from:
                self.selected_from[move.arrives_as] = self.selected_from[move.value]
        pooled = [op for op in manifest.ops if op.kind == "compress"]
        self.ratio_of = {value: int(op.attrs["ratio"]) for op in pooled for value in op.writes.values()}

    def peak(self, batch: int, tokens: int, *, tail: bool = False) -> Peak:
        """The most bytes at once in a step, when every session is full after it."""
        alive: dict[str, int] = {}
        peak = Peak()
        for number, region in enumerate(self.regions):
            if number == 0 or self.regions[number - 1].stage != region.stage:
                arrived = ("ids",) if region.stage == 0 else self._moved(region.stage, arriving=True)
                alive |= {value: self._bytes(value, batch, tokens) for value in arrived}
            rows = self._rows(region, tokens) if tail else tokens
            held = sum(alive.values())
            for call in self.calls(region):
                written = {value: self._bytes(value, batch, rows) for value in self._written(call)}
                kernel = peak_of(self._call(call, batch, rows), native=call.kind in self.native)
                peak = max(peak, Peak(held, kernel), key=lambda each: each.total)
                held += sum(written.values())
                alive |= {value: count for value, count in written.items() if value in region.writes}
            for value in [value for value in alive if self.last.get(value, number + 1) <= number]:
                del alive[value]
        return peak

    def inputs(self) -> Iterator[BufferEntry]:
        """The buffers on the device that captured steps read: of rows, those that the host reads for it."""
        own = {region.id for region in self.regions}
        for entry in self.manifest.buffers or buffers(self.manifest):
            rows = entry.name.startswith("rows of ")
            if not rows or (own & set(entry.readers) and rows_from_host(self.manifest)):
                yield entry

    def graphs(self) -> int:
        """Bytes of what leaves every graph of the device, and of what arrives for them, at addresses of their own."""
        kept = [value for stage in self.stages for value in self._moved(stage, arriving=True)]
        for part in captured_together(self.manifest, self.regions):
            inside = [self.regions[index] for index in part]
            later = {value for region in self.regions[part.stop :] for value in region.reads} | {"logits"}
            later |= {value for stage in self.stages for value in self._moved(stage, arriving=False)}
            kept += {value for region in inside for value in region.writes if value in later}
        return sum(
            self._bytes(value, batch, 1, context)
            for value in kept
            for batch in decode_sizes(self.manifest)
            for context in contexts(self.manifest)
        )

    def calls(self, region: RegionEntry) -> list[CallEntry]:
        """The calls of a region in order."""
        return region.calls or [CallEntry(kind=self.ops[op].kind, ops=[op]) for op in region.ops]

    def _last_reads(self) -> dict[str, int]:
        """The number of the region after which nobody on the device needs a value any more."""
        last = {value: number for number, region in enumerate(self.regions) for value in region.reads}
        for number, region in enumerate(self.regions):
            last |= {value: max(number, last.get(value, 0)) for value in self._moved(region.stage, arriving=False)}
        return last

    def _moved(self, stage: int, *, arriving: bool) -> list[str]:
        """The step values that come to a stage, or are sent on by it."""
        moves = [move for move in self.manifest.transfers if move.how == "chunk"]
        if arriving:
            return [move.arrives_as for move in moves if move.to_stage == stage]
        return [move.value for move in moves if move.from_stage == stage]

    def _rows(self, region: RegionEntry, tokens: int) -> int:
        """Rows of the last chunk of a prompt that a region computes, where only the last logits are wanted."""
        if "logits" in region.writes:
            return 1
        return tokens if region.tail_rows is None else min(tokens, region.tail_rows)

    def _bytes(self, value: str, batch: int, rows: int, context: int | None = None) -> int:
        """Bytes of a step value; none of session state, which is in its pool."""
        entry = self.values[value]
        if entry.scope == "session":
            return 0
        longest = self.manifest.runtime.max_context if context is None else context
        shape = entry.shape
        if value in self.selected_from:  # of fewer groups than are to be selected, all are
            *rest, most = shape
            shape = [*rest, min(int(most), group_count(str(self.selected_from[value]), longest))]
        dtype = "f32" if value in self.wide else entry.dtype
        ratio = self.ratio_of.get(value, 1)
        return value_bytes(shape, dtype, batch=batch, tokens=rows, context=longest, ratio=ratio)

    def _written(self, call: CallEntry) -> list[str]:
        """The values that a call returns."""
        ops = [self.ops[op] for op in call.ops]
        if len(ops) == 1:
            return list(ops[0].writes.values())
        by_kind = {op.kind: op for op in ops}
        leaves = FUSED[call.kind].leaves.values()
        return [by_kind[kind].writes[port] for kind, port in leaves if port in by_kind[kind].writes]

    def _hidden(self, call: CallEntry) -> Iterable[str]:
        written = set(self._written(call))
        return {value for op in call.ops for value in self.ops[op].writes.values()} - written

    def _call(self, call: CallEntry, batch: int, rows: int) -> Call:
        ops: dict[str, OpEntry] = {self.ops[op].kind: self.ops[op] for op in call.ops}
        touched = {value for op in ops.values() for value in (*op.reads.values(), *op.writes.values())}
        return Call(
            kind=call.kind,
            ops=ops,
            sessions=batch,
            rows=batch * rows,
            width=2 if self.manifest.numerics.compute == "bf16" else 4,
            returned=sum(self._bytes(value, batch, rows) for value in self._written(call)),
            hidden=sum(self._bytes(value, batch, rows) for value in self._hidden(call)),
            values={value: self._bytes(value, batch, rows) for value in touched},
            shapes={value: self.values[value].shape for value in touched},
            weights={
                weight: self.weights[weight]
                for op in ops.values()
                for weight in op.weights.values()
                if weight in self.weights
            },
        )
