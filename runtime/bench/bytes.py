"""Bytes that have to move in one decode step, from the manifest alone, everything as it is stored.

Each weight once, each distinct expert once; of tables the rows that are looked up; of session caches the rows that are
visible and selected, and those written; the f32 scores of the index, written and read. What a step makes and uses up
itself (streams, queries) is not counted: it fits in the caches of a device. So this is a floor, whatever kernels do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from math import prod
from statistics import fmean

from dsv41c.kernels.catalog import DTYPE_BYTES
from dsv41c.kernels.encodings import ENCODINGS
from dsv41c.runtime.manifest import Manifest, OpEntry, ValueEntry, WeightEntry

TABLES = ("embed", "engram_table")  # of these only rows are read
_SCORE = 4 * 2  # an f32, written and read once


@dataclass(slots=True)
class Moved:
    """Bytes by part. `table_rows`: of the embedding and of engram tables; `tails`: open groups and token histories."""

    weights: float = 0.0
    experts: float = 0.0
    table_rows: float = 0.0
    window: float = 0.0
    selected: float = 0.0
    index_keys: float = 0.0
    scores: float = 0.0
    tails: float = 0.0
    written: float = 0.0

    @property
    def total(self) -> float:
        """Bytes of all parts."""
        return sum(self.parts().values())

    @property
    def caches(self) -> float:
        """Bytes of session state and of scores over it."""
        return self.total - self.weights - self.experts - self.table_rows

    def parts(self) -> dict[str, float]:
        """Bytes by the name of the part."""
        return {part.name: getattr(self, part.name) for part in fields(self)}

    def add(self, other: Moved) -> None:
        """Add what another one counts."""
        for name, count in other.parts().items():
            setattr(self, name, getattr(self, name) + count)


@dataclass(frozen=True, slots=True)
class StepBytes:
    """Bytes of one step by layer; what is outside of layers is under None."""

    layers: Mapping[int | None, Moved] = field(default_factory=dict)

    def whole(self) -> Moved:
        """Those of all layers."""
        found = Moved()
        for moved in self.layers.values():
            found.add(moved)
        return found


def expected_distinct(stored: int, active: int, batch: int) -> float:
    """Distinct experts of a batch, each token of which takes `active` of `stored` at random, of each other unaware."""
    return stored * (1 - (1 - active / stored) ** batch)


def step_bytes(
    manifest: Manifest,
    *,
    batch: int,
    positions: Iterable[int],
    distinct: Mapping[int, float] | None = None,
    stored_experts: int | None = None,
) -> StepBytes:
    """Bytes of a step of `batch` tokens, as the mean over steps at `positions` (0: nothing before it).

    `distinct`: experts of each layer that the batch touches; where it says nothing, what is expected of tokens that
    choose among `stored_experts` (all of them by default) at random.
    """
    layers: dict[int | None, Moved] = {op.layer: Moved() for op in manifest.ops}
    _add_weights(manifest, layers, batch, distinct or {}, stored_experts)
    graph = _Graph(manifest)
    places = list(positions)
    for op in manifest.ops:
        rows = [graph.state(op, position) for position in places] if op.kind in _STATE else []
        for name in rows[0] if rows else ():
            moved = layers[op.layer]
            setattr(moved, name, getattr(moved, name) + batch * fmean(row[name] for row in rows))
    return StepBytes(layers)


def _add_weights(
    manifest: Manifest,
    layers: Mapping[int | None, Moved],
    batch: int,
    distinct: Mapping[int, float],
    stored_experts: int | None,
) -> None:
    entries = {entry.id: entry for entry in manifest.weights}
    active = {op.layer: int(op.attrs["active"]) for op in manifest.ops if op.kind == "route"}
    seen: set[str] = set()
    for op in manifest.ops:
        moved = layers[op.layer]
        for weight in op.weights.values():
            entry = entries.get(weight)
            if entry is None or weight in seen:  # constants are a few KiB
                continue
            seen.add(weight)
            if entry.role in TABLES:
                moved.table_rows += batch * _lookups(manifest, op) * row_bytes(entry)
            elif entry.count > 1:
                expected = expected_distinct(stored_experts or entry.count, active[op.layer], batch)
                touched = expected if op.layer is None else distinct.get(op.layer, expected)
                moved.experts += touched * entry.bytes / entry.count
            else:
                moved.weights += entry.bytes


def _lookups(manifest: Manifest, op: OpEntry) -> int:
    """Rows of its table that an op reads for a token."""
    if op.kind != "engram_rows" or manifest.engram is None:
        return 1
    return len(manifest.engram.layers[int(op.attrs["index"])].primes)


def row_bytes(entry: WeightEntry) -> int:
    """Bytes of a row of a table as stored, scales included."""
    return ENCODINGS[entry.stored].bytes((1, entry.shape[-1]))


_STATE = ("attend", "window_store", "compress", "index_keys", "index_score", "engram_ids")


class _Graph:
    """What ops read of session state, at a position, for one session."""

    def __init__(self, manifest: Manifest) -> None:
        self.values = {value.id: value for value in manifest.values}
        self.producers = {value: op for op in manifest.ops for value in op.writes.values()}

    def state(self, op: OpEntry, position: int) -> dict[str, float]:
        """Bytes by part of one op in a step at a position."""
        seen = position + 1  # tokens that the step's own token may look at
        if op.kind == "attend":
            window = min(position, int(op.attrs["window"]) - 1)  # its own row is of this step
            found = {"window": float(window * self.row(op.reads["window_kv"]))}
            if "topk" in op.reads:
                selected = min(seen // int(op.attrs["ratio"]), int(self.producers[op.reads["topk"]].attrs["k"]))
                found["selected"] = float(selected * self.row(op.reads["compress_kv"]))
            return found
        if op.kind == "window_store":
            return {"written": float(self.row(op.writes["window_kv"]))}
        if op.kind == "engram_ids":
            return {"tails": 2.0 * self.values[op.reads["token_history"]].bytes}
        ratio = int(op.attrs["ratio"])
        if op.kind == "index_score":
            keys = self.keys(op, seen // ratio)
            return {"index_keys": float(keys * self.row(op.reads["index_k"])), "scores": float(keys * _SCORE)}
        ends = seen % ratio == 0
        if op.kind == "index_keys":
            return {"written": float(ends * self.row(op.writes["index_k"]))}
        tail = self.values[op.reads["group_tail"]].bytes if "group_tail" in op.reads else 0
        before = tail * (ratio - 1) // ratio if ends else 0  # the open group's rows are read when it closes
        return {"written": float(ends * self.row(op.writes["compress_kv"])), "tails": float(tail // ratio + before)}

    def keys(self, op: OpEntry, visible: int) -> int:
        """Keys that an index scores: all visible ones, or those of the candidate blocks."""
        if "candidates" not in op.reads:
            return visible
        source = self.producers[op.reads["candidates"]]
        return min(visible, int(source.attrs["blocks"]) * int(source.attrs["block_size"]))

    def row(self, value: str) -> int:
        """Bytes of a row of a session cache."""
        return state_row_bytes(self.values[value])


def state_row_bytes(value: ValueEntry) -> int:
    """Bytes of one row of a session value [rows, ...]."""
    return prod(int(size) for size in value.shape[1:]) * DTYPE_BYTES[value.dtype]
