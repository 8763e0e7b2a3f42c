"""One GGUF file: its header, read by hand and believed only as far as the file bears it out. Nothing here reads data.

Layout, little-endian: `GGUF`, version u32, numbers of tensors and of keys u64; the keys, each a string, a type and a
value; the tensors, each a string, dimensions (fastest first), a type and an offset; then, aligned, the data. Tensors
follow each other in it with no more between them than alignment asks for.

The `gguf` package reads the same, and trusts what it reads: counts decide what it allocates.
"""

from __future__ import annotations

import os
import stat
import struct
import sys
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, NamedTuple

from dsv41c.diagnostics import Diagnostic, Span
from dsv41c.runtime.weights.gguf.types import FIRST_PRIVATE, TYPES, GgmlType
from dsv41c.runtime.weights.names import shown
from dsv41c.runtime.weights.shard import LISTED

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_HEADER_BYTES = 100_000_000
MAX_KEYS = 1 << 16
MAX_TENSORS = 1 << 20
MAX_NAME = 1024
MAX_RANK = 4
MAX_ELEMENTS = 1 << 50
MAX_ALIGNMENT = 1 << 16
DEFAULT_ALIGNMENT = 32

STRING, ARRAY, BOOL = 8, 9, 7
# Scalars by their number: name, form in a struct, form of an array of them.
SCALARS: Mapping[int, tuple[str, str]] = {
    0: ("u8", "B"),
    1: ("i8", "b"),
    2: ("u16", "H"),
    3: ("i16", "h"),
    4: ("u32", "I"),
    5: ("i32", "i"),
    6: ("f32", "f"),
    BOOL: ("bool", "B"),
    10: ("u64", "Q"),
    11: ("i64", "q"),
    12: ("f64", "d"),
}
_HELP = "fetch the file again, or export it again"


class Value(NamedTuple):
    """What a key holds. `kind` is a scalar's (`u32`, `f32`, `string`, ...), of an array that of its elements."""

    kind: str
    is_array: bool
    data: int | float | bool | str | array[int] | array[float] | tuple[str, ...]


class RawTensor(NamedTuple):
    """A tensor as the header tells it: dimensions fastest first, `offset` in bytes from the start of the file."""

    name: str
    dims: tuple[int, ...]
    type: GgmlType
    file: str
    offset: int
    size: int


@dataclass(slots=True)
class GgufFile:
    """A file's keys, tensors and findings. `readable` is false when the header could not be read at all.

    `damaged` are tensors that the header names but does not describe soundly.
    """

    name: str
    size: int = 0
    readable: bool = False
    keys: dict[str, Value] = field(default_factory=dict)
    tensors: list[RawTensor] = field(default_factory=list)
    damaged: set[str] = field(default_factory=set)
    findings: list[Diagnostic] = field(default_factory=list)

    def report(self, code: str, message: str, *facts: tuple[str, str], help: str = _HELP) -> None:
        """Add a finding about this file."""
        self.findings.append(Diagnostic(code, message, Span(self.name), facts=facts, help=help))


class _Broken(Exception):
    """The header cannot be read on; the text says why."""


class _Short(Exception):
    """The file ends inside the header."""


@dataclass(slots=True)
class _Cursor:
    """Reads a header from its front; what it says never makes it read or allocate more than the file has."""

    file: BinaryIO
    size: int
    at: int = 0

    def take(self, count: int, what: str) -> bytes:
        """So many bytes. Raises `_Broken` beyond what a header may have, `_Short` beyond the file's end."""
        if self.at + count > MAX_HEADER_BYTES:
            raise _Broken(f"byte {self.at:,}: {what} of {count:,} bytes; {MAX_HEADER_BYTES:,} are allowed in all")
        data = self.file.read(count) if self.at + count <= self.size else b""
        if len(data) < count:
            raise _Short(
                f"{what} at byte {self.at:,} takes {count:,} bytes, and {max(0, self.size - self.at):,} follow"
            )
        self.at += count
        return data

    def number(self, form: str, what: str) -> int:
        """An unsigned number: `I` of 4 bytes, `Q` of 8."""
        return int.from_bytes(self.take(struct.calcsize("<" + form), what), "little")

    def text(self, what: str, most: int = MAX_HEADER_BYTES) -> str:
        """A string. Raises `_Broken` for what is no UTF-8 or longer than `most` bytes."""
        at = self.at
        length = self.number("Q", f"the length of {what}")
        if length > most:
            raise _Broken(f"byte {at:,}: {what} claims {length:,} bytes; {most:,} are allowed")
        try:
            return self.take(length, what).decode()
        except UnicodeDecodeError:
            raise _Broken(f"byte {at:,}: {what} is not UTF-8") from None


