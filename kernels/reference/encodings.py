"""How checkpoints store quantised matrices, and what the codes are worth. Formats of the released checkpoint:

- `fp8_32x32`: E4M3 codes [M, N], one power-of-two scale a 32x32 block [ceil(M/32), ceil(N/32)];
- `fp4_32`: E2M1 codes, two a byte [M, N/2] (element 2k in the low nibble), one scale per 32 columns [M, N/32];
- `fp8_row32`: E4M3 codes [rows, N], one scale per 32 columns of each row [rows, N/32].

Scales are E8M0: byte e means 2^(e-127), 255 means NaN. They are handled as raw bytes, because a numeric cast of an E8M0
tensor to integers turns 2^-7 into 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple, overload

import torch
from torch import Tensor

from dsv41c.kernels.reference.fake_quant import E4M3_MAX, fp4_blocks, power_of_two_scale

BLOCK = 32


class Packed(NamedTuple):
    """A quantised matrix as stored: codes (float8_e4m3fn or bytes), E8M0 scale (float8_e8m0fnu or bytes), encoding."""

    codes: Tensor
    scale: Tensor
    encoding: str


@dataclass(frozen=True, eq=False, slots=True)
class Stacked(Sequence[Packed]):
    """Quantised matrices of one shape in one piece: item e is a view of the e-th.

    codes uint8 [E, M, N/2] and scale uint8 [E, M, N/32] with `fp4_32`, which is the only encoding of it so far.
    """

    codes: Tensor
    scale: Tensor
    encoding: str = "fp4_32"

    def __len__(self) -> int:
        return self.codes.shape[0]

    @overload
    def __getitem__(self, index: int) -> Packed: ...
    @overload
    def __getitem__(self, index: slice) -> list[Packed]: ...
    def __getitem__(self, index: int | slice) -> Packed | list[Packed]:
        if isinstance(index, slice):
            return [self[item] for item in range(*index.indices(len(self)))]
        return Packed(self.codes[index], self.scale[index], self.encoding)


def decode_e8m0(scale: Tensor) -> Tensor:
    """The values of E8M0 bytes (any one-byte dtype), f32 of the same shape: 2^(byte-127), NaN for 255."""
    byte = scale.view(torch.uint8).to(torch.int32)
    # f32 keeps its exponent with the same bias; only 2^-127 is subnormal there, and 255 would read as infinity.
    bits = torch.where(byte == 0, 1 << 22, byte << 23)
    return torch.where(byte == 255, (255 << 23) | (1 << 22), bits).to(torch.int32).view(torch.float32)


def decode_e4m3(codes: Tensor) -> Tensor:
    """The values of E4M3 codes (OCP: bias 7, largest 448; any one-byte dtype), f32 of the same shape."""
    return codes.view(torch.float8_e4m3fn).to(torch.float32)


@cache
def e2m1_pairs(device: torch.device) -> Tensor:
    """The two values of each byte, f32 [256, 2], low nibble first. Made once a device: a captured graph holds it."""
    magnitudes = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    values = torch.tensor(magnitudes + [-value for value in magnitudes])
    byte = torch.arange(256)
    return values[torch.stack([byte & 15, byte >> 4], dim=-1)].to(device)


def decode_e2m1(codes: Tensor) -> Tensor:
    """The values of packed E2M1 codes [..., N/2] (any one-byte dtype), f32 [..., N], low nibble first.

    Looked up, which is ten times as fast as putting exponent and mantissa together; experts are decoded at every use.
    """
    byte = codes.view(torch.uint8).to(torch.int32)
    return e2m1_pairs(codes.device).index_select(0, byte.flatten()).view(*codes.shape[:-1], 2 * codes.shape[-1])


def dense(weight: Tensor | Packed, dtype: torch.dtype) -> Tensor:
    """The matrix [M, N] that a weight stands for, in `dtype`. Exact in bf16 within its exponent range."""
    if not isinstance(weight, Packed):
        return weight.to(dtype)
    scale = decode_e8m0(weight.scale)
    if weight.encoding == "fp4_32":
        values = decode_e2m1(weight.codes)
        torch.unflatten(values, -1, (-1, BLOCK)).mul_(scale[..., None])  # in place: a second copy costs as much again
        return values.to(dtype)
    values = decode_e4m3(weight.codes)
    rows, columns = values.shape
    if weight.encoding == "fp8_32x32":
        scale = scale.repeat_interleave(BLOCK, 0)[:rows]
    elif weight.encoding != "fp8_row32":
        raise ValueError(f"unknown encoding `{weight.encoding}`")
    return values.mul_(scale.repeat_interleave(BLOCK, 1)[:, :columns]).to(dtype)


def encode_e8m0(scale: Tensor) -> Tensor:
    """The bytes of powers of two in f32, uint8. None is below 2^-126 here, so all are normal numbers."""
    return (scale.view(torch.int32) >> 23).to(torch.uint8)


def encode_e2m1(values: Tensor) -> Tensor:
    """The packed codes uint8 [..., N/2] of E2M1 values f32 [..., N], low nibble first. Signs of zeros stay."""
    magnitude = values.abs()
    # The codes of 0 .5 1 1.5 2 3 4 6 are 0 to 7: twice the value up to 2, then 2 + value, then 7.
    code = torch.where(magnitude <= 2, magnitude * 2, torch.where(magnitude <= 4, magnitude + 2, 7))
    nibble = code.to(torch.uint8) | (torch.signbit(values).to(torch.uint8) << 3)
    return nibble[..., 0::2] | (nibble[..., 1::2] << 4)


def encode_fp8_32x32(values: Tensor) -> Packed:
    """Encode a float matrix [M, N] of any size with the smallest power-of-two scales that cover its blocks."""
    values = values.to(torch.float32)
    rows, columns = values.shape
    padded = torch.nn.functional.pad(values, (0, -columns % BLOCK, 0, -rows % BLOCK))
    blocks = torch.unflatten(torch.unflatten(padded, 1, (-1, BLOCK)), 0, (-1, BLOCK))
    scale = power_of_two_scale(blocks.abs().amax(dim=(1, 3)), E4M3_MAX, E4M3_MAX * 2.0**-126)
    spread = scale.repeat_interleave(BLOCK, 0)[:rows].repeat_interleave(BLOCK, 1)[:, :columns]
    codes = (values / spread).clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)
    return Packed(codes, encode_e8m0(scale), "fp8_32x32")


def encode_fp8_row32(values: Tensor) -> Packed:
    """Encode a float matrix [rows, N], N a multiple of 32, with a power-of-two scale per 32 columns of each row."""
    blocks = torch.unflatten(values.to(torch.float32), -1, (-1, BLOCK))
    scale = power_of_two_scale(blocks.abs().amax(-1), E4M3_MAX, E4M3_MAX * 2.0**-126)
    codes = (blocks / scale[..., None]).clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)
    return Packed(codes.flatten(-2), encode_e8m0(scale), "fp8_row32")


def encode_fp4_32(values: Tensor) -> Packed:
    """Encode a float matrix [M, N], N a multiple of 32, as packed E2M1 with a power-of-two scale per 32 columns."""
    rounded, scale = fp4_blocks(values, BLOCK)
    return Packed(encode_e2m1(rounded.flatten(-2)), encode_e8m0(scale.squeeze(-1)), "fp4_32")
