"""What host code of the kernels shares: shapes of tiles by the widths of a matrix, counters, and what is supported."""

from __future__ import annotations

import os
from functools import cache
from typing import Any, NamedTuple

import torch
import triton.language as tl
from torch import Tensor

from dsv41c.kernels.reference.encodings import Packed, Stacked

COUNTERS = 4096


class Tile(NamedTuple):
    """How a program walks rows: `rows` of them, `units` of a row at a time, `unroll` such steps at once."""

    rows: int
    units: int
    unroll: int
    warps: int = 1


def _batched(warps: int, unroll: int) -> Tile:
    """16 rows for several vectors; each warp takes four units at a time, and the loads of `unroll` steps ahead."""
    return Tile(16, 4 * warps, unroll, warps)


VECTORS = 8  # that a program takes along, where there are several

# Tiles by the columns of a matrix, as measured on an H200, every row from memory.
_TILES8 = {
    1152: Tile(4, 8, 9),
    1280: Tile(2, 16, 5),
    2304: Tile(2, 16, 9),
    4096: Tile(1, 32, 8),
    5120: Tile(1, 32, 10),
    8192: Tile(1, 32, 16),
}
_BATCHED8 = {
    1152: _batched(1, 4),
    1280: _batched(1, 4),
    2304: _batched(1, 4),
    4096: _batched(4, 4),
    5120: _batched(8, 2),
    6144: _batched(2, 2),
    8192: _batched(4, 4),
}
_TILES4 = {5120: Tile(1, 32, 5), 6912: Tile(1, 32, 7), 13824: Tile(1, 32, 14)}


# For one vector, launches that do best with another one: wo_b of one of two shards; w1 and w3 beside the router.
_TILES8_OF = {("wo_b", 4096): Tile(2, 16, 16), ("route", 5120): Tile(2, 32, 5, 2)}


def tile8(columns: int, *counts: int, tokens: int = 1, warps: int = 32, launch: str = "") -> Tile:
    """The tile of an E4M3 matrix by its columns; as many rows as divide every one of `counts`, rows of a launch.

    For several tokens to a program it has at most `warps`. `launch` is one that may have a tile of its own.
    """
    if tokens == 1:
        return _fitting(_TILES8_OF.get((launch, columns), _TILES8.get(columns)), columns // 16, counts)
    steps = -(-columns // 64)
    known = _BATCHED8.get(columns, _batched(min(8, _power(steps)), 1 + (steps > 8)))
    return _fitting(_batched(min(warps, known.warps), known.unroll), 0, counts)


def tile4(columns: int, *counts: int) -> Tile:
    """The tile of an E2M1 matrix, as `tile8`; its units are groups of 32 columns."""
    return _fitting(_TILES4.get(columns), columns // 32, counts)


def _fitting(tile: Tile | None, units: int, counts: tuple[int, ...]) -> Tile:
    """A tile with rows that divide the counts; one for short rows where none is given."""
    if tile is None:
        tile = Tile(max(1, min(32, _power(128 // units))), min(32, _power(units)), 2)
    return tile._replace(rows=min([tile.rows, *(count & -count for count in counts)]))


def _power(number: int) -> int:
    """The power of two from a number on."""
    return 1 << (number - 1).bit_length()


def power(number: int) -> int:
    """The power of two from a number above 0 on."""
    return _power(number)


def token_block(batch: int) -> int:
    """How many vectors a program takes along: the largest power of two up to 8 that divides the batch."""
    return min(8, batch & -batch)


def vector_block(batch: int) -> int:
    """How many vectors a program of an E4M3 matrix takes along: 1, or for several VECTORS, the last one repeated."""
    return 1 if batch == 1 else VECTORS


@cache
def counters(device: torch.device) -> Tensor:
    """int32 [COUNTERS] zeros, which kernels leave as zeros. Kept, since captured graphs hold its address."""
    return torch.zeros(COUNTERS, dtype=torch.int32, device=device)


@cache
def assembly(device: torch.device) -> bool:
    """Whether kernels may use NVIDIA's conversions of E4M3 pairs: sm_89 and later, not in the interpreter."""
    if os.environ.get("TRITON_INTERPRET") == "1" or device.type != "cuda" or torch.version.cuda is None:
        return False
    return torch.cuda.get_device_capability(device) >= (8, 9)


def words(codes: Tensor) -> Tensor:
    """One-byte codes as int32 words, four codes each; the same memory."""
    return codes.view(torch.int32)


def scales(weight: Packed | Stacked) -> Tensor:
    """The scales of a quantised weight as bytes; the same memory."""
    return weight.scale.view(torch.uint8)


def language_type(dtype: torch.dtype) -> Any:
    """Triton's name of bf16 or f32."""
    return {torch.bfloat16: tl.bfloat16, torch.float32: tl.float32}[dtype]


def is_fp8(*weights: object) -> bool:
    """Whether all are packed E4M3 matrices with scales per 32x32, with whole scale blocks along a row."""
    return all(
        isinstance(weight, Packed) and weight.encoding == "fp8_32x32" and weight.codes.shape[-1] % 32 == 0
        for weight in weights
    )


def is_fp4(*weights: object) -> bool:
    """Whether all are stacked experts of packed E2M1."""
    return all(isinstance(weight, Stacked) and weight.encoding == "fp4_32" for weight in weights)