def read_file(folder: Path, name: str) -> GgufFile:
    """Read and check the header of a file. Every finding is in the result; nothing is raised."""
    found = GgufFile(name)
    try:
        # A pipe or device would block or never end, so look before opening.
        if not stat.S_ISREG(os.stat(folder / name).st_mode):
            found.report("DSV760", f"`{shown(name)}` is not a regular file", help="give the file of a download")
            return found
        with open(folder / name, "rb") as file:
            found.size = os.fstat(file.fileno()).st_size
            _read(found, _Cursor(file, found.size))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        found.report("DSV700", f"`{shown(name)}` cannot be read: {reason}", help="let this user read it")
    except _Short as error:
        text = f"`{shown(name)}` ends inside its header: {error}; none of its tensors can be located"
        found.report("DSV703", text, help="fetch the file again")
    except _Broken as error:
        found.report("DSV760", f"`{shown(name)}`, {error}")
    return found


def _read(found: GgufFile, cursor: _Cursor) -> None:
    magic = cursor.take(4, "the magic number")
    if magic != MAGIC:
        raise _Broken(f"byte 0: begins with {magic!r}, not with {MAGIC!r}")
    version = cursor.number("I", "the version")
    if version not in VERSIONS:
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
        what = f"{swapped} in big-endian order" if swapped in VERSIONS else str(version)
        raise _Broken(f"byte 4: is GGUF version {what}; read are {' and '.join(map(str, VERSIONS))}, little-endian")
    tensors, keys = cursor.number("Q", "the number of tensors"), cursor.number("Q", "the number of keys")
    for count, most, what in ((tensors, MAX_TENSORS, "tensors"), (keys, MAX_KEYS, "keys")):
        if count > most:
            raise _Broken(f"byte 8: claims {count:,} {what}; {most:,} are allowed")
    for _ in range(keys):
        at, key = cursor.at, cursor.text("the name of a key", MAX_NAME)
        if key in found.keys or not key.isprintable() or not key:
            what = "is there twice" if key in found.keys else "is empty or unprintable"
            raise _Broken(f"byte {at:,}: key `{shown(key)}` {what}")
        found.keys[key] = _value(cursor, key)
    raw = [_tensor_entry(cursor) for _ in range(tensors)]
    found.readable = True
    _place(found, cursor.at, raw)


def _value(cursor: _Cursor, key: str) -> Value:
    at, what = cursor.at, f"key `{shown(key)}`"
    kind = cursor.number("I", f"the type of {what}")
    if kind == STRING:
        return Value("string", False, cursor.text(what))
    if kind in SCALARS:
        name, form = SCALARS[kind]
        (scalar,) = struct.unpack("<" + form, cursor.take(struct.calcsize("<" + form), what))
        return Value(name, False, bool(scalar) if kind == BOOL else scalar)
    if kind != ARRAY:
        raise _Broken(f"byte {at:,}: {what} has type {kind}, which the format does not have")
    at = cursor.at
    kind, count = cursor.number("I", f"the type of {what}"), cursor.number("Q", f"the length of {what}")
    if kind == STRING:
        if count > (cursor.size - cursor.at) // 8:  # no string takes less
            raise _Short(
                f"{what} at byte {at:,} claims {count:,} strings, and {cursor.size - cursor.at:,} bytes follow"
            )
        return Value("string", True, tuple(cursor.text(f"an element of {what}") for _ in range(count)))
    if kind not in SCALARS:
        raise _Broken(f"byte {at:,}: {what} is an array of type {kind}; arrays hold numbers or strings")
    name, form = SCALARS[kind]
    items = array(form)
    if items.itemsize != struct.calcsize("<" + form):  # no platform that torch runs on
        raise _Broken(f"byte {at:,}: {what} has elements that this machine has in another size")
    items.frombytes(cursor.take(count * items.itemsize, what))
    if sys.byteorder == "big":
        items.byteswap()
    return Value(name, True, items)


class _Entry(NamedTuple):
    name: str
    dims: tuple[int, ...]
    type: int
    offset: int
    at: int


def _tensor_entry(cursor: _Cursor) -> _Entry:
    at, name = cursor.at, cursor.text("the name of a tensor", MAX_NAME)
    what = f"tensor `{shown(name)}`"
    if not name or not name.isprintable():
        raise _Broken(f"byte {at:,}: {what} has a name that is empty or unprintable")
    rank = cursor.number("I", f"the number of dimensions of {what}")
    if not 1 <= rank <= MAX_RANK:
        raise _Broken(f"byte {at:,}: {what} has {rank:,} dimensions; 1 to {MAX_RANK} are allowed")
    dims = struct.unpack(f"<{rank}Q", cursor.take(8 * rank, f"the dimensions of {what}"))
    return _Entry(
        name, dims, cursor.number("I", f"the type of {what}"), cursor.number("Q", f"the offset of {what}"), at
    )


def _alignment(found: GgufFile) -> int | None:
    value = found.keys.get("general.alignment")
    if value is None:
        return DEFAULT_ALIGNMENT
    number = value.data
    if type(number) is int and 0 < number <= MAX_ALIGNMENT and number & (number - 1) == 0:
        return number
    given = "an array" if value.is_array else str(number)
    found.report("DSV760", f"`{shown(found.name)}`: `general.alignment` is {shown(given)}, which is no power of two")
    return None


