"""Session state: a pool for each state of the plan, a row (slot) for each session, and one spare row.

Every value of scope session lives in a pool `[max_sessions + 1, *shape]`; versions of one state share it (`ValueEntry.
storage`). The last slot is the spare one: padding rows of a batch write there, and nobody reads it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dsv41c.kernels.reference.rows import pack, unpack
from dsv41c.runtime.manifest import Manifest, ValueEntry

if TYPE_CHECKING:
    from dsv41c.runtime.ledger import Ledger

DTYPES: Mapping[str, torch.dtype] = {
    "f32": torch.float32,
    "bf16": torch.bfloat16,
    "i64": torch.int64,
    "bool": torch.bool,
    "u8": torch.uint8,
}
# States whose empty form is not "anything": token ids that were never fed are DEAD (-1) in the history.
EMPTY = {"token_history": -1}


def row_axis(kind: str) -> int:
    """The axis of a pool that counts rows, each of one position or group."""
    return 2 if kind == "group_tail" else 1


class Pools:
    """The state pools of one engine, by the id of the value whose storage they are.

    `place`: the device of all, or by the plan's names those of the places that are here; the rest has no pools.
    `ledger`: who wrote their rows, where that is kept.
    """

    def __init__(self, manifest: Manifest, place: torch.device | Mapping[str, torch.device] | None = None) -> None:
        self.slots = manifest.runtime.max_sessions + 1
        here = place if isinstance(place, Mapping) else dict.fromkeys(manifest.target.devices, place)
        entries = {value.id: value for value in manifest.values if value.device in here}
        self.storage_of: Mapping[str, str] = storages(entries.values())
        self.ledger: Ledger | None = None
        self.kinds: dict[str, str] = {}
        self.tensors: dict[str, Tensor] = {}
        for storage in dict.fromkeys(self.storage_of.values()):
            entry = entries[storage]
            self.kinds[storage] = entry.kind
            shape, empty = (self.slots, *_sizes(entry)), EMPTY.get(entry.kind, 0)
            self.tensors[storage] = torch.full(shape, empty, dtype=DTYPES[entry.dtype], device=here[entry.device])

    @property
    def spare(self) -> int:
        """The slot that padding rows use."""
        return self.slots - 1

    def environment(self) -> dict[str, Tensor]:
        """Every session value by id, as the pool it lives in."""
        return {value: self.tensors[storage] for value, storage in self.storage_of.items()}

    def reset(self, slot: int) -> None:
        """Make a slot empty.

        Positions start again at 0 and kernels mask what lies before them, so no pool has to be cleared for the result's
        sake; the history is, since its empty form means something.
        """
        for storage, pool in self.tensors.items():
            if self.kinds[storage] in EMPTY:
                pool[slot] = EMPTY[self.kinds[storage]]

    def poison(self, slot: int) -> None:
        """Fill what a slot holds with NaN, which shows in the logits if anybody reads it. For debugging."""
        for pool in self.tensors.values():
            if pool.is_floating_point():
                pool[slot] = float("nan")
            elif pool.dtype == torch.uint8:
                pool[slot] = 255  # NaN in every packed format

    def copy(self, source: int, target: int) -> None:
        """Give a slot everything that another one holds."""
        for pool in self.tensors.values():
            pool[target] = pool[source]
        if self.ledger is not None:
            self.ledger.copy(source, target)

    def copy_from(self, other: Pools, slot: int) -> None:
        """Take over one slot from the pools of another engine with the same plan."""
        for storage, pool in self.tensors.items():
            pool[slot] = other.tensors[storage][slot]

    def load(self, value: str, slot: int, rows: Tensor) -> None:
        """Write rows `[n, ...]`, n up to the capacity, to the start of a session value's slot.

        Where rows are packed, floats are packed first.
        """
        storage = self.storage_of[value]
        pool = self.tensors[storage]
        if pool.dtype == torch.uint8 and rows.is_floating_point():
            rows = pack(self.kinds[storage], rows)
        pool[slot, : rows.shape[0]] = rows.to(pool.dtype)

    def rows(self, value: str, slot: int) -> Tensor:
        """What a slot holds of a session value: floats for packed rows, everything else without copying."""
        storage = self.storage_of[value]
        return unpack(self.kinds[storage], self.tensors[storage][slot])

    @property
    def bytes(self) -> int:
        """Bytes of all pools."""
        return sum(pool.numel() * pool.element_size() for pool in self.tensors.values())


def storages(values: Iterable[ValueEntry]) -> dict[str, str]:
    """The storage of each session value: the value at the end of its `storage` chain, itself where it has none."""
    entries = {value.id: value for value in values}
    found = {}
    for value in entries.values():
        if value.scope != "session":
            continue
        root = value
        while root.storage is not None and root.storage != root.id:
            root = entries[root.storage]
        found[value.id] = root.id
    return found


def _sizes(entry: ValueEntry) -> list[int]:
    """The shape of a session value, which has no symbols."""
    sizes = [size for size in entry.shape if isinstance(size, int)]
    if len(sizes) != len(entry.shape):
        raise ValueError(f"session value `{entry.id}` has a symbolic shape: {entry.shape}")
    return sizes
