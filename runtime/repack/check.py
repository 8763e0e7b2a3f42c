"""Whether a repacked checkpoint holds the same values: both sides decoded in another way than elsewhere.

The new files are parsed and addressed here by hand, and codes are looked up in tables that are worked out here, so that
a fault in how layouts are read, written or decoded does not hide itself.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from dsv41c.diagnostics import Diagnostic, Span, UserFault
from dsv41c.runtime.repack.copy import Bytes, Sources, row_bytes
from dsv41c.runtime.weights.headers import Checkpoint, TensorHeader
from dsv41c.runtime.weights.index import INDEX
from dsv41c.runtime.weights.match import Matching

Values = np.ndarray[Any, np.dtype[np.float64]]
# Rows compared at a time hold about so many bytes of codes.
PIECE = 1 << 20
_EXPERT = re.compile(r"(.*\.experts\.)(\d+)\.(w[123])\.(weight|scale)")


class Raw(NamedTuple):
    """Where a tensor lies in the new files: row i is `width` bytes at byte `offset + i * pitch` of an open file."""

    name: str
    file: int
    offset: int
    rows: int
    width: int
    pitch: int

    def read(self, first: int, count: int) -> Bytes:
        """Some rows, uint8 [count, width]."""
        span = os.pread(self.file, (count - 1) * self.pitch + self.width, self.offset + first * self.pitch)
        data = np.frombuffer(span.ljust(count * self.pitch, b"\0"), np.uint8)[: count * self.pitch]
        return data.reshape(count, self.pitch)[:, : self.width]


def compare(
    old: Checkpoint, matching: Matching, new: Path, swapped: bool, tell: Callable[[int], None] = lambda done: None
) -> int:
    """How many elements were compared: all. Raises UserFault (DSV756) at the first that differs.

    `swapped` says that the old side's FP4 codes have the high nibble first.
    """
    stored = {item.tensor.name: item for binding in matching.bindings for item in binding.stored}
    scales = {item.scale.name for item in stored.values() if item.scale is not None}
    elements = done = 0
    with Sources(old) as sources, _New(new) as found:
        for name, header in old.tensors.items():
            if name in scales:
                continue
            item = stored.get(name)
            fresh, scale = found.tensor(name), None
            turned = swapped and _is_fp4(header, old)
            if item is not None and item.scale is not None:
                scale = (item.scale, found.tensor(name.removesuffix(".weight") + ".scale"))
            encoding = item.encoding if item is not None else ""
            for count, size in _compared(header, fresh, scale, encoding, turned, sources):
                elements, done = elements + count, done + size
                tell(done)
        found.expect_all_read()
    return elements


def _compared(
    header: TensorHeader,
    fresh: Raw,
    scale: tuple[TensorHeader, Raw] | None,
    encoding: str,
    turned: bool,
    sources: Sources,
) -> Iterator[tuple[int, int]]:
    """Compare a tensor piece by piece; gives elements and bytes of each piece."""
    rows = header.shape[0] if header.shape else 1
    width = row_bytes(header)
    if (fresh.rows, fresh.width) != (rows, width):
        raise _differs(header, fresh, f"has {fresh.rows} rows of {fresh.width} bytes, not {rows} of {width}")
    step = max(1, PIECE // max(1, width) // 32) * 32  # whole blocks of 32 rows
    for first in range(0, rows if width else 0, step):
        count = min(step, rows - first)
        left = sources.rows(header, first, count)
        if turned:
            left = _TURNED[left]
        right = fresh.read(first, count)
        elements = count * math.prod(header.shape[1:])
        if scale is None:
            same = np.array_equal(left, right)
        else:
            tall = 32 if encoding == "fp8_32x32" else 1
            low, high = first // tall, -(-(first + count) // tall)
            grids = sources.rows(scale[0], low, high - low), scale[1].read(low, high - low)
            one, other = (_values(part, grid, encoding) for part, grid in zip((left, right), grids, strict=True))
            same = np.array_equal(*grids) and bool((one.view(np.int64) == other.view(np.int64)).all())
            elements = one.size
        if not same:
            raise _differs(header, fresh, f"differs in rows {first:,} to {first + count - 1:,}")
        yield elements, count * width


def _differs(header: TensorHeader, fresh: Raw, text: str) -> UserFault:
    message = f"tensor `{fresh.name}`, made of `{header.stored}`, {text}"
    help_text = "run the same again; if it stays so, the disk or this program is at fault, and nothing was kept"
    return UserFault([Diagnostic("DSV756", message, Span(header.file), help=help_text)])


# --- the new files, by hand -------------------------------------------------------------------------------------------


class _New:
    """The files of a folder as its index lists them."""

    def __init__(self, folder: Path) -> None:
        index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
        self._order = str(index["metadata"].get("dsv41c.gate_up", "gate_up"))
        self._tensors: dict[str, tuple[int, int, Mapping[str, Any]]] = {}
        self._read: set[str] = set()
        self._closing = ExitStack()
        for name in sorted(set(index["weight_map"].values())):
            file = os.open(folder / name, os.O_RDONLY | os.O_CLOEXEC)
            self._closing.callback(os.close, file)
            start = 8 + int.from_bytes(os.pread(file, 8, 0), "little")
            for tensor, entry in json.loads(os.pread(file, start - 8, 8)).items():
                if tensor != "__metadata__":
                    self._tensors[tensor] = (file, start, entry)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    def expect_all_read(self) -> None:
        """Raise UserFault where the new files have a tensor that no old one is the same as."""
        rest = sorted(self._tensors.keys() - self._read)
        if rest:
            text = f"tensor `{rest[0]}` of the result was made of nothing"
            raise UserFault([Diagnostic("DSV756", text, help="the program is at fault, and nothing was kept")])

    def tensor(self, name: str) -> Raw:
        """Where an official tensor lies in the new files."""
        found = _EXPERT.fullmatch(name)
        if name in self._tensors:
            return self._plain(name)
        if found:
            place, expert, matrix, part = found[1], int(found[2]), found[3], found[4]
            if f"{place}{matrix}.{part}" in self._tensors:
                return self._expert(f"{place}{matrix}.{part}", expert)
            both = self._expert(f"{place}gate_up_proj.{part}", expert)
            up, half = int(matrix == "w3"), both.rows // 2
            if self._order == "gate_up_interleaved":
                return both._replace(offset=both.offset + up * both.width, rows=half, pitch=2 * both.width)
            return both._replace(offset=both.offset + up * half * both.width, rows=half)
        base, _, part = name.rpartition(".")
        table = self._plain(f"{base}.rows")
        codes = table.width // 33 * 32
        if part == "weight":
            return table._replace(width=codes)
        return table._replace(offset=table.offset + codes, width=table.width - codes)

    def _expert(self, name: str, expert: int) -> Raw:
        whole = self._plain(name)  # of three dimensions: a row is an expert
        rows = self._tensors[name][2]["shape"][1]
        width = whole.width // rows
        return Raw(name, whole.file, whole.offset + expert * whole.width, rows, width, width)

    def _plain(self, name: str) -> Raw:
        file, start, entry = self._tensors[name]
        self._read.add(name)
        begin, end = entry["data_offsets"]
        rows = entry["shape"][0] if entry["shape"] else 1
        width = (end - begin) // max(1, rows)
        return Raw(name, file, start + begin, rows, width, width)


# --- values -----------------------------------------------------------------------------------------------------------


def _e4m3(code: int) -> float:
    exponent, mantissa = code >> 3 & 15, code & 7
    if code & 127 == 127:
        return float("nan")
    size = mantissa * 2.0**-9 if exponent == 0 else (8 + mantissa) * 2.0 ** (exponent - 10)
    return -size if code & 128 else size


def _e2m1(code: int) -> float:
    exponent, mantissa = code >> 1 & 3, code & 1
    size = mantissa * 0.5 if exponent == 0 else (2 + mantissa) * 2.0 ** (exponent - 2)
    return -size if code & 8 else size


_E4M3 = np.array([_e4m3(code) for code in range(256)])
_E2M1 = np.array([[_e2m1(byte & 15), _e2m1(byte >> 4)] for byte in range(256)])
_TURNED = np.array([byte % 16 * 16 + byte // 16 for byte in range(256)], np.uint8)
_E8M0 = np.array([2.0 ** (byte - 127) for byte in range(255)] + [float("nan")])


def _values(codes: Bytes, scale: Bytes, encoding: str) -> Values:
    """The numbers that rows of codes stand for under their scales, f64 [rows, columns]."""
    values = _E2M1[codes].reshape(len(codes), -1) if encoding == "fp4_32" else _E4M3[codes]
    factors = _E8M0[scale]
    if encoding == "fp8_32x32":
        factors = np.repeat(factors, 32, axis=0)[: len(codes)]
    if values.shape[1] % 32 == 0:
        blocks: Values = values.reshape(len(codes), -1, 32) * factors[:, :, None]
        return blocks
    result: Values = values * np.repeat(factors, 32, axis=1)[:, : values.shape[1]]
    return result


def _is_fp4(header: TensorHeader, old: Checkpoint) -> bool:
    base = header.name.removesuffix(".weight")
    scaled = any(base + ending in old.tensors for ending in (".scale", ".weight_scale", ".weight_scale_inv"))
    return header.dtype in ("I8", "U8", "F4") and base != header.name and scaled
