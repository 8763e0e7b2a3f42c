"""Engram tables of GGUF files: one tensor a layer or one of all layers, in blocks of GGUF types or as raw FP8 rows.

Raw rows are I8: E4M3 codes and the E8M0 scales of 32 of them each, either both in every row, or the scales in a tensor
beside. Both are told as the release's own encoding, and read as that.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate

from dsv41c.diagnostics import Diagnostic, Span
from dsv41c.runtime.weights.gguf.facts import GgufFacts
from dsv41c.runtime.weights.gguf.families import PREFIX, TABLE, TABLE_SCALE
from dsv41c.runtime.weights.gguf.header import RawTensor, Value
from dsv41c.runtime.weights.gguf.tensor import GgufHeader
from dsv41c.runtime.weights.gguf.types import TYPES
from dsv41c.runtime.weights.names import shown
from dsv41c.runtime.weights.shard import TensorHeader

BLOCK = 32
UNREAD = frozenset(kind.name for kind in TYPES.values() if not kind.read)
_HELP = "use a file whose tables are in MXFP4, Q8_0 or BF16, or in rows that a key describes"

Found = tuple[list[TensorHeader], list[Diagnostic]]


def is_scale(rest: str) -> bool:
    """Whether a tensor's name, after `blk.N.`, says that it scales another."""
    return rest.endswith(
        (".scale", ".input_scale", "_scale", "_scale.weight", "_scales.weight")
    ) and not rest.startswith("hc_")


def table(tensor: RawTensor, front: str, scales: list[RawTensor], keys: Mapping[str, Value]) -> Found:
    """The table of one layer; `front` is `layers.N.`, `scales` all tensors of the layer that scale something."""
    if len(tensor.dims) != 2:
        return [], [_refused(tensor, f"has dimensions {list(tensor.dims)}, expected a width and rows")]
    width, rows = tensor.dims
    if tensor.type.name != "I8":
        return [_plain(tensor, front, (rows, width))], []
    encoding = keys.get(PREFIX + "engram.encoding")
    if encoding is not None:
        if width % (BLOCK + 1) or encoding.data != f"e4m3_e8m0_{BLOCK}_row{width}":
            given = shown(encoding.data) if isinstance(encoding.data, str) else "no text"
            return [], [
                _refused(tensor, f"is I8 in rows of {width}, which `engram.encoding`, `{given}`, does not describe")
            ]
        return _rows(tensor, front), []
    beside = [scale for scale in scales if scale.type.name == "I8" and ".engram_emb" in scale.name]
    if len(beside) == 1 and width % BLOCK == 0 and beside[0].dims == (width // BLOCK, rows):
        (scale,) = beside
        return [
            TensorHeader(front + TABLE, tensor.name, "F8_E4M3", (rows, width), tensor.file, tensor.offset, tensor.size),
            TensorHeader(
                front + TABLE_SCALE, scale.name, "F8_E8M0", (rows, width // BLOCK), scale.file, scale.offset, scale.size
            ),
        ], []
    beside_it = "; ".join(f"`{shown(scale.name)}` {list(scale.dims)}" for scale in beside) or "none"
    text = f"is I8 in rows of {width} without a key that describes them, and scales beside it: {beside_it}"
    return [], [_refused(tensor, text)]


def sliced(tensor: RawTensor, facts: GgufFacts) -> Found:
    """The tables of all layers out of one tensor, by the buckets of each layer."""
    primes, layers = facts.integers("primes"), facts.engram_layers
    if primes is None or not layers or len(primes) % len(layers):
        return [], []  # told with the other constants
    width = len(primes) // len(layers)
    counts = [sum(primes[place * width : (place + 1) * width]) for place in range(len(layers))]
    if len(tensor.dims) != 2 or tensor.dims[1] != sum(counts):
        text = f"has dimensions {list(tensor.dims)}, and the buckets of layers {list(layers)} take {sum(counts):,} rows"
        return [], [_refused(tensor, text)]
    row = tensor.size // tensor.dims[1]
    found: list[TensorHeader] = []
    for layer, count, start in zip(layers, counts, accumulate(counts[:-1], initial=0), strict=True):
        part = tensor._replace(
            name=f"{tensor.name}[{start}:{start + count}]",
            dims=(tensor.dims[0], count),
            offset=tensor.offset + start * row,
            size=count * row,
        )
        headers, wrong = table(part, f"layers.{layer}.", [], facts.keys)
        if wrong:
            return [], wrong
        found += headers
    return found, []


def _plain(tensor: RawTensor, front: str, shape: tuple[int, int]) -> TensorHeader:
    kind = TensorHeader if tensor.type.name in ("F32", "BF16") else GgufHeader
    return kind(front + TABLE, tensor.name, tensor.type.name, shape, tensor.file, tensor.offset, tensor.size)


def _rows(tensor: RawTensor, front: str) -> list[TensorHeader]:
    """Codes and scales that lie in one row: views of the same bytes, a row apart."""
    pitch, rows = tensor.dims
    width = pitch // (BLOCK + 1) * BLOCK
    codes, scales = (rows, width), (rows, pitch - width)
    return [
        TensorHeader(front + TABLE, tensor.name, "F8_E4M3", codes, tensor.file, tensor.offset, rows * width, pitch),
        TensorHeader(
            front + TABLE_SCALE,
            tensor.name + "[scales]",
            "F8_E8M0",
            scales,
            tensor.file,
            tensor.offset + width,
            rows * (pitch - width),
            pitch,
        ),
    ]


def _refused(tensor: RawTensor, text: str) -> Diagnostic:
    return Diagnostic("DSV766", f"engram table `{shown(tensor.name)}` {text}", Span(tensor.file), help=_HELP)
