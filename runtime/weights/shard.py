"""One safetensors file: its header, read by hand and believed only as far as the file bears it out.

Layout: 8 bytes little-endian header length, a JSON object {name: {dtype, shape, data_offsets}}, then the data, which
the tensors cover without overlap, hole or rest. The format's own reader demands the same. Nothing here reads data.
"""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TypeGuard

from dsv41c.diagnostics import Diagnostic, Span
from dsv41c.runtime.strict_json import NotJsonError, read_object
from dsv41c.runtime.weights.names import shown

MAX_HEADER_BYTES = 100_000_000  # the limit of the format's own reader
MAX_RANK = 16
MAX_DIMENSION = 1 << 62
LISTED = 8
_HELP = {
    "DSV701": "fetch the file again, or export it again",
    "DSV702": "export the tensor in an encoding of the spec's `weights` section, or as BF16 or F32",
    "DSV704": "fetch the file again, or export it again",
}

# Bits an element, by the format's dtype names. Six-bit floats are left out: nothing here could read them.
DTYPE_BITS = {
    **dict.fromkeys(("F4",), 4),
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 16),
    **dict.fromkeys(("U32", "I32", "F32"), 32),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 64),
}


class TensorHeader(NamedTuple):
    """What a header says of a tensor. `offset` and `size` are bytes in `file`, which is a plain name in the folder.

    `name` is the official name, `stored` the name in the file; they differ by prefix or spelling, and `stored` says
    which part it is where the file holds several in one. F4 shapes count elements, two a byte; packed I8 and U8 shapes
    count bytes. `pitch` is the bytes from one row to the next where rows of another tensor lie between; `size` counts
    the tensor's own.
    """

    name: str
    stored: str
    dtype: str
    shape: tuple[int, ...]
    file: str
    offset: int
    size: int
    pitch: int = 0

    @property
    def row(self) -> int:
        """Bytes of one row; all of them where rows follow each other."""
        return self.size // self.shape[0] if self.pitch and self.shape[0] else self.size

    @property
    def extent(self) -> int:
        """Bytes from the first of its own to the last."""
        return (self.shape[0] - 1) * self.pitch + self.row if self.pitch and self.size else self.size


