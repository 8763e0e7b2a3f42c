"""How tensors are stored, as plain data: bits an element, and the block that one scale byte stands for.

The words are the manifest's. Checkpoints store weights so, and `kv_cache: packed` the rows of session caches. Scales of
the released checkpoint are E8M0, a byte each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from types import MappingProxyType
from typing import Literal


@dataclass(frozen=True, slots=True)
class Encoding:
    """`block` is the rows and columns of the elements under one scale; None for plain floats, which have no scale.

    `scale` is the number format of scales.
    """

    name: str
    bits: int
    block: tuple[int, int] | None = None
    scale: Literal["e8m0", "e4m3"] = "e8m0"

    def scale_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The grid of scales of a tensor [..., rows, columns]; empty for plain floats."""
        if self.block is None:
            return ()
        *rows, columns = shape
        if rows:
            rows[-1] = -(-rows[-1] // self.block[0])
        return (*rows, -(-columns // self.block[1]))

    def bytes(self, shape: Sequence[int]) -> int:
        """Bytes of a tensor of a logical shape, scales included."""
        scales = prod(self.scale_shape(shape)) if self.block else 0
        return prod(shape) * self.bits // 8 + scales

    def columns(self, row_bytes: int) -> int | None:
        """Elements in a row of so many bytes, scales included; None where that is no whole number of blocks."""
        width = self.block[1] if self.block else 1
        unit = self.bytes((width,))
        return None if row_bytes % unit else row_bytes // unit * width


ENCODINGS: Mapping[str, Encoding] = MappingProxyType(
    {
        encoding.name: encoding
        for encoding in (
            Encoding("f32", 32),
            Encoding("bf16", 16),
            Encoding("f16", 16),
            Encoding("fp8_32x32", 8, (32, 32)),
            Encoding("fp8_row32", 8, (1, 32)),
            Encoding("fp4_32", 4, (1, 32)),
        )
    }
)
BLOCKED = tuple(name for name, encoding in ENCODINGS.items() if encoding.block)
# The floats that bind to any role whose values they hold exactly: what a re-export of a checkpoint stores.
PLAIN_ENCODINGS = ("bf16", "f32")
# How `kv_cache: packed` stores a row of a session cache, by state kind: the codes, then their scales.
CACHE_ROWS: Mapping[str, Encoding] = MappingProxyType(
    {
        "window_kv": ENCODINGS["fp8_row32"],
        "compress_kv": Encoding("fp4_16", 4, (1, 16), "e4m3"),
        "index_k": ENCODINGS["fp4_32"],
    }
)
