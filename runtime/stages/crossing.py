"""What crosses one boundary in one step: what leaves, in which form, and where it goes on arrival."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dsv41c.runtime.device.tensors import integers
from dsv41c.runtime.manifest import Manifest, TransferEntry
from dsv41c.runtime.stages.layout import Boundary, plain_id, ratios
from dsv41c.runtime.stages.wire import from_wire, to_wire, wire_form
from dsv41c.runtime.state import DTYPES, Pools
from dsv41c.runtime.tail import Tail, last_rows


@dataclass(frozen=True, slots=True)
class Rows:
    """Whose tokens a step has, known on the host: slot and first position of each session, `tokens` of each.

    `padding` rows of the batch come behind them and never cross. `context` as in `Step`. With a `tail`, of a chunk's
    values only the last rows cross that somebody on the other side reads. `epochs`, those of the sessions, say with
    their slots whose state it is, for the ledger. `digest`: a checksum of the tokens, where processes compare.
    """

    slots: tuple[int, ...]
    positions: tuple[int, ...]
    tokens: int
    context: int
    padding: int = 0
    tail: Tail | None = None
    epochs: tuple[int, ...] = ()
    digest: int = 0

    def read(self, value: str) -> int:
        """How many rows of a step value cross."""
        return self.tokens if self.tail is None else self.tail.read(value)

    def appended(self, ratio: int) -> tuple[list[int], list[int]]:
        """Slots and numbers of the groups of so many tokens that the step completes, one after the other."""
        slots: list[int] = []
        numbers: list[int] = []
        for slot, position in zip(self.slots, self.positions, strict=True):
            fresh = range(position // ratio, (position + self.tokens) // ratio)
            slots += [slot] * len(fresh)
            numbers += fresh
        return slots, numbers


Form = tuple[tuple[int, ...], torch.dtype]


class Crossing:
    """One boundary of a plan. What crosses is a list of dense tensors: the chunk's values, then rows for mirrors."""

    def __init__(self, manifest: Manifest, boundary: Boundary) -> None:
        self.boundary = boundary
        self._entries = {value.id: value for value in manifest.values}
        self._ratios = ratios(manifest)
        self._groups = {
            move.value: self._of_groups(manifest, move)
            for move in boundary.chunk
            if move.kind in ("topk", "candidates")
        }

    def step_values(self, rows: Rows) -> dict[str, Form]:
        """Shape and dtype of each step value on arrival, by its id there, without padding rows."""
        return {move.arrives_as: self._form(move, rows) for move in self.boundary.chunk}

    def _form(self, move: TransferEntry, rows: Rows) -> Form:
        shape = (len(rows.slots), rows.read(move.value), *self._sizes(move, rows.context))
        return shape, DTYPES[self._entries[move.value].dtype]

    def forms(self, rows: Rows) -> list[Form]:
        """Shape and dtype of everything that crosses in a step."""
        chunk = [move for move in self.boundary.chunk if rows.read(move.value)]
        found = [wire_form(move.kind, *self._form(move, rows)) for move in chunk]
        for move in self.boundary.mirrors:
            entry = self._entries[move.value]
            count = len(rows.appended(self._ratios[move.value])[0])
            found.append(((count, *(int(size) for size in entry.shape[1:])), DTYPES[entry.dtype]))
        return found

    def bytes(self, rows: Rows) -> int:
        """Bytes that cross in a step."""
        return sum(math.prod(shape) * dtype.itemsize for shape, dtype in self.forms(rows))

    def leaving(self, values: Mapping[str, Tensor], pools: Pools, rows: Rows) -> list[Tensor]:
        """What crosses, on the source's device: dense tensors or views of what the stage left."""
        wired = []
        for move in self.boundary.chunk:
            if rows.read(move.value):
                value = values[move.value][: len(rows.slots)]
                wired.append(to_wire(move.kind, last_rows(value, rows.read(move.value))))
        for move in self.boundary.mirrors:
            pool = pools.tensors[pools.storage_of[move.value]]
            places = self._places(move, rows, pool.device)
            part = pool[places]
            wired.append(part if pools.ledger is None else pools.ledger.leaving(move, part, places, rows))
        return wired

    def arrive(self, wired: Sequence[Tensor], values: MutableMapping[str, Tensor], pools: Pools, rows: Rows) -> None:
        """Put what crossed, by now on the target's device, where the stage's regions read it.

        A step value that is in `values` already is overwritten where it is; padding rows of fresh ones are zeros.
        """
        count, chunk = len(rows.slots), [move for move in self.boundary.chunk if rows.read(move.value)]
        for move, part in zip(chunk, wired, strict=False):
            value = from_wire(move.kind, part, self._last(move, rows.context))
            there = values.get(move.arrives_as)
            if there is not None:
                there[:count].copy_(value)
            elif rows.padding:
                zeros = value.new_zeros(rows.padding, *value.shape[1:])
                values[move.arrives_as] = torch.cat([value, zeros])
            else:
                values[move.arrives_as] = value
        for move, part in zip(self.boundary.mirrors, wired[len(chunk) :], strict=True):
            if part.shape[0]:
                pool = pools.tensors[pools.storage_of[move.arrives_as]]
                places = self._places(move, rows, pool.device)
                pool[places] = part
                if pools.ledger is not None:
                    pools.ledger.arrived(move, part, places, rows)

    def _places(self, move: TransferEntry, rows: Rows, device: torch.device) -> tuple[Tensor | int, Tensor | slice]:
        """Where the rows that a step appends are in a pool [slots, capacity, ...]."""
        slots, numbers = rows.appended(self._ratios[move.value])
        if len(rows.slots) == 1:  # a range of one slot, which needs nothing from the host
            return rows.slots[0], slice(numbers[0], numbers[-1] + 1) if numbers else slice(0, 0)
        slot, number = integers([slots, numbers], device)
        return slot, number

    def _sizes(self, move: TransferEntry, context: int) -> Iterator[int]:
        """The axes of a step value behind B and T."""
        shape = self._entries[move.value].shape[2:]
        yield from (int(size) for size in shape[:-1])
        if shape:
            yield self._last(move, context)

    def _last(self, move: TransferEntry, context: int) -> int:
        """The size of the axis behind B and T that comes last: selections are no wider than the groups there are."""
        size = self._entries[move.value].shape[-1]
        if move.value in self._groups:
            groups = _groups(self._groups[move.value], context)
            return min(size, groups) if isinstance(size, int) else groups
        return size if isinstance(size, int) else 0

    def _of_groups(self, manifest: Manifest, move: TransferEntry) -> str:
        """`context/r` or `context/r/block`: how many there are of what a selection selects from."""
        size = self._entries[move.value].shape[-1]
        if isinstance(size, str):
            return size
        scored = next(op.reads["index_score"] for op in manifest.ops if plain_id(move.value) in op.writes.values())
        return str(self._entries[scored].shape[-1])


def _groups(size: str, context: int) -> int:
    """The number that `context/r` or `context/r/block` stands for."""
    ratio, _, block = size.removeprefix("context/").partition("/")
    return -(-(context // int(ratio)) // int(block or 1))
