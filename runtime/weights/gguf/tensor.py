"""Tensors of GGUF files whose bytes are no plain matrix: blocks of codes and scales, and half-precision floats."""

from __future__ import annotations

from dsv41c.runtime.weights.gguf.types import FLOATS
from dsv41c.runtime.weights.shard import TensorHeader

ONES = "ONES"


class GgufHeader(TensorHeader):
    """A header whose `dtype` is a GGUF type, in rows of its blocks; `shape` counts elements, as official.

    Read as floats. `ONES` is no type of a file but the weight that a file lacks which stores the product with another;
    it has no bytes.
    """

    __slots__ = ()


class Mxfp4Codes(GgufHeader):
    """The codes of an MXFP4 tensor, read as the release packs them: two a byte, in order."""

    __slots__ = ()


class Mxfp4Scales(GgufHeader):
    """The scales of an MXFP4 tensor, read as the release has them: a byte for 32 columns of a row."""

    __slots__ = ()


def is_rounded(header: TensorHeader) -> bool:
    """Whether the values of a tensor are a quantisation's approximations, which are rounded to what a plan computes in.

    MXFP4 is the release's own format, and its values are exact in bf16.
    """
    return isinstance(header, GgufHeader) and header.dtype not in (*FLOATS, ONES, "MXFP4")
