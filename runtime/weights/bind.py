"""Bind a plan's weights to a checkpoint: every role becomes what its kernels take, and nothing is loaded whole.

Dense weights are decoded, or are views of the mapped file where it already holds the wanted dtype or the plan wants
them as stored. Experts stay mapped and packed, and are decoded at use. Tables are read row by row, from where
`engram.storage` has them.

Of a weight that the processes of a stage share, each binds its shard: views of the mapped file, with the scales of its
blocks. The rest is not read.

The rule of conversion: exact or refused. BF16 goes into F32; F32 goes into BF16 where every value is a BF16 value.
Only approximations, which blocks of GGUF types stand for (Q8_0, Q4_K, ...), are rounded, once, to what the plan
computes in.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import overload

import torch
from torch import Tensor

from dsv41c.diagnostics import Diagnostic, UserFault
from dsv41c.kernels.fusion import WIDE_ROLES
from dsv41c.kernels.reference.encodings import Packed
from dsv41c.runtime.manifest import EngramEntry, Manifest, ShardEntry, WeightEntry
from dsv41c.runtime.weights.gguf.lazy import Lazy
from dsv41c.runtime.weights.gguf.table import BlockForm
from dsv41c.runtime.weights.gguf.tensor import GgufHeader
from dsv41c.runtime.weights.headers import Checkpoint, read_checkpoint
from dsv41c.runtime.weights.mapped import MappedFiles
from dsv41c.runtime.weights.match import Binding, Matching, Stored, match
from dsv41c.runtime.weights.parts import together
from dsv41c.runtime.weights.row_form import TableForm
from dsv41c.runtime.weights.row_source import Part, joined
from dsv41c.runtime.weights.table import StoredTable, stored_table
from dsv41c.runtime.weights.values import DTYPES, decode, find_not_a_number, find_not_bf16

# Up to so many bytes of expert scales are looked through for NaN at once (about a second); beyond, at first use.
EAGER_BYTES = 1 << 30


class Experts(Sequence["Packed | Tensor"]):
    """The experts of one projection of one layer, packed as stored: item e is a view of the mapped file.

    What GGUF stores in blocks is taken out of them at every use.

    With `split`, item e is the shard's part of it. Each is checked for NaN once, at binding or at its first use, which
    raises UserFault (DSV730).
    """

    def __init__(self, stored: tuple[Stored, ...], files: MappedFiles, split: ShardEntry | None, shard: int) -> None:
        self._stored = stored
        self._files = files
        items = Lazy(stored, lambda item: _part(_packed(item, files), split, shard))
        self._in_blocks = any(isinstance(item.tensor, GgufHeader) for item in stored)
        self._items: Sequence[Packed | Tensor] = items if self._in_blocks else list(items)
        self._checked = [False] * len(stored)
        self._split = split

    def __len__(self) -> int:
        return len(self._items)

    @overload
    def __getitem__(self, index: int) -> Packed | Tensor: ...
    @overload
    def __getitem__(self, index: slice) -> list[Packed | Tensor]: ...
    def __getitem__(self, index: int | slice) -> Packed | Tensor | list[Packed | Tensor]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not self._checked[index]:
            finding = self.check(index)
            if finding is not None:
                raise UserFault([finding])
        return self._items[index]

    @property
    def whole(self) -> Packed | None:
        """All of them as one view of the file [E, ...], unchecked; None unless they follow each other there, whole."""
        scales = [stored.scale for stored in self._stored if stored.scale is not None]
        if self._in_blocks or self._split is not None or len(scales) < len(self):
            return None
        codes, scale = together([stored.tensor for stored in self._stored]), together(scales)
        if codes is None or scale is None:
            return None
        return Packed(self._files.tensor(codes), self._files.tensor(scale), self._stored[0].encoding)

    @property
    def bytes_to_check(self) -> int:
        """Bytes that a check of all of them reads: FP4 codes cannot be NaN, so only their scales."""
        if self._in_blocks:
            return sum(item.tensor.size for item in self._stored)
        packed = [item for item in self._items if isinstance(item, Packed)]
        plain = [item for item in self._items if isinstance(item, Tensor)]
        codes = [item.codes for item in packed if item.encoding != "fp4_32"]
        return sum(tensor.nbytes for tensor in (*plain, *codes, *(item.scale for item in packed)))

    def check(self, index: int) -> Diagnostic | None:
        """Look through one expert for NaN; the finding, or None for ever after."""
        stored = self._stored[index]
        finding = _not_a_number(stored, self._items[index])
        self._checked[index] = finding is None
        if finding is None:
            return None
        # A fault is told of the whole tensor, by its own indices.
        return self._files.checkpoint.located([_not_a_number(stored, _packed(stored, self._files)) or finding])[0]


Bound = Tensor | Packed | Experts | StoredTable


class BoundWeights(Mapping[str, Bound]):
    """Weights by id (`layers.4.wq_a`): tensors, experts, tables. `matching` says what they were bound from."""

    def __init__(self, weights: dict[str, Bound], matching: Matching) -> None:
        self._weights = weights
        self.matching = matching

    def __getitem__(self, key: str) -> Bound:
        return self._weights[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)


def bind(
    manifest: Manifest,
    checkpoint: Path | str | Checkpoint,
    shard: int = 0,
    wanted: Container[str] | None = None,
) -> BoundWeights:
    """Bind every weight of a plan, or of those that are split the parts of a shard, by its number.

    All are matched; with `wanted`, only these ids are bound.

    Raises UserFault with all findings; before headers match, nothing is allocated.
    """
    if not isinstance(checkpoint, Checkpoint):
        checkpoint = read_checkpoint(checkpoint)
    matching = match(manifest, checkpoint)
    if matching.failed:
        raise UserFault(matching.diagnostics)
    bindings = [binding for binding in matching.bindings if wanted is None or binding.entry.id in wanted]
    files = MappedFiles(checkpoint, _files(bindings))
    weights: dict[str, Bound] = {}
    findings: list[Diagnostic] = []
    for binding in bindings:
        bound = _bind(binding, files, shard, manifest.engram)
        if isinstance(bound, Diagnostic):
            findings += checkpoint.located([bound])
        else:
            weights[binding.entry.id] = bound
    findings += _check_experts([bound for bound in weights.values() if isinstance(bound, Experts)])
    if findings:
        raise UserFault(findings)
    return BoundWeights(weights, matching)


def _files(bindings: Iterable[Binding]) -> list[str]:
    stored = [item for binding in bindings for item in binding.stored]
    return [header.file for item in stored for header in (item.tensor, item.scale) if header is not None]


def _bind(binding: Binding, files: MappedFiles, shard: int, engram: EngramEntry | None) -> Bound | Diagnostic:
    entry = binding.entry
    if "{expert}" in entry.name:
        return Experts(binding.stored, files, entry.shard, shard)
    (stored,) = binding.stored
    if entry.role == "engram_table":
        return _table(stored, files.checkpoint, engram)
    item = _packed(stored, files)
    part = _converted(entry, stored, _part(item, entry.shard, shard))
    # A fault is told of the whole tensor, by its own indices.
    return _converted(entry, stored, item) if isinstance(part, Diagnostic) and entry.shard else part


def _table(stored: Stored, checkpoint: Checkpoint, engram: EngramEntry | None) -> StoredTable:
    parts = joined([Part.of(header) for header in (stored.tensor, stored.scale) if header is not None])
    in_blocks = isinstance(stored.tensor, GgufHeader)
    form = BlockForm(stored.tensor, checkpoint) if in_blocks else TableForm(stored, checkpoint)
    return stored_table(parts, form, checkpoint, engram)


def _part(item: Packed | Tensor, shard: ShardEntry | None, index: int) -> Packed | Tensor:
    """A view of the rows or columns of a shard. Of a packed one also its scales: shards have whole blocks."""
    if shard is None:
        return item
    if isinstance(item, Packed):
        return Packed(_narrowed(item.codes, shard, index), _narrowed(item.scale, shard, index), item.encoding)
    return _narrowed(item, shard, index)


def _narrowed(tensor: Tensor, shard: ShardEntry, index: int) -> Tensor:
    axis = 0 if shard.axis == "rows" else tensor.ndim - 1
    own = tensor.shape[axis] // shard.count
    return tensor.narrow(axis, index * own, own)


def _converted(entry: WeightEntry, stored: Stored, item: Packed | Tensor) -> Bound | Diagnostic:
    """A stored tensor, or a part of it, as kernels want it."""
    codes, scale = (item.codes, item.scale) if isinstance(item, Packed) else (item, None)
    if entry.dtype != "stored":
        return decode(stored, codes, scale, DTYPES[entry.dtype])
    if isinstance(item, Packed):
        return find_not_bf16(stored, item.codes, item.scale) or item
    return decode(stored, item, None, item.dtype if entry.role in WIDE_ROLES else torch.bfloat16)


def _not_a_number(stored: Stored, item: Packed | Tensor) -> Diagnostic | None:
    """The finding in a tensor that stays as it is stored, or in a part of it."""
    codes, scale = (item.codes, item.scale) if isinstance(item, Packed) else (item, None)
    return find_not_a_number(stored, codes, scale)


def _packed(stored: Stored, files: MappedFiles) -> Packed | Tensor:
    """A stored tensor as views of the mapped file."""
    codes = files.tensor(stored.tensor)
    return codes if stored.scale is None else Packed(codes, files.tensor(stored.scale), stored.encoding)


def _check_experts(groups: list[Experts]) -> list[Diagnostic]:
    """Look for NaN in every expert, if that can be done quickly; the rest is checked at first use."""
    if sum(group.bytes_to_check for group in groups) > EAGER_BYTES:
        return []
    found = (group.check(expert) for group in groups for expert in range(len(group)))
    return [finding for finding in found if finding is not None]