def _place(found: GgufFile, end: int, raw: list[_Entry]) -> None:
    """Turn entries into tensors; report what is unsound, one finding a kind of fault."""
    alignment = _alignment(found)
    if alignment is None:
        found.readable = False
        return
    start = -(-end // alignment) * alignment
    faults: dict[str, list[tuple[str, str]]] = {}
    tensors: list[RawTensor] = []
    names: set[str] = set()
    for entry in raw:
        tensor = _tensor(entry, start, alignment, found.name)
        if entry.name in names:
            tensor = ("DSV709", f"byte {entry.at:,}: tensor `{shown(entry.name)}` is there twice")
        names.add(entry.name)
        if isinstance(tensor, RawTensor):
            tensors.append(tensor)
        else:
            faults.setdefault(tensor[0], []).append((entry.name, tensor[1]))
            found.damaged.add(entry.name)
    tensors.sort(key=lambda tensor: (tensor.offset, tensor.size, tensor.name))
    _check_extents(found, tensors, start, alignment, faults)
    _check_truncation(found, tensors)
    for code, wrong in faults.items():
        more = f" (and {len(wrong) - 1:,} more)" if len(wrong) > 1 else ""
        facts = (("tensors", ", ".join(f"`{shown(name)}`" for name, _ in wrong[:LISTED])),) if more else ()
        help_text = _HELP_TYPE if code == "DSV763" else _HELP
        found.report(code, f"`{shown(found.name)}`, {wrong[0][1]}{more}", *facts, help=help_text)
    found.tensors = [tensor for tensor in tensors if tensor.name not in found.damaged]


_HELP_TYPE = "export the tensor as F32, F16, BF16, Q8_0 or MXFP4"


def _tensor(entry: _Entry, start: int, alignment: int, file: str) -> RawTensor | tuple[str, str]:
    """A tensor, or (code, what is wrong with it)."""
    label = f"byte {entry.at:,}: tensor `{shown(entry.name)}`"
    kind = TYPES.get(entry.type)
    if kind is None:
        why = "which forks use for formats of their own" if entry.type >= FIRST_PRIVATE else "which is unknown here"
        return "DSV763", f"{label} has type {entry.type}, {why}"
    elements = 1
    for dim in entry.dims:
        elements *= dim
        if not 0 < dim <= MAX_ELEMENTS or elements > MAX_ELEMENTS:
            return "DSV704", f"{label} has dimensions {list(entry.dims)}, which no file holds"
    if entry.dims[0] % kind.block:
        return (
            "DSV704",
            f"{label} has rows of {entry.dims[0]:,} elements, and {kind.name} stores {kind.block} at a time",
        )
    if entry.offset % alignment:
        return "DSV704", f"{label} has offset {entry.offset:,}, which is no multiple of {alignment}"
    size = elements // kind.block * kind.bytes
    return RawTensor(entry.name, entry.dims, kind, file, start + entry.offset, size)


def _check_extents(
    found: GgufFile, tensors: list[RawTensor], start: int, alignment: int, faults: dict[str, list[tuple[str, str]]]
) -> None:
    """The tensors, by offset, follow each other without overlap or hole, and the last one ends the file.

    Where others are unsound already, holes are where these lie.
    """
    end, last, holes = start, "", not faults
    for tensor in tensors:
        expected = -(-end // alignment) * alignment
        if tensor.offset < end:
            text = f"tensor `{shown(tensor.name)}` overlaps `{shown(last)}` ({end - tensor.offset:,} bytes)"
        elif tensor.offset != expected and holes:
            text = f"{tensor.offset - expected:,} bytes before tensor `{shown(tensor.name)}` belong to no tensor"
        else:
            text = ""
        if text:
            faults.setdefault("DSV704", []).append((tensor.name, f"byte {tensor.offset:,}: {text}"))
            found.damaged.add(tensor.name)
        if tensor.offset + tensor.size >= end:
            end, last = tensor.offset + tensor.size, tensor.name
    if tensors and holes and found.size > -(-end // alignment) * alignment:
        text = f"byte {end:,}: {found.size - end:,} bytes after the last tensor belong to none"
        faults.setdefault("DSV704", []).append((last, text))


def _check_truncation(found: GgufFile, tensors: list[RawTensor]) -> None:
    """Report a file that ends before its tensors do, and take those it cuts off."""
    cut = [tensor for tensor in tensors if tensor.offset + tensor.size > found.size]
    if not cut:
        return
    need = max(tensor.offset + tensor.size for tensor in cut)
    found.damaged.update(tensor.name for tensor in cut)
    found.report(
        "DSV703",
        f"`{shown(found.name)}`: header says {need} bytes, file has {found.size} "
        f"({need - found.size} missing); first tensor affected: `{shown(cut[0].name)}`",
        ("tensors affected", f"{len(cut):,}"),
        help="fetch the file again",
    )
