"""How a checkpoint may store a tensor, as plain data: bits an element, and the block that one scale byte stands for.

The words are the manifest's. Scales of the released checkpoint are E8M0, a byte each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Encoding:
    """`block` is the rows and columns of the elements under one scale; None for plain floats, which have no scale."""

    name: str
    bits: int
    block: tuple[int, int] | None = None

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
# The floats that bind to any role whose values they hold exactly: what a re-export of a checkpoint stores.
PLAIN_ENCODINGS = ("bf16", "f32")