class _Entry(NamedTuple):
    """A tensor as the header tells it, offsets still relative to the data."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(slots=True)
class Shard:
    """A file's tensors and findings. `readable` is false when the header could not be read at all.

    `damaged` are tensors that the header names but does not describe soundly; `metadata` is its `__metadata__`.
    """

    name: str
    size: int = 0
    readable: bool = False
    tensors: list[TensorHeader] = field(default_factory=list)
    damaged: set[str] = field(default_factory=set)
    findings: list[Diagnostic] = field(default_factory=list)
    metadata: dict[str, object] = field(default_factory=dict)

    def report(self, code: str, message: str, *facts: tuple[str, str], help: str | None = None) -> None:
        """Add a finding about this file."""
        self.findings.append(Diagnostic(code, message, Span(self.name), facts=facts, help=help))


class Broken(Exception):
    """A document cannot be read; the text says why."""


def read_json(data: bytes, what: str) -> dict[str, object]:
    """Foreign bytes as a JSON object; `what` they are. Raises `Broken` for anything else."""
    try:
        return read_object(data)
    except NotJsonError as error:
        raise Broken(f"{what} {error}") from None


def read_shard(folder: Path, name: str) -> Shard:
    """Read and check the header of a file. Every finding is in the result; nothing is raised."""
    shard = Shard(name)
    try:
        # A pipe or device would block or never end, so look before opening.
        if not stat.S_ISREG(os.stat(folder / name).st_mode):
            shard.report("DSV701", f"`{shown(name)}` is not a regular file", help="give the folder of a download")
            return shard
        with open(folder / name, "rb") as file:
            shard.size = os.fstat(file.fileno()).st_size
            start, document = _read_header(shard, file.read)
    except OSError as error:
        shard.report("DSV700", f"`{shown(name)}` cannot be read: {error.strerror}", help="let this user read it")
        return shard
    except Broken as error:
        shard.report("DSV701", str(error), help=_HELP["DSV701"])
        return shard
    if document is not None:
        shard.readable = True
        _check(shard, start, document)
    return shard


def _read_header(shard: Shard, read: Callable[[int], bytes]) -> tuple[int, dict[str, object] | None]:
    """Where the data starts, and the header; None when the file ends inside it (reported)."""
    head = read(8)
    length = int.from_bytes(head, "little")
    if len(head) == 8 and length > MAX_HEADER_BYTES:
        if head.isascii() and (start_of := head.decode().rstrip()).isprintable():
            what = "a page or the pointer of a clone without large files"
            raise Broken(f"`{shown(shard.name)}` begins with the text `{shown(start_of)}`, as {what} does")
        raise Broken(f"the header of `{shown(shard.name)}` claims {length:,} bytes; {MAX_HEADER_BYTES:,} are allowed")
    start = 8 + length if len(head) == 8 else 8
    if shard.size < start:
        shard.report(
            "DSV703",
            f"shard `{shown(shard.name)}`: header ends at byte {start}, file has {shard.size} "
            f"({start - shard.size} missing); none of its tensors can be located",
            help="fetch the file again",
        )
        return start, None
    return start, read_json(read(length), f"the header of `{shown(shard.name)}`")


def _check(shard: Shard, start: int, document: dict[str, object]) -> None:
    """Turn a header into tensors; report what is unsound, one finding a kind of fault."""
    entries: list[_Entry] = []
    faults: dict[str, list[tuple[str, str]]] = {}
    for name, raw in document.items():
        if name == "__metadata__":
            if isinstance(raw, dict) and all(isinstance(value, str) for value in raw.values()):
                shard.metadata = raw
            else:
                faults.setdefault("DSV701", []).append((name, "its `__metadata__` is not an object of texts"))
            continue
        entry = _entry(name, raw)
        if isinstance(entry, _Entry):
            entries.append(entry)
        else:
            faults.setdefault(entry[0], []).append((name, entry[1]))
            shard.damaged.add(name)
    available = shard.size - start
    entries.sort(key=lambda entry: (entry.begin, entry.end, entry.name))
    if not faults:  # otherwise a gap is where the unsound tensor lies
        _check_extents(shard, entries, available, faults)
    _check_truncation(shard, start, entries, available)
    for code, found in faults.items():
        more = f" (and {len(found) - 1:,} more)" if len(found) > 1 else ""
        facts = (("tensors", ", ".join(f"`{shown(name)}`" for name, _ in found[:LISTED])),) if len(found) > 1 else ()
        shard.report(code, f"shard `{shown(shard.name)}`: {found[0][1]}{more}", *facts, help=_HELP[code])
    shard.tensors.extend(
        TensorHeader(e.name, e.name, e.dtype, e.shape, shard.name, start + e.begin, e.end - e.begin)
        for e in entries
        if e.name not in shard.damaged
    )


def _entry(name: str, raw: object) -> _Entry | tuple[str, str]:
    """A header entry, or (code, what is wrong with it)."""
    label = f"tensor `{shown(name)}`"
    if not name or not name.isprintable() or len(name) > 1024:
        return "DSV701", f"{label} has a name that is empty, unprintable or endless"
    if not isinstance(raw, dict):
        return "DSV701", f"{label} is described by something other than an object"
    dtype, shape, offsets = raw.get("dtype"), raw.get("shape"), raw.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        return "DSV702", f"{label} has dtype `{shown(dtype)}`, which is unknown here"
    if not _naturals(shape) or len(shape) > MAX_RANK:
        return "DSV701", f"{label} has shape {shown(str(shape))}, which is not a list of whole numbers from 0"
    if not _naturals(offsets) or len(offsets) != 2 or offsets[1] < offsets[0]:
        return "DSV701", f"{label} has data_offsets {shown(str(offsets))}, which are not a begin and an end"
    bits = math.prod(shape) * DTYPE_BITS[dtype]
    begin, end = offsets
    if bits % 8 or bits // 8 != end - begin:
        need = f"{bits // 8:,}" if bits % 8 == 0 else f"{bits} bits, not whole bytes, where"
        return "DSV704", f"{label} {dtype}{list(shape)} needs {need} bytes, its offsets span {end - begin:,}"
    return _Entry(name, dtype, tuple(shape), begin, end)


def _naturals(value: object) -> TypeGuard[list[int]]:
    """Whether a JSON value is a list of whole numbers >= 0 of believable size."""
    return isinstance(value, list) and all(type(item) is int and 0 <= item <= MAX_DIMENSION for item in value)


def _check_extents(
    shard: Shard, entries: list[_Entry], available: int, faults: dict[str, list[tuple[str, str]]]
) -> None:
    """The tensors, by offset, follow each other without overlap or hole, and the last one ends the file."""
    end, last = 0, ""
    for entry in entries:
        if entry.begin < end:
            text = f"tensor `{entry.name}` overlaps `{last}` ({end - entry.begin:,} bytes)"
        elif entry.begin > end:
            text = f"{entry.begin - end:,} bytes before tensor `{entry.name}` belong to no tensor"
        else:
            text = ""
        if text:
            faults.setdefault("DSV704", []).append((entry.name, text))
            shard.damaged.add(entry.name)
        if entry.end >= end:
            end, last = entry.end, entry.name
    if available > end:
        faults.setdefault("DSV704", []).append(
            (last, f"{available - end:,} bytes after the last tensor belong to none")
        )


def _check_truncation(shard: Shard, start: int, entries: list[_Entry], available: int) -> None:
    """Report a file that ends before its tensors do, and take those it cuts off."""
    cut = [entry for entry in entries if entry.end > available]
    if not cut:
        return
    need = max(entry.end for entry in cut)
    shard.damaged.update(entry.name for entry in cut)
    shard.report(
        "DSV703",
        f"shard `{shown(shard.name)}`: header says {start + need} bytes, file has {shard.size} "
        f"({need - available} missing); first tensor affected: `{cut[0].name}`",
        ("tensors affected", f"{len(cut):,}"),
        help="fetch the file again",
    )
