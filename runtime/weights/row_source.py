"""Rows of tables as bytes, from where they are stored: a map of their file, reads of the file, or a copy in memory.

A table is one tensor, or codes and scales: a row's bytes are those of its parts, one after the other. Tables are larger
than memory, and rows lie anywhere in them, so nothing is read ahead and what was read is let go of: memory stays flat
whatever is read. Sources may be read by several threads at a time.
"""

from __future__ import annotations

import mmap
import os
import warnings
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from dsv41c.diagnostics import Diagnostic, Span, UserFault
from dsv41c.runtime.weights.checkpoint import Checkpoint
from dsv41c.runtime.weights.pinned import host_rows
from dsv41c.runtime.weights.shard import TensorHeader

DROPPED = 4096  # rows after which pages are let go of: a page fault may bring 64 KiB of pages that lie around it
READERS = 8  # threads that read a table's file, so that a disk has as many requests to work on
_ALONE = 64  # rows that one thread reads sooner than several get to work
_PIECE = 1 << 26  # bytes of rows that are copied at a time
_HELP = "leave a checkpoint's files as they are while it is in use; fetch the file again if it is damaged"


class Part(NamedTuple):
    """Where rows of a tensor lie: row i at byte `offset + i * pitch` of the file, `width` bytes of it."""

    header: TensorHeader
    width: int
    pitch: int

    @staticmethod
    def of(header: TensorHeader) -> Part:
        """The rows of a tensor [rows, ...]."""
        width = header.size // header.shape[0]
        return Part(header, width, header.pitch or width)

    @property
    def end(self) -> int:
        """The byte of the file behind the last row."""
        return self.header.offset + self.header.extent


def joined(parts: Sequence[Part]) -> list[Part]:
    """Parts of rows; those that lie side by side in each row are one, which is read at once."""
    found: list[Part] = []
    for part in parts:
        last = found[-1] if found else part
        behind = (last.header.file, last.header.offset + last.width, last.pitch)
        if found and (part.header.file, part.header.offset, part.pitch) == behind:
            width, rows = last.width + part.width, last.header.shape[0]
            header = last.header._replace(shape=(rows, width), size=rows * width, pitch=last.pitch)
            found[-1] = Part(header, width, last.pitch)
        else:
            found.append(part)
    return found


class RowSource(Protocol):
    """Rows by number. `width`: bytes of one, all its parts."""

    count: int
    width: int

    def read(self, ids: Tensor) -> Tensor:
        """The rows of int64 ids [n] of the host, uint8 [n, width]. Raises UserFault (DSV733) where that fails."""
        ...

    def span(self, first: int, end: int) -> Tensor:
        """Consecutive rows, uint8 [end - first, width]. Raises as `read` does."""
        ...


