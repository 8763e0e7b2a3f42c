"""Engram tables: rows from where `engram.storage` has them, as they are asked for."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from dsv41c.kernels.fusion import NATIVE_VARIANT
from dsv41c.kernels.reference.engram import HeldTable, RowTable
from dsv41c.runtime.manifest import EngramEntry, Manifest
from dsv41c.runtime.memory import row_cache_bytes
from dsv41c.runtime.weights.checkpoint import Checkpoint
from dsv41c.runtime.weights.row_cache import Lookups, RowCache
from dsv41c.runtime.weights.row_form import RowForm, TableForm
from dsv41c.runtime.weights.row_source import DiskRows, HostRows, MappedRows, Part, RowSource, pieces


class StoredTable:
    """A table that stays where it is stored, row by row: [rows, head_dim]. For any number of threads."""

    def __init__(self, source: RowSource, form: RowForm, cache: RowCache | None = None) -> None:
        self.source = source
        self.form = form
        self.cache = cache

    def rows(self, ids: Tensor) -> Tensor:
        """The rows of int64 ids [...], decoded: f32 [..., head_dim], every value a bf16 one.

        Raises UserFault where a row cannot be read (DSV733) or holds what it must not: `RowForm.values`.
        """
        wanted, places = torch.unique(ids.to("cpu"), return_inverse=True)
        if len(wanted) and not 0 <= int(wanted[0]) <= int(wanted[-1]) < self.source.count:
            raise IndexError(f"rows {int(wanted[0])} to {int(wanted[-1])} of a table of {self.source.count}")
        raw = self.source.read(wanted) if self.cache is None else self.cache.read(wanted, self.source.read)
        return self.form.values(wanted, raw)[places].to(ids.device)

    def held(self, place: torch.device, native: bool) -> RowTable:
        """The whole table on a device, as kernels read it: as stored where that is codes and scales, else as bf16.

        `native` kernels are there to read codes of a GPU. Raises UserFault as `rows` does.
        """
        whole: list[Tensor] = []
        for first, end in pieces(self.source):
            parts = self._parts(torch.arange(first, end), self.source.span(first, end))
            whole = whole or [part.new_empty((self.source.count, part.shape[1]), device=place) for part in parts]
            for tensor, part in zip(whole, parts, strict=True):
                tensor[first:end].copy_(part)
        codes, scale = whole if len(whole) == 2 else (whole[0], None)
        if native and scale is not None and place.type == "cuda":
            from dsv41c.kernels.triton.engram import DeviceTable

            return DeviceTable(codes, scale)
        return HeldTable(codes, scale)

    def pinned(self) -> RowTable | None:
        """The same table for native kernels of a GPU, which read its pinned memory; None where rows are not there so.

        That is where they are codes and scales, and pinned. A GPU refuses no row that holds NaN, so all are looked at
        here. Raises UserFault as `rows` does.
        """
        source, form = self.source, self._packed
        if form is None or not isinstance(source, HostRows) or not source.memory.is_pinned():
            return None
        for first, end in pieces(source):
            form.packed(torch.arange(first, end), source.span(first, end))
        from dsv41c.kernels.triton.engram import DeviceTable

        return DeviceTable(*form.split(source.memory))

    def _parts(self, ids: Tensor, raw: Tensor) -> tuple[Tensor, ...]:
        """What rows are held as: codes and scales, or bf16, which has every value."""
        if self._packed is not None:
            return self._packed.packed(ids, raw)
        return (self.form.values(ids, raw).to(torch.bfloat16),)

    @property
    def _packed(self) -> TableForm | None:
        """The form, where rows are codes and scales; else None."""
        return self.form if isinstance(self.form, TableForm) and self.form.encoding == "fp8_row32" else None


def stored_table(parts: list[Part], form: RowForm, checkpoint: Checkpoint, engram: EngramEntry | None) -> StoredTable:
    """A table of a plan by its `engram.storage`: mapped where it is on a device later. Raises UserFault (DSV732).

    `engram.row_cache_bytes` are shared out evenly among the plan's tables.
    """
    storage = "mapped" if engram is None else engram.storage
    source: RowSource = DiskRows(parts, checkpoint) if storage == "disk" else MappedRows(parts, checkpoint)
    if storage == "host":
        return StoredTable(HostRows(source), form)
    budget = 0 if engram is None else row_cache_bytes(engram) // len(engram.layers)
    cache = RowCache(budget, source.width, source.count) if budget and storage != "device" else None
    return StoredTable(source, form, cache)


def table_for(table: StoredTable, manifest: Manifest, place: torch.device) -> RowTable:
    """A table as steps on a device take it: held there, pinned for a GPU that reads it, or else read by the host.

    Raises UserFault as `StoredTable.rows` does where all of it is read for that.
    """
    storage, native = "" if manifest.engram is None else manifest.engram.storage, native_tables(manifest)
    if storage == "device":
        return table.held(place, native)
    if storage == "host" and native and place.type == "cuda":
        return table.pinned() or table
    return table


def native_tables(manifest: Manifest) -> bool:
    """Whether a native kernel of the plan reads rows of tables, on the device or out of pinned memory."""
    native = NATIVE_VARIANT.get(manifest.target.family)
    return any(entry.kernel == f"{native}.engram_rows" for entry in manifest.kernels)


def lookups(weights: Mapping[str, object]) -> Lookups | None:
    """What the row caches of some weights by id were asked for, together; None where there is no cache."""
    tables = [weight for weight in weights.values() if isinstance(weight, StoredTable)]
    caches = {id(table.cache): table.cache for table in tables if table.cache is not None}
    return sum((cache.lookups for cache in caches.values()), Lookups()) if caches else None
