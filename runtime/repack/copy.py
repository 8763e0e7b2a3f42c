"""The bytes of stored tensors in another order, never more than a piece of them in memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, Self

import numpy as np

from dsv41c.diagnostics import Diagnostic, Span, UserFault
from dsv41c.runtime.repack.layout import Output
from dsv41c.runtime.weights.headers import Checkpoint, TensorHeader

PIECE = 1 << 24  # bytes in memory at a time
Bytes = np.ndarray[Any, np.dtype[np.uint8]]
_HELP = "wait until the download or export is finished, and run again"


class Sources:
    """The files of a checkpoint, opened when first read, and closed at the end."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._files: dict[str, int] = {}
        self._closing = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    def rows(self, header: TensorHeader, first: int, count: int) -> Bytes:
        """Some rows of a tensor, uint8 [count, bytes of a row]. Raises UserFault (DSV732): the file has changed."""
        width = row_bytes(header)
        pitch = header.pitch or width
        span = self._read(header.file, header.offset + first * pitch, (count - 1) * pitch + width)
        return np.lib.stride_tricks.as_strided(span, (count, width), (pitch, 1))

    def _read(self, name: str, offset: int, size: int) -> Bytes:
        data = np.empty(size, np.uint8)
        done = 0
        try:
            file = self._open(name)
            while done < size and (got := os.preadv(file, [data[done:].data], offset + done)):
                done += got
        except OSError as error:
            raise self._changed(name, f"can no longer be read: {error.strerror}") from None
        if done < size:
            raise self._changed(name, f"ends at byte {offset + done:,}, and had more when it was checked")
        return data

    def _open(self, name: str) -> int:
        if name not in self._files:
            self._files[name] = os.open(self._checkpoint.folder / name, os.O_RDONLY | os.O_CLOEXEC)
            self._closing.callback(os.close, self._files[name])
        return self._files[name]

    def _changed(self, name: str, text: str) -> UserFault:
        finding = Diagnostic("DSV732", f"`{name}` {text}", Span(name), help=_HELP)
        return UserFault(self._checkpoint.located([finding]))


def swapped(codes: Bytes) -> Bytes:
    """Bytes with their two nibbles in the other order."""
    return np.bitwise_or(np.left_shift(codes, 4), np.right_shift(codes, 4), dtype=np.uint8)


def row_bytes(header: TensorHeader) -> int:
    """Bytes of a row: what one index of the first dimension takes; of a scalar, all."""
    return header.size // header.shape[0] if header.shape and header.shape[0] else header.size


def pieces(output: Output, sources: Sources) -> Iterator[Bytes]:
    """The bytes of a tensor to be written, in order. Raises UserFault (DSV732)."""
    for run in output.runs:
        rows = run[0].shape[0] if run[0].shape else 1
        width = sum(map(row_bytes, run))
        if not width:
            continue
        step = max(1, PIECE // width)
        for first in range(0, rows, step):
            count = min(step, rows - first)
            parts = [sources.rows(header, first, count) for header in run]
            piece = np.concatenate(parts, axis=1) if len(parts) > 1 else np.ascontiguousarray(parts[0])
            yield swapped(piece) if output.swapped else piece
