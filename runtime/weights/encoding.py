"""Encodings by name: which one a file's dtype is for a role, and what shapes it stores weight and scale in.

The words are the manifest's: `f32`, `bf16`, `fp8_32x32`, `fp8_row32` (MXFP8), `fp4_32` (MXFP4). E4M3 data does not say
how its scales are laid out, so the role's declared encoding decides; shapes are then checked against it, never used to
guess.
"""

from __future__ import annotations

from collections.abc import Sequence

from dsv41c.kernels.encodings import ENCODINGS, Encoding
from dsv41c.runtime.manifest import WeightEntry

PLAIN = {"F32": "f32", "BF16": "bf16", "F16": "f16"}
PACKED_FP4 = ("I8", "U8", "F4")
SCALE_DTYPES = ("F8_E8M0", "U8")  # the second holds the same bytes, under a name that older readers know
BLOCK = 32


def encoding_of(dtype: str, entry: WeightEntry) -> str:
    """The encoding that a tensor of this dtype has in this role; the dtype itself, in lower case, if it is none."""
    if dtype in PLAIN:
        return PLAIN[dtype]
    if dtype in PACKED_FP4:
        return "fp4_32"
    if dtype == "F8_E4M3":
        if entry.stored.startswith("fp8_"):
            return entry.stored
        declared = [encoding for encoding in entry.accepted if encoding.startswith("fp8_")]
        return declared[0] if len(declared) == 1 else "fp8"
    return dtype.lower()


def accepted(entry: WeightEntry) -> tuple[str, ...]:
    """The encodings a role binds from, the declared one first."""
    return tuple(dict.fromkeys((entry.stored, *entry.accepted)))


def is_plain(encoding: str) -> bool:
    """Whether an encoding is a float type of its own, without a scale."""
    return encoding in PLAIN.values()


def weight_shape(encoding: str, dtype: str, shape: Sequence[int]) -> tuple[int, ...] | None:
    """The shape a header should give for a logical shape. None if the encoding cannot store it (odd FP4 rows)."""
    if encoding == "fp4_32":
        if not shape or shape[-1] % 2:
            return None
        return (*shape[:-1], shape[-1] if dtype == "F4" else shape[-1] // 2)
    return tuple(shape)


def scale_shape(encoding: str, shape: Sequence[int]) -> tuple[int, ...]:
    """The shape of the scale of a quantised tensor of a logical shape: [rows, columns] -> its grid of scales."""
    return ENCODINGS[encoding].scale_shape(shape)


def fitting(scale: Sequence[int], encoding: str, shape: Sequence[int]) -> list[str]:
    """What else codes of this width could be by the shape of their scale; the blocks of DeepSeek-V3 among them."""
    bits = ENCODINGS[encoding].bits
    known = {each.name: each for each in ENCODINGS.values() if each.block and each.bits == bits}
    older = {"128x128 blocks, which are not read here": Encoding("", bits, (128, 128))}
    return [name for name, each in {**known, **older}.items() if each.scale_shape(shape) == tuple(scale)]
