"""Rows of session caches: floats, or with `kv_cache: packed` the bytes that say the same values.

A packed row is uint8 [bytes]: the codes of its channels, then their scales, as `CACHE_ROWS` lists by state kind.
Reading one gives, bit for bit, what `kv_cache: reference` holds, signs of zeros and infinities too. NaN is not hidden:
a block of 16 or 32 channels with FP4 codes, which have none, reads as NaN as a whole. Bytes of 255 are NaN in every
format, bytes of 0 are zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
from torch import Tensor

from dsv41c.kernels.encodings import CACHE_ROWS
from dsv41c.kernels.reference.encodings import decode_e2m1, decode_e4m3, decode_e8m0, encode_e2m1, encode_e8m0
from dsv41c.kernels.reference.fake_quant import (
    E4M3_MAX,
    FP8_FLOOR,
    fake_fp4,
    fake_fp4_e4m3,
    fp4_blocks,
    fp4_e4m3_blocks,
    power_of_two_scale,
)

# 448 * 2^120 is past the largest f32 already, and no finite number needs a larger scale.
_LARGEST_FP8_SCALE = 2.0**120
_E8M0_NAN = 255


def stored(kind: str, rows: Tensor, kv_cache: str) -> Tensor:
    """Rows float [..., channels] of `compress_kv` or `index_k`, not rounded yet, as their cache keeps them.

    `none`: as they are; `reference`: rounded; `packed`: uint8 [..., bytes], which stand for the rounded values.
    """
    if kv_cache == "none":
        return rows
    return pack(kind, rows) if kv_cache == "packed" else _ROUND[kind](rows)


def pack(kind: str, rows: Tensor) -> Tensor:
    """The bytes uint8 [..., bytes] of rows float [..., channels].

    Rows of `window_kv` are those that `fake_fp8` has rounded: attention uses them before the ring takes them. The
    others are rounded here. Rounding these twice may change them, where E4M3 scales are near their smallest.
    """
    codes, scale = _PACK[kind](rows)
    return torch.cat([codes, scale], dim=-1)


def unpack(kind: str, rows: Tensor) -> Tensor:
    """What rows of a cache are worth: floats as they are; f32 [..., channels] for bytes [..., bytes]."""
    if rows.dtype != torch.uint8:
        return rows
    encoding = CACHE_ROWS[kind]
    channels = encoding.columns(rows.shape[-1])
    assert channels is not None and encoding.block is not None, f"{kind} rows of {rows.shape[-1]} bytes"
    count = channels * encoding.bits // 8
    codes, scale = rows[..., :count], rows[..., count:]
    values = decode_e4m3(codes) if encoding.bits == 8 else decode_e2m1(codes)
    scales = decode_e4m3(scale) if encoding.scale == "e4m3" else decode_e8m0(scale)
    return (torch.unflatten(values, -1, (-1, encoding.block[1])) * scales[..., None]).flatten(-2)


def _pack_fp8(rows: Tensor) -> tuple[Tensor, Tensor]:
    """E4M3 codes with E8M0 scales per 32 channels, of rounded rows.

    Rounding can bring the largest magnitude down to half of what its scale covers; the scale found here is then half of
    that one, for the same values. Beside an infinity a smaller scale than the one that rounded is needed, to keep the
    rest.
    """
    blocks = torch.unflatten(rows.to(torch.float32), -1, (-1, 32))
    scale = power_of_two_scale(blocks.abs().amax(-1, keepdim=True), E4M3_MAX, FP8_FLOOR).clamp(max=_LARGEST_FP8_SCALE)
    codes = (blocks / scale).clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)
    return codes.view(torch.uint8).flatten(-2), encode_e8m0(scale).flatten(-2)


def _pack_fp4(rows: Tensor) -> tuple[Tensor, Tensor]:
    """E2M1 codes with E8M0 scales per 32 channels."""
    values, scale = fp4_blocks(rows)
    scales = encode_e8m0(scale).masked_fill(values.isnan().any(-1, keepdim=True), _E8M0_NAN)
    return encode_e2m1(values.flatten(-2)), scales.flatten(-2)


def _pack_fp4_e4m3(rows: Tensor) -> tuple[Tensor, Tensor]:
    """E2M1 codes with E4M3 scales per 16 channels."""
    values, scale = fp4_e4m3_blocks(rows)
    return encode_e2m1(values.flatten(-2)), scale.view(torch.uint8).flatten(-2)


_ROUND: Mapping[str, Callable[[Tensor], Tensor]] = MappingProxyType({"compress_kv": fake_fp4_e4m3, "index_k": fake_fp4})
_PACK: Mapping[str, Callable[[Tensor], tuple[Tensor, Tensor]]] = MappingProxyType(
    {"window_kv": _pack_fp8, "compress_kv": _pack_fp4_e4m3, "index_k": _pack_fp4}
)
