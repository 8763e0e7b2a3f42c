"""The ledger: who wrote each cached row, and a count of reads of rows that are not the reader's own. For debugging.

Beside every pool of session state is a tag for each row: the session that wrote it (a slot and an epoch of it), the
position or group that it holds, and the state that it was written for. Tags are written where the data is, from the
slots and positions that the writing op itself is given. Before an op reads, the rows that it will use are held to the
session that the step says each row of the batch belongs to. Padding rows may use anything in the spare slot, and
nothing elsewhere.

What a kernel does inside with the arguments it was given shows here only by what it leaves; NaN in empty slots is for
that. Captured work is looked at before it runs, with all visible groups where the selection is not known yet.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dsv41c.diagnostics import Diagnostic, UserFault
from dsv41c.kernels.step import Step
from dsv41c.runtime.manifest import Manifest, OpEntry, TransferEntry
from dsv41c.runtime.stages.layout import plain_id
from dsv41c.runtime.state import Pools, row_axis, storages
from dsv41c.runtime.touches import NOTHING, READS, WRITES, Given, Touch

if TYPE_CHECKING:
    from dsv41c.runtime.stages.crossing import Rows

Places = tuple[Tensor | int, Tensor | slice]  # where rows are in a pool [slots, capacity, ...]
_NOBODY = -1  # owns padding rows and the spare slot, and wrote what nobody wrote
_FREE = -2  # owns a slot that no session has
_GROUPS = ("compress_kv", "index_k")


@dataclass(frozen=True, slots=True)
class Foreign:
    """A row that an op touched and that was not its session's own.

    `owner` and `number`: whose row of the batch it was for, and the position or group. `tag`: owner, number and state
    of what was there, None where the slot alone is wrong.
    """

    op: OpEntry
    value: str
    writes: bool
    owner: int
    number: int
    slot: int
    tag: tuple[int, int, int] | None


class Ledger:
    """The tags of an engine's pools, and what was found. Counts are of rows, by state kind and op kind.

    `reads`: all that were read; `foreign`: those of them that were not the reader's own; `misplaced`: rows written to a
    slot that is not the writer's. `first` has the first such row of each op and state.
    """

    def __init__(self, manifest: Manifest, pools: Pools) -> None:
        self.reads: Counter[tuple[str, str]] = Counter()
        self.foreign: Counter[tuple[str, str]] = Counter()
        self.misplaced: Counter[tuple[str, str]] = Counter()
        self.first: dict[tuple[str, str, bool], Foreign] = {}
        self._pools = pools
        self._kinds = {value.id: value.kind for value in manifest.values}
        self._states = storages(manifest.values)  # those of other processes as well
        self._names = list(dict.fromkeys(self._states.values()))
        self._mirrors = {op.writes["value"]: op for op in manifest.ops if op.kind == "mirror"}
        self._owners = [_FREE] * pools.slots
        self._owners[pools.spare] = _NOBODY
        self.tags = {
            storage: pool.new_full(
                (pool.shape[0], pool.shape[row_axis(pools.kinds[storage])], 3), NOTHING, dtype=torch.int64
            )
            for storage, pool in pools.tensors.items()
        }

    # --- sessions ---------------------------------------------------------------------------------------------------

    def start(self, slot: int, epoch: int) -> None:
        """A slot is a new session's: what is in it becomes foreign."""
        self._owners[slot] = self._owner(slot, epoch)

    def close(self, slot: int) -> None:
        """A slot is nobody's."""
        self._owners[slot] = _FREE

    def copy(self, source: int, target: int) -> None:
        """What a session owns of its slot, another one has in its own slot now; the rest stays foreign."""
        for tags in self.tags.values():
            tags[target] = tags[source]
            owner = tags[target, :, 0]
            owner[owner == self._owners[source]] = self._owners[target]

    def owners(self, rows: Rows) -> list[int]:
        """Whose each row of a step's batch is, padding rows included."""
        own = [self._owner(slot, epoch) for slot, epoch in zip(rows.slots, rows.epochs, strict=True)]
        return [*own, *[_NOBODY] * rows.padding]

    def _owner(self, slot: int, epoch: int) -> int:
        return epoch * self._pools.slots + slot

    # --- ops --------------------------------------------------------------------------------------------------------

    def look(
        self, op: OpEntry, step: Step, count: int, owners: Sequence[int], given: Mapping[str, Tensor]
    ) -> dict[str, tuple[Tensor, Tensor]]:
        """What an op is about to read that is foreign, by port: rows [B, n] of slots, and which, bool [B, n].

        Slots that it is about to write are looked at too. `count` as in `Given`; `given`: the tensors of its reads by
        port, as far as they are known.
        """
        found = {}
        for port, touches in READS.get(op.kind, {}).items():
            if port in op.reads:
                tags = self._tags(op.reads[port], given.get(port))
                touch = touches(Given(step, count, tags.shape[1], op.attrs.get("ratio"), given.get("topk")))
                bad = self._foreign(op, op.reads[port], tags, step.slots, touch, owners)
                if bad is not None:
                    found[port] = touch.rows, bad
        for value, _, touch in self._writes(op, step, count, given):
            self._misplaced(op, value, step.slots, touch, owners)
        return found

    def wrote(self, op: OpEntry, step: Step, count: int, owners: Sequence[int], given: Mapping[str, Tensor]) -> None:
        """An op has written what it writes; arguments as for `look`."""
        for value, tags, touch in self._writes(op, step, count, given):
            self._tag(value, tags, step.slots, touch, owners)

    def _writes(
        self, op: OpEntry, step: Step, count: int, given: Mapping[str, Tensor]
    ) -> Iterator[tuple[str, Tensor, Touch]]:
        """Of each state that an op writes: the value, the tags, and the rows."""
        for port, touches in WRITES.get(op.kind, {}).items():
            if port in op.writes:
                tags = self._tags(op.writes[port], given.get(port))
                yield op.writes[port], tags, touches(Given(step, count, tags.shape[1], op.attrs.get("ratio")))

    def before_replay(self, ops: Iterable[OpEntry], step: Step, rows: Rows) -> None:
        """Look at captured ops before they run, on one token of each row of the batch.

        Raises `UserFault` (DSV848) where they would touch a foreign row: within captured work none can be masked.
        """
        owners, known = self.owners(rows), self._total()
        for op in ops:
            self.look(op, step, 1, owners, {})
            if self._total() > known:
                raise UserFault([self._finding(foreign) for foreign in self.first.values() if foreign.op.id == op.id])
            self.wrote(op, step, 1, owners, {})

    def _total(self) -> int:
        return self.foreign.total() + self.misplaced.total()

    # --- mirrors ----------------------------------------------------------------------------------------------------

    def leaving(self, move: TransferEntry, part: Tensor, places: Places, rows: Rows) -> Tensor:
        """Rows [n, ...] of a pool that go to a mirror: zeros for foreign ones."""
        op, tags = self._mirrors[move.arrives_as], self.tags[self._pools.storage_of[move.value]]
        slots, touch = _touch(places, part)
        bad = self._foreign(op, move.arrives_as, tags, slots, touch, self._owners_of(slots, rows))
        return part if bad is None else part.masked_fill(bad.view(-1, *[1] * (part.dim() - 1)), 0)

    def arrived(self, move: TransferEntry, part: Tensor, places: Places, rows: Rows) -> None:
        """Rows [n, ...] that came are in a mirror now."""
        op, tags = self._mirrors[move.arrives_as], self.tags[self._pools.storage_of[move.arrives_as]]
        slots, touch = _touch(places, part)
        owners = self._owners_of(slots, rows)
        self._misplaced(op, move.arrives_as, slots, touch, owners)
        self._tag(move.value, tags, slots, touch, owners)

    def _owners_of(self, slots: Tensor, rows: Rows) -> list[int]:
        known = dict(zip(rows.slots, self.owners(rows), strict=False))
        return [known.get(slot, _NOBODY) for slot in slots.tolist()]

    # --- tags -------------------------------------------------------------------------------------------------------

    def _tags(self, value: str, pool: Tensor | None) -> Tensor:
        """The tags of the pool that an op is given, where that is known and one; else of the pool that it should be."""
        if pool is not None and pool.numel():
            for storage, own in self._pools.tensors.items():
                if own.data_ptr() == pool.data_ptr():
                    return self.tags[storage]
        return self.tags[self._pools.storage_of[value]]

    def _state(self, value: str) -> int:
        """A number for the state that a value is a version of, here or on another stage."""
        return self._names.index(self._states[plain_id(value)])

    def _foreign(
        self, op: OpEntry, value: str, tags: Tensor, slots: Tensor, touch: Touch, owners: Sequence[int]
    ) -> Tensor | None:
        """Count a read; which of its rows are foreign, bool [B, n], None where none is."""
        readers = torch.tensor(owners, device=slots.device)[:, None]
        mine = torch.tensor(self._owners, device=slots.device)[slots][:, None] == readers
        there = tags[slots[:, None], touch.rows]
        same = there[..., 0].eq(readers) & there[..., 1].eq(touch.numbers) & there[..., 2].eq(self._state(value))
        bad = touch.used & ~(mine & (same | (readers == _NOBODY)))
        key = self._kinds[value], op.kind
        used, foreign = torch.stack([touch.used.sum(), bad.sum()]).tolist()
        self.reads[key] += used
        if not foreign:
            return None
        self.foreign[key] += foreign
        row, column = bad.nonzero()[0].tolist()
        tag = tuple(there[row, column].tolist()) if mine[row] else None
        self._keep(Foreign(op, value, False, owners[row], int(touch.numbers[row, column]), int(slots[row]), tag))
        return bad

    def _misplaced(self, op: OpEntry, value: str, slots: Tensor, touch: Touch, owners: Sequence[int]) -> None:
        """Count rows that are written to slots that are not the writers'."""
        writers = torch.tensor(owners, device=slots.device)
        mine = torch.tensor(self._owners, device=slots.device)[slots] == writers
        bad = touch.used & ~mine[:, None]
        count = int(bad.sum())
        if count:
            self.misplaced[self._kinds[value], op.kind] += count
            row, column = bad.nonzero()[0].tolist()
            self._keep(Foreign(op, value, True, owners[row], int(touch.numbers[row, column]), int(slots[row]), None))

    def _tag(self, value: str, tags: Tensor, slots: Tensor, touch: Touch, owners: Sequence[int]) -> None:
        """Say who wrote rows."""
        writers = torch.tensor(owners, device=slots.device)[:, None].expand_as(touch.numbers)
        fresh = torch.stack([writers, touch.numbers, torch.full_like(touch.numbers, self._state(value))], -1)
        tags[slots[:, None].expand_as(touch.rows)[touch.used], touch.rows[touch.used]] = fresh[touch.used]

    def _keep(self, foreign: Foreign) -> None:
        self.first.setdefault((foreign.op.id, foreign.value, foreign.writes), foreign)

    # --- findings ---------------------------------------------------------------------------------------------------

    def findings(self) -> list[Diagnostic]:
        """A finding (DSV848) for each op and state where a row was foreign, in the order they were found."""
        return [self._finding(foreign) for foreign in self.first.values()]

    def _finding(self, foreign: Foreign) -> Diagnostic:
        op, kind = foreign.op, self._kinds[foreign.value]
        counts = self.misplaced if foreign.writes else self.foreign
        row = f"{_place(kind, foreign.number)} of `{foreign.value}`"
        done = f"`{op.id}` {'writes' if foreign.writes else 'reads'} {row} for {self._session(foreign.owner)}"
        return Diagnostic(
            "DSV848",
            f"{done}, and {self._there(foreign, kind)}",
            facts=(
                ("state", kind),
                ("op", f"{op.kind} of layer {op.layer}" if op.layer is not None else op.kind),
                ("such rows of all ops of the kind", str(counts[kind, op.kind])),
                ("comes from", op.span),
            ),
            help="compile the plan again if it was edited; if it was not, this is a bug to report, with this message",
        )

    def _there(self, foreign: Foreign, kind: str) -> str:
        """What was found instead."""
        if foreign.tag is None:
            return f"slot {foreign.slot} belongs to {self._session(self._owners[foreign.slot])}"
        owner, number, state = foreign.tag
        if owner == _NOBODY or number == NOTHING:
            return "nothing was written there"
        name = self._names[state].removesuffix(".before")
        what = _place(kind, number)
        if name != self._states[plain_id(foreign.value)].removesuffix(".before"):
            what = f"{what} of `{name}`"
        return f"what is there is {what}, written for {self._session(owner)}"

    def _session(self, owner: int) -> str:
        if owner < 0:
            return "no session" if owner == _FREE else "a padding row"
        epoch, slot = divmod(owner, self._pools.slots)
        return f"the session in slot {slot} (epoch {epoch})"


def _place(kind: str, number: int) -> str:
    return f"{'group' if kind in _GROUPS else 'position'} {number}"


def _touch(places: Places, part: Tensor) -> tuple[Tensor, Touch]:
    """The slots int64 [n] of rows, and the rows one by one, [n, 1]."""
    slot, number = places
    if isinstance(number, slice):
        number = torch.arange(number.start, number.stop, device=part.device)
    slots = slot if isinstance(slot, Tensor) else torch.full_like(number, slot)
    rows = number[:, None]
    return slots, Touch(rows, rows, torch.ones_like(rows, dtype=torch.bool))