class _Files:
    """The files of some parts, opened once for their lifetime. Raises UserFault (DSV732) where one has changed."""

    def __init__(self, parts: Sequence[Part], checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self.opened: dict[str, int] = {}
        for name in dict.fromkeys(part.header.file for part in parts):
            self.opened[name] = self._open(name)
            weakref.finalize(self, os.close, self.opened[name])

    def _open(self, name: str) -> int:
        try:
            opened = os.open(self.checkpoint.folder / name, os.O_RDONLY)
        except OSError as error:
            raise self._fault("DSV732", name, f"`{name}` can no longer be opened: {error.strerror}") from None
        size, known = os.fstat(opened).st_size, self.checkpoint.files[name]
        if size != known:
            os.close(opened)
            raise self._fault("DSV732", name, f"`{name}` has {size} bytes, and had {known} when it was checked")
        return opened

    def of(self, part: Part) -> int:
        """The descriptor of the file that a part lies in."""
        return self.opened[part.header.file]

    def expect_whole(self, part: Part) -> None:
        """Raise UserFault (DSV733) where a file has become too short for a part."""
        size = os.fstat(self.of(part)).st_size
        if size < part.end:
            raise self.unreadable(part, f"it has {size} bytes by now, and the table reaches to byte {part.end}")

    def unreadable(self, part: Part, reason: str) -> UserFault:
        """The fault of a file that cannot be read."""
        name = part.header.file
        return self._fault("DSV733", name, f"rows of `{part.header.stored}` cannot be read from `{name}`: {reason}")

    def _fault(self, code: str, name: str, text: str) -> UserFault:
        return UserFault(self.checkpoint.located([Diagnostic(code, text, Span(name), help=_HELP)]))


class MappedRows:
    """Rows through a map of the file: what was read lately is in the system's page cache, for all processes.

    After DROPPED rows the map is made anew. That gives back its pages, which then are the page cache's alone, and the
    tables that the system keeps of them. A file that is cut while a row is read from it ends the process, as no program
    can be told of that; one that was cut before is a finding.
    """

    def __init__(self, parts: Sequence[Part], checkpoint: Checkpoint) -> None:
        self.count, self.width = parts[0].header.shape[0], sum(part.width for part in parts)
        self._parts, self._files = tuple(parts), _Files(parts, checkpoint)
        self._read = 0
        with warnings.catch_warnings():
            # Torch warns, once, that the buffer is read-only. That is the point: nothing writes to weights. Later maps
            # are made by any thread, which must not touch the filters of all.
            warnings.filterwarnings("ignore", message="The given buffer is not writable")
            self._views = [self._mapped(part) for part in parts]

    def read(self, ids: Tensor) -> Tensor:
        """The rows of ids [n]: `RowSource.read`."""
        views = self._views  # those that were there at the start: another thread may make new ones
        for part in self._parts:
            self._files.expect_whole(part)
        rows = torch.cat([view.index_select(0, ids) for view in views], dim=1)
        self._let_go(len(ids))
        return rows

    def span(self, first: int, end: int) -> Tensor:
        """Consecutive rows: `RowSource.span`."""
        for part in self._parts:
            self._files.expect_whole(part)
        rows = torch.cat([view[first:end] for view in self._views], dim=1)
        self._let_go(DROPPED)
        return rows

    def _let_go(self, rows: int) -> None:
        self._read += rows
        if self._read >= DROPPED:
            self._read = 0
            self._views = [self._mapped(part) for part in self._parts]

    def _mapped(self, part: Part) -> Tensor:
        """A read-only view of a part's rows, uint8 [rows, width]; the map ends with it."""
        header, opened = part.header, self._files.of(part)
        first = header.offset // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
        try:
            mapped = mmap.mmap(opened, part.end - first, access=mmap.ACCESS_READ, offset=first)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise self._files.unreadable(part, reason.lower()) from None
        if hasattr(mmap, "MADV_RANDOM"):
            mapped.madvise(mmap.MADV_RANDOM)
        data = torch.frombuffer(mapped, dtype=torch.uint8, count=header.extent, offset=header.offset - first)
        return data.as_strided((self.count, part.width), (part.pitch, 1))


class DiskRows:
    """Rows by a read each, some at a time: memory holds those that were asked for, and the page cache few."""

    def __init__(self, parts: Sequence[Part], checkpoint: Checkpoint) -> None:
        self.count, self.width = parts[0].header.shape[0], sum(part.width for part in parts)
        self._parts, self._files = tuple(parts), _Files(parts, checkpoint)
        self._readers = ThreadPoolExecutor(READERS, "engram-read")
        self._read = 0
        self._advise("POSIX_FADV_RANDOM")

    def read(self, ids: Tensor) -> Tensor:
        """The rows of ids [n]: `RowSource.read`."""
        rows = torch.empty(len(ids), self.width, dtype=torch.uint8)
        into, numbers = rows.view(-1).numpy().data, ids.tolist()
        if len(numbers) <= _ALONE:
            self._fill(into, 0, numbers)
        else:
            share = -(-len(numbers) // READERS)
            parts = [
                self._readers.submit(self._fill, into, begin, numbers[begin : begin + share])
                for begin in range(0, len(numbers), share)
            ]
            for part in parts:
                part.result()
        self._let_go(len(ids))
        return rows

    def span(self, first: int, end: int) -> Tensor:
        """Consecutive rows: `RowSource.span`."""
        rows = torch.empty(end - first, self.width, dtype=torch.uint8)
        at = 0
        for part in self._parts:
            raw = bytearray((end - first - 1) * part.pitch + part.width)
            self._fetch(part, memoryview(raw), part.header.offset + first * part.pitch)
            view = torch.frombuffer(raw, dtype=torch.uint8).as_strided((end - first, part.width), (part.pitch, 1))
            rows[:, at : at + part.width] = view
            at += part.width
        self._let_go(DROPPED)
        return rows

    def _fill(self, into: memoryview, begin: int, numbers: Sequence[int]) -> None:
        """Rows by number to where the `begin`-th and those after it lie. The disk is asked for all before the first."""
        if hasattr(os, "posix_fadvise"):
            for number in numbers:
                for part in self._parts:
                    offset = part.header.offset + number * part.pitch
                    os.posix_fadvise(self._files.of(part), offset, part.width, os.POSIX_FADV_WILLNEED)
        at = begin * self.width
        for number in numbers:
            for part in self._parts:
                self._fetch(part, into[at : at + part.width], part.header.offset + number * part.pitch)
                at += part.width

    def _fetch(self, part: Part, into: memoryview, offset: int) -> None:
        done, wanted = 0, len(into)
        while done < wanted:
            try:
                count = os.preadv(self._files.of(part), [into[done:]], offset + done)
            except OSError as error:
                raise self._files.unreadable(part, (error.strerror or str(error)).lower()) from None
            if count == 0:
                self._files.expect_whole(part)
                raise self._files.unreadable(part, f"it ends before byte {offset + wanted}")
            done += count

    def _let_go(self, rows: int) -> None:
        self._read += rows
        if self._read >= DROPPED:
            self._read = 0
            self._advise("POSIX_FADV_DONTNEED")

    def _advise(self, name: str) -> None:
        """Tell the system how the rows are read, where it listens."""
        if hasattr(os, name):
            for part in self._parts:
                os.posix_fadvise(self._files.of(part), part.header.offset, part.header.extent, getattr(os, name))


class HostRows:
    """Rows of a copy in memory, pinned where there are GPUs, so that it is read once and never again.

    `memory`: all of them, uint8 [rows, width].
    """

    def __init__(self, source: RowSource) -> None:
        self.count, self.width = source.count, source.width
        self.memory = host_rows(source.count, source.width)
        for first, end in pieces(source):
            self.memory[first:end] = source.span(first, end)

    def read(self, ids: Tensor) -> Tensor:
        """The rows of ids [n]: `RowSource.read`."""
        return self.memory.index_select(0, ids)

    def span(self, first: int, end: int) -> Tensor:
        """Consecutive rows: `RowSource.span`."""
        return self.memory[first:end]


def pieces(source: RowSource) -> list[tuple[int, int]]:
    """First and end of the runs of rows that a whole table is copied in."""
    step = max(1, _PIECE // max(1, source.width))
    return [(first, min(first + step, source.count)) for first in range(0, source.count, step)]
