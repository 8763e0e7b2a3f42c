"""Blocks of GGUF types as tensors. MXFP4 is done here, without loss; the other types by the `gguf` package."""

from __future__ import annotations

import torch
from torch import Tensor

from dsv41c.kernels.reference.encodings import Packed, dense
from dsv41c.runtime.weights.gguf.tensor import ONES, GgufHeader, Mxfp4Codes, Mxfp4Scales
from dsv41c.runtime.weights.gguf.types import TYPES

_NUMBERS = {kind.name: number for number, kind in TYPES.items()}
_MXFP4_BYTES = 17
ALIGNED = 64  # bytes, as torch lays its tensors


def decoded(data: Tensor, header: GgufHeader) -> Tensor:
    """A tensor of its bytes, uint8: f32 in its shape; of MXFP4 on request its codes or scales, uint8."""
    *rows, columns = header.shape
    if header.dtype == ONES:
        return torch.ones(header.shape)
    if isinstance(header, Mxfp4Scales):
        return data.view(-1, _MXFP4_BYTES)[:, 0].reshape(header.shape)
    if isinstance(header, Mxfp4Codes):
        return mxfp4_codes(data).view(*rows, columns // 2)
    return floats(data.view(-1, data.numel() // max(1, header.shape[0] if rows else 1)), header.dtype).view(
        header.shape
    )


def mxfp4_codes(data: Tensor) -> Tensor:
    """The codes of MXFP4 blocks uint8 [..., 17 n], packed as the release does: uint8 [..., 16 n].

    A block is its scale and 16 bytes, byte j with elements j (low nibble) and j + 16; the release's byte k has elements
    2k and 2k + 1.
    """
    blocks = data.view(*data.shape[:-1], -1, _MXFP4_BYTES)[..., 1:]
    low, high = blocks & 15, blocks >> 4
    halves = [half[..., 0::2] | (half[..., 1::2] << 4) for half in (low, high)]
    return torch.cat(halves, dim=-1).flatten(-2)


def floats(data: Tensor, dtype: str) -> Tensor:
    """Rows of blocks of a GGUF type, uint8 [rows, bytes], as f32 [rows, columns]."""
    if dtype == "F16":
        return data.contiguous().view(torch.float16).to(torch.float32)
    if dtype == "MXFP4":
        scale = data.view(len(data), -1, _MXFP4_BYTES)[..., 0]
        return dense(Packed(mxfp4_codes(data), scale.contiguous(), "fp4_32"), torch.float32)
    from gguf.constants import GGMLQuantizationType
    from gguf.quants import dequantize

    values = torch.from_numpy(dequantize(data.numpy(), GGMLQuantizationType(_NUMBERS[dtype])))
    # Sums over floats may add up in another order where they lie otherwise, and numpy lays them now so, now so.
    return values.clone() if values.data_ptr() % ALIGNED else values
