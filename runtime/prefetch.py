"""Rows of engram tables that kernels do not read, read as soon as a step's tokens are known.

It is done while the step's first layers are computed.

Those of many tokens by threads. Of a few, the step's own thread reads each layer's when it gets there: it is ahead of
the device by then, and would only stand in line with other threads before.

Which rows a token needs depends on it and the few before it, nothing else. So the host works the hash out by itself: it
waits for no device, and asks none for ids. What a step reads is known by its slots, epochs and positions: where a
session did not go on from where it was left (it was forked, or its state was written by somebody else), its history is
taken from the pool of token histories, or where that is elsewhere the step reads its rows when it gets there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from dsv41c.kernels.reference.engram import DEAD, RowTable
from dsv41c.runtime.device.tensors import is_held, pinned
from dsv41c.runtime.manifest import Manifest, OpEntry, weight_identifier
from dsv41c.runtime.ngrams import NgramHash
from dsv41c.runtime.stages.crossing import Rows

if TYPE_CHECKING:
    from dsv41c.runtime.executor import RegionWeights

THREADS = 2  # that hash and read: the rows of one layer can wait for a disk while another's are decoded
FEW = 8  # tokens of a step that reads their rows by itself: on two cores in 0.5 to 0.7 of the time of threads


@dataclass(frozen=True, slots=True)
class _Reader:
    """An op that reads rows: the name of its table among its region's weights, and its layer's place in the ids."""

    name: str
    table: RowTable
    index: int


class Fetched:
    """The rows of one step, on their way. `sessions` of its batch have some; padding rows behind them have none.

    `rows`: by region, what waits for its ids and rows, or reads them.
    """

    def __init__(self, sessions: int, rows: Mapping[str, Callable[[], tuple[Tensor, Tensor]]]) -> None:
        self._sessions = sessions
        self._rows = rows

    def __contains__(self, region: object) -> bool:
        return region in self._rows

    def rows(self, region: str, batch: int) -> Tensor:
        """f32 [batch, T, columns, head_dim] of a region; waits, and raises what reading them raised."""
        return _padded(self._rows[region]()[1], batch)

    def expect(self, region: str, ids: Tensor) -> None:
        """Hold the ids [batch, T, columns] that a device worked out to the host's; padding rows have none."""
        own = self._rows[region]()[0]
        if not torch.equal(own, ids[: self._sessions].to("cpu")):
            raise RuntimeError(f"the host's hash and the device's differ in `{region}`")


def _padded(rows: Tensor, batch: int) -> Tensor:
    """With zeros behind, where a batch has padding rows."""
    missing = batch - rows.shape[0]
    return rows if missing <= 0 else torch.cat([rows, rows.new_zeros((missing, *rows.shape[1:]))])


class FetchedTable:
    """Stands for a table in the eager work of one step: gives the rows that were fetched for it.

    `checks`: hold the ids that the device worked out to the host's.
    """

    def __init__(self, fetched: Fetched, region: str, checks: bool) -> None:
        self._fetched = fetched
        self._region = region
        self._checks = checks

    def rows(self, ids: Tensor) -> Tensor:
        """The rows of int64 ids [B, T, columns]: f32 [B, T, columns, head_dim] on their device."""
        if self._checks:
            self._fetched.expect(self._region, ids)
        rows = self._fetched.rows(self._region, ids.shape[0])
        assert rows.shape[:-1] == ids.shape, (rows.shape, ids.shape)
        return pinned(rows).to(ids.device, non_blocking=True) if ids.device.type == "cuda" else rows.to(ids.device)


