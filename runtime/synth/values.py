"""Random values of sane scale, by role, made and encoded in pieces that fit in memory.

Each tensor has a generator of its own, seeded by the seed and its name, so that its bytes depend on neither the order
of writing nor the other tensors.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from dsv41c.kernels.reference.encodings import BLOCK, decode_e2m1, encode_fp8_32x32, encode_fp8_row32
from dsv41c.runtime.synth.layout import Weight

# Elements made at a time.
CHUNK = 1 << 22

E8M0_ONE, E8M0_LARGEST = 127, 254

_ENCODERS = {"fp8_32x32": encode_fp8_32x32, "fp8_row32": encode_fp8_row32}

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


def scale_of(role: str, shape: Sequence[int]) -> tuple[float, float]:
    """Mean and standard deviation: norms about one, linears so that unit inputs give unit outputs."""
    if role.endswith("norm"):
        return 1.0, 0.1
    return _SCALES.get(role, (0.0, shape[-1] ** -0.5))


def pieces(weight: Weight, seed: int) -> Iterator[Piece]:
    """The bytes of a weight, piece by piece along its rows."""
    digest = hashlib.sha256(f"{seed}:{weight.tensor.name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
    mean, deviation = scale_of(weight.role, weight.shape)
    *leading, columns = weight.shape
    rows = leading[0] if leading else 1
    # Whole blocks of rows, so that a 32x32 block never lies in two pieces.
    step = max(1, CHUNK // max(1, columns) // BLOCK) * BLOCK
    table = fp4_table(deviation) if weight.encoding == "fp4_32" else None
    for first in range(0, rows, step):
        count = min(step, rows - first)
        if table is not None:
            yield _fp4(table, deviation, count, columns, generator)
        else:
            yield _encode(torch.randn(count, columns, generator=generator) * deviation + mean, weight.encoding)


def _fp4_exponent(deviation: float) -> int:
    """The smaller of the two exponents that FP4 groups are scaled by."""
    return math.floor(math.log2(deviation))


def fp4_table(deviation: float) -> Tensor:
    """Two packed E2M1 codes for each of 65,536 equally likely numbers, uint8: codes of a normal distribution.

    Experts are most of a checkpoint, and drawing codes is ten times as fast as drawing values and encoding them. Groups
    are scaled by one of two neighbouring powers of two, so that a scale read from the wrong place shows; the mean
    square of the two is 5/2 of the smaller's, for which the codes make up.
    """
    quantiles = (torch.arange(256, dtype=torch.float64) + 0.5) / 256
    normal: Tensor = torch.special.ndtri(quantiles).to(torch.float32)
    scaled = normal * (deviation / 2.0 ** _fp4_exponent(deviation) / math.sqrt(2.5))
    values = decode_e2m1(torch.arange(16, dtype=torch.uint8))[::2]  # of the codes 0 to 15, in the low nibble
    nearest = (scaled[:, None] - values).abs().argmin(dim=1).to(torch.uint8)
    pairs: Tensor = nearest[None, :] | (nearest[:, None] << 4)
    return pairs.flatten()


def _fp4(table: Tensor, deviation: float, rows: int, columns: int, generator: torch.Generator) -> Piece:
    drawn = torch.randint(0, len(table), (rows * columns // 2,), generator=generator, dtype=torch.int32)
    larger = torch.randint(0, 2, (rows * columns // BLOCK,), generator=generator, dtype=torch.int32)
    scale = (E8M0_ONE + _fp4_exponent(deviation) + larger).clamp(0, E8M0_LARGEST)
    return Piece(table.index_select(0, drawn), scale.to(torch.uint8))


def _encode(values: Tensor, encoding: str) -> Piece:
    if encoding in _ENCODERS:
        packed = _ENCODERS[encoding](values)
        return Piece(_bytes(packed.codes), _bytes(packed.scale))
    return Piece(_bytes(values.to(torch.bfloat16) if encoding == "bf16" else values), None)


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(torch.uint8).flatten()
