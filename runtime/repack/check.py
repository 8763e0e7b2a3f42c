"""Whether a repacked checkpoint holds the same values: both sides decoded in another way than elsewhere.

The new files are parsed and addressed here by hand, and codes are looked up in tables that are worked out here, so that
a fault in how layouts are read, written or decoded does not hide itself.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

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
    """A tensor of the new files: bytes [rows, bytes of a row], `pitch` apart, mapped."""

    name: str
    data: Bytes


def compare(
    old: Checkpoint, matching: Matching, new: Path, swapped: bool, tell: Callable[[int], None] = lambda done: None
) -> int:
    """How many elements were compared: all. Raises UserFault (DSV756) at the first that differs.

    `swapped` says that the old side's FP4 codes have the high nibble first.
    """
    stored = {item.tensor.name: item for binding in matching.bindings for item in binding.stored}
    scales = {item.scale.name for item in stored.values() if item.scale is not None}
    found = _New(new)
    elements = done = 0
    with Sources(old) as sources:
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
    if fresh.data.shape != (rows, width):
        raise _differs(header, fresh, f"has rows {list(fresh.data.shape)} of bytes, not {[rows, width]}")
    step = max(1, PIECE // max(1, width) // 32) * 32  # whole blocks of 32 rows
    for first in range(0, rows if width else 0, step):
        count = min(step, rows - first)
        left = sources.rows(header, first, count)
        if turned:
            left = _TURNED[left]
        right = fresh.data[first : first + count]
        elements = count * math.prod(header.shape[1:])
        if scale is None:
            same = np.array_equal(left, right)
        else:
            tall = 32 if encoding == "fp8_32x32" else 1
            low, high = first // tall, -(-(first + count) // tall)
            grids = sources.rows(scale[0], low, high - low), scale[1].data[low:high]
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
    """The files of a folder as its index lists them, each mapped."""

    def __init__(self, folder: Path) -> None:
        index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
        self._order = str(index["metadata"].get("dsv41c.gate_up", "gate_up"))
        self._tensors: dict[str, tuple[Path, int, Mapping[str, Any]]] = {}
        self._read: set[str] = set()
        self._mapped: dict[Path, Bytes] = {}
        for name in sorted(set(index["weight_map"].values())):
            with open(folder / name, "rb") as file:
                length = int.from_bytes(file.read(8), "little")
                entries = json.loads(file.read(length))
            for tensor, entry in entries.items():
                if tensor != "__metadata__":
                    self._tensors[tensor] = (folder / name, 8 + length, entry)

    def expect_all_read(self) -> None:
        """Raise UserFault where the new files have a tensor that no old one is the same as."""
        rest = sorted(self._tensors.keys() - self._read)
        if rest:
            text = f"tensor `{rest[0]}` of the result was made of nothing"
            raise UserFault([Diagnostic("DSV756", text, help="the program is at fault, and nothing was kept")])

    def tensor(self, name: str) -> Raw:
        """The bytes that an official tensor has in the new files."""
        found = _EXPERT.fullmatch(name)
        if name in self._tensors:
            return Raw(name, self._rows(name))
        if found:
            place, expert, matrix, part = found[1], int(found[2]), found[3], found[4]
            if f"{place}{matrix}.{part}" in self._tensors:
                return Raw(name, self._expert(f"{place}{matrix}.{part}", expert))
            both = self._expert(f"{place}gate_up_proj.{part}", expert)
            up = int(matrix == "w3")
            half = len(both) // 2
            return Raw(name, both[up::2] if self._order == "gate_up_interleaved" else both[up * half :][:half])
        base, _, part = name.rpartition(".")
        table = self._rows(f"{base}.rows")
        width = table.shape[1] // 33 * 32
        return Raw(name, table[:, :width] if part == "weight" else table[:, width:])

    def _expert(self, name: str, expert: int) -> Bytes:
        data = self._rows(name)  # of three dimensions: a row is an expert
        count = self._tensors[name][2]["shape"][1]
        rows: Bytes = data[expert].reshape(count, -1)
        return rows

    def _rows(self, name: str) -> Bytes:
        """All bytes of a tensor, [first dimension, the rest]."""
        path, start, entry = self._tensors[name]
        self._read.add(name)
        if path not in self._mapped:
            self._mapped[path] = np.memmap(path, np.uint8, "r")
        begin, end = entry["data_offsets"]
        rows = entry["shape"][0] if entry["shape"] else 1
        return self._mapped[path][start + begin : start + end].reshape(rows, (end - begin) // max(1, rows))


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
    tall = 32 if encoding == "fp8_32x32" else 1
    factors = np.repeat(np.repeat(_E8M0[scale], tall, axis=0)[: len(codes)], 32, axis=1)[:, : values.shape[1]]
    result: Values = values * factors
    return result


def _is_fp4(header: TensorHeader, old: Checkpoint) -> bool:
    base = header.name.removesuffix(".weight")
    scaled = any(base + ending in old.tensors for ending in (".scale", ".weight_scale", ".weight_scale_inv"))
    return header.dtype in ("I8", "U8", "F4") and base != header.name and scaled