class Prefetch:
    """Reads ahead for the steps of one process, those of its regions that read stored tables.

    `constants`: those of the hash by name (CONSTANTS), on the host. `history`: the pool of token histories, int64
    [slots, n - 1], where this process has it. Steps are begun by one thread.
    """

    def __init__(
        self,
        manifest: Manifest,
        regions: Mapping[str, Sequence[OpEntry]],
        weights: Mapping[str, RegionWeights],
        constants: Mapping[str, Tensor],
        history: Tensor | None,
    ) -> None:
        """`regions`: ops by region id; `weights` by region id, those of this process's regions."""
        self.readers = readers(regions, weights)
        hashing = next(op for op in manifest.ops if op.kind == "engram_ids")  # stages that hash all do the same
        self._hash = NgramHash(constants, int(hashing.attrs["pad_id"]))
        self._pool = history
        self._left: dict[int, tuple[int, int, list[int]]] = {}  # by slot: epoch, length, compressed ids, newest last
        self._threads = ThreadPoolExecutor(THREADS, "engram-prefetch")

    def begin(self, ids: Sequence[Sequence[int]], rows: Rows) -> Fetched | None:
        """Begin to read the rows of a step: ids [B, T] of its sessions, then of padding rows, which get none.

        None where the history of a session is not known here.
        """
        sessions = len(rows.slots)
        lines = [self._before(rows, index) for index in range(sessions)]
        for index, line in enumerate(lines):
            self._leave(rows, index, line, ids[index])
        known = [line for line in lines if line is not None]
        if len(known) < sessions or not sessions:
            return None
        begun = self._later if sessions * rows.tokens <= FEW else self._by_threads
        hashed = begun(self._hash.rows, ids[:sessions], known, rows.positions)
        wanted = {region: rows.tokens if rows.tail is None else rows.tail.computed(region) for region in self.readers}
        read = {
            region: begun(_read, reader, hashed, wanted[region])
            for region, reader in self.readers.items()
            if wanted[region]
        }
        return Fetched(sessions, read)

    def _by_threads(self, call: Callable[..., Any], *given: Any) -> Callable[[], Any]:
        return self._threads.submit(call, *given).result

    @staticmethod
    def _later(call: Callable[..., Any], *given: Any) -> Callable[[], Any]:
        return cache(partial(call, *given))

    def over(self, weights: Mapping[str, RegionWeights], fetched: Fetched, checks: bool) -> dict[str, RegionWeights]:
        """Weights by region for one eager step, what was fetched for it in place of the tables."""
        replaced = {
            region: weights[region].replaced(reader.name, FetchedTable(fetched, region, checks))
            for region, reader in self.readers.items()
            if region in fetched
        }
        return {**weights, **replaced}

    def _before(self, rows: Rows, index: int) -> list[int] | None:
        """The compressed ids before a session's step, newest last; None where they are not known here."""
        slot, position = rows.slots[index], rows.positions[index]
        if position == 0:
            return [DEAD] * self._hash.before
        epoch, length, line = self._left.get(slot, (0, 0, []))
        if rows.epochs and (epoch, length) == (rows.epochs[index], position):
            return line
        return None if self._pool is None else self._pool[slot].tolist()

    def _leave(self, rows: Rows, index: int, line: list[int] | None, ids: Sequence[int]) -> None:
        """Note what the session's next step has before it."""
        if line is None or not rows.epochs:
            self._left.pop(rows.slots[index], None)
            return
        size = self._hash.before
        fresh = self._hash.compressed(ids[-size:])
        length = rows.positions[index] + len(ids)
        self._left[rows.slots[index]] = (rows.epochs[index], length, [*line, *fresh][-size:])


def readers(regions: Mapping[str, Sequence[OpEntry]], weights: Mapping[str, RegionWeights]) -> dict[str, _Reader]:
    """By region, the op that reads rows of a table which kernels cannot read themselves."""
    found = {}
    for region in weights:
        for op in regions[region]:
            if op.kind == "engram_rows":
                name = weight_identifier(op.weights["table"])
                table = getattr(weights[region], name)
                if not is_held(table):
                    found[region] = _Reader(name, table, int(op.attrs["index"]))
    return found


def _read(reader: _Reader, hashed: Callable[[], Any], tokens: int) -> tuple[Tensor, Tensor]:
    """The ids and rows of one layer, those of the last tokens."""
    with torch.no_grad():
        ids = torch.from_numpy(hashed()[:, -tokens:, reader.index])
        return ids, reader.table.rows(ids)
