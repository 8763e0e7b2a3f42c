"""Tensors that hold several official ones, taken apart: each part is a header of its own, and no data is moved."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from dsv41c.kernels.encodings import ENCODINGS
from dsv41c.runtime.weights.names import split_prefix
from dsv41c.runtime.weights.shard import TensorHeader
from dsv41c.runtime.weights.variants import GATE_UP, Known, known

# Experts of one tensor, and parts of all: a header of a few bytes must not make millions of them.
MAX_EXPERTS = 1 << 16
MAX_PARTS = 1 << 19
_TABLE_ROWS = ENCODINGS["fp8_row32"]


class IndivisibleError(Exception):
    """A tensor cannot be what its name says it holds; the text says why."""


def parts(tensor: TensorHeader, declared: Mapping[str, str]) -> Iterator[TensorHeader]:
    """The official tensors that a stored one holds, by official name. Raises `IndivisibleError` (none given before)."""
    _, name = split_prefix(tensor.stored)
    what = known(name)
    if what is None:
        yield tensor if name == tensor.name else tensor._replace(name=name)
    elif what.transform == "same":
        yield tensor._replace(name=what.officials[0])
    elif what.transform == "side by side":
        yield from _codes_and_scales(tensor, what)
    else:
        yield from _divided(tensor, what, declared)


def together(headers: Sequence[TensorHeader]) -> TensorHeader | None:
    """Tensors of one shape as one with a new first dimension, where they follow each other in one file; else None."""
    first = headers[0]
    for place, header in enumerate(headers):
        alike = (header.file, header.dtype, header.shape) == (first.file, first.dtype, first.shape)
        if not alike or header.pitch or header.offset != first.offset + place * first.size:
            return None
    return first._replace(shape=(len(headers), *first.shape), size=len(headers) * first.size)


def _divided(tensor: TensorHeader, what: Known, declared: Mapping[str, str]) -> Iterator[TensorHeader]:
    stacked = what.transform.startswith("stacked")
    rank = 3 if stacked else 2
    if len(tensor.shape) != rank:
        raise IndivisibleError(f"has shape {list(tensor.shape)}, and {rank} dimensions are divided")
    count = tensor.shape[0] if stacked else 1
    if not 1 <= count <= MAX_EXPERTS:
        raise IndivisibleError(f"holds {count:,} experts; from 1 to {MAX_EXPERTS:,} are divided")
    rows, columns = tensor.shape[-2:]
    both = len(what.officials) == 2
    pieces = count * rows
    if pieces == 0 or tensor.size % pieces or (both and rows % 2):
        half = " in two halves" if both else ""
        raise IndivisibleError(f"has {rows} rows of {columns} {tensor.dtype} elements, which do not come apart{half}")
    # FP8 in blocks of 32 rows: a block that both matrices share would give one of them the other's scales.
    if both and tensor.dtype == "F8_E4M3" and rows // 2 % 32:
        raise IndivisibleError(f"has halves of {rows // 2} rows of FP8, and blocks of 32 rows may share a scale")
    order = declared.get(GATE_UP, "gate_up") if stacked or "w3" in what.officials[-1] else "gate_up"
    row = tensor.size // pieces
    for expert in range(count):
        whole = tensor._replace(shape=(rows, columns), size=row * rows, offset=tensor.offset + expert * row * rows)
        labels = [f"expert {expert}"] if stacked else []
        for place, official in enumerate(what.officials):
            part = _half(whole, place, order) if both else whole
            text = ", ".join([*labels, *([official.split(".")[-2]] if both else [])])
            yield part._replace(name=official.replace("{expert}", str(expert)), stored=f"{tensor.stored} ({text})")


def _half(whole: TensorHeader, place: int, order: str) -> TensorHeader:
    """The first matrix of two (gate) or the second (up)."""
    rows, columns = whole.shape
    row = whole.size // rows
    at = place if order.startswith("gate_up") else 1 - place
    half = whole._replace(shape=(rows // 2, columns), size=whole.size // 2)
    if order.endswith("_interleaved"):
        return half._replace(offset=whole.offset + at * row, pitch=2 * row)
    return half._replace(offset=whole.offset + at * half.size)


def _codes_and_scales(tensor: TensorHeader, what: Known) -> Iterator[TensorHeader]:
    """A table whose rows hold codes, then scales."""
    width = _TABLE_ROWS.columns(tensor.shape[-1]) if len(tensor.shape) == 2 else None
    if tensor.dtype not in ("U8", "I8") or not width:
        text = f"is {tensor.dtype} of shape {list(tensor.shape)}, expected U8 with rows of 33 bytes for 32 elements"
        raise IndivisibleError(text)
    rows, pitch = tensor.shape
    (official,) = what.officials
    codes, scale = official, official.removesuffix(".weight") + ".scale"
    yield tensor._replace(name=codes, dtype="F8_E4M3", shape=(rows, width), size=rows * width, pitch=pitch)
    yield tensor._replace(
        name=scale,
        dtype="F8_E8M0",
        shape=(rows, width // 32),
        offset=tensor.offset + width,
        size=rows * (width // 32),
        pitch=pitch,
        stored=f"{tensor.stored} (scales)",
    )
