"""Random values of sane scale, by role, made and encoded in pieces that fit in memory.

Each tensor has a generator of its own, seeded by the seed and its name, so that its bytes depend on neither the order
of writing nor the other tensors.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from dsv41c.kernels.reference.encodings import BLOCK, encode_fp4_32, encode_fp8_32x32, encode_fp8_row32
from dsv41c.runtime.synth.layout import Weight

# Elements made at a time.
CHUNK = 1 << 22

_ENCODERS = {"fp8_32x32": encode_fp8_32x32, "fp8_row32": encode_fp8_row32, "fp4_32": encode_fp4_32}

# Mean and deviation. Mixing stays near its middle, so that streams neither die nor grow; gates differ enough that the
# experts chosen vary from token to token.
_SCALES = {
    "embed": (0.0, 1.0),
    "engram_table": (0.0, 1.0),
    "engram_q_weight": (1.0, 0.1),
    "engram_k_weight": (1.0, 0.1),
    "attn_sink": (0.0, 1.0),
    "gate_bias": (0.0, 0.1),
    "gate_bias_vl": (0.0, 0.1),
    **{f"hc_{sublayer}_scale": (0.5, 0.05) for sublayer in ("attn", "ffn")},
    **{f"hc_{sublayer}_base": (0.0, 0.5) for sublayer in ("attn", "ffn")},
}


class Piece(NamedTuple):
    """Bytes of a weight and of its scale, uint8, in the order in which they are stored."""

    tensor: Tensor
    scale: Tensor | None


def scale_of(weight: Weight) -> tuple[float, float]:
    """Mean and standard deviation: norms about one, linears so that unit inputs give unit outputs."""
    if weight.role.endswith("norm"):
        return 1.0, 0.1
    return _SCALES.get(weight.role, (0.0, weight.shape[-1] ** -0.5))


def pieces(weight: Weight, seed: int) -> Iterator[Piece]:
    """The bytes of a weight, piece by piece along its rows."""
    digest = hashlib.sha256(f"{seed}:{weight.tensor.name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
    mean, deviation = scale_of(weight)
    *leading, columns = weight.shape
    rows = leading[0] if leading else 1
    # Whole blocks of rows, so that a 32x32 block never lies in two pieces.
    step = max(1, CHUNK // max(1, columns) // BLOCK) * BLOCK
    for first in range(0, rows, step):
        count = min(step, rows - first)
        values = torch.randn(count, columns, generator=generator) * deviation + mean
        yield _encode(values, weight.encoding)


def _encode(values: Tensor, encoding: str) -> Piece:
    if encoding in _ENCODERS:
        packed = _ENCODERS[encoding](values)
        return Piece(_bytes(packed.codes), _bytes(packed.scale))
    return Piece(_bytes(values.to(torch.bfloat16) if encoding == "bf16" else values), None)


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(torch.uint8).flatten()
