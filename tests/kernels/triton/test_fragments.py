"""Rows of E4M3 matrices times several vectors, against products of the decoded numbers in f64.

Products of codes, scales and bf16 elements are exact, and sums are f32: rows come out 4e-7 apart at most. The
three parts of f32 elements keep 24 bits.
"""

import pytest
import torch
import triton
import triton.language as tl

from dsv41c.kernels.reference.encodings import dense
from dsv41c.kernels.triton.fragments import rows8_several
from dsv41c.kernels.triton.launch import scales, words

from .decode_cases import Maker


@triton.jit
def product_rows(
    codes, scale, x, out, count, M, N: tl.constexpr, BM: tl.constexpr, WARPS: tl.constexpr, UNROLL: tl.constexpr
):
    first = tl.program_id(0) * BM
    value = rows8_several(codes, scale, x, N, count, first, N, BM, WARPS, UNROLL, False)
    row = first + tl.arange(0, BM)[:, None]
    token = tl.arange(0, 8)[None, :]
    tl.store(out + token * M + row, value)


def product(weight, x, rows, warps, unroll):
    """[8, M]; vectors past those of x repeat the last one."""
    height, width = weight.codes.shape
    out = torch.full((8, height), float("nan"))
    product_rows[height // rows,](
        words(weight.codes), scales(weight), x, out, x.shape[0], height, N=width, BM=rows, WARPS=warps, UNROLL=unroll
    )
    return out


def check(weight, x, *tile, bound=1e-6):
    ours = product(weight, x, *tile)
    expected = x.double() @ dense(weight, torch.float64).T
    count = x.shape[0]
    error = ((ours[:count].double() - expected).norm(dim=0) / expected.norm(dim=0)).max()  # of a row
    assert error <= bound, error
    assert torch.equal(ours[count:], ours[count - 1].expand(8 - count, -1))
    return ours


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(
    ("height", "width", "count", "rows", "warps", "unroll"),
    [
        (32, 64, 8, 16, 1, 1),
        (48, 96, 3, 16, 2, 1),  # part of a block of 32, part of a step
        (64, 1024, 5, 16, 4, 2),
        (32, 352, 7, 8, 1, 2),
        (36, 672, 2, 4, 2, 3),
        (33, 32, 1, 1, 1, 2),
    ],
)
def test_product(height, width, count, rows, warps, unroll, dtype):
    make = Maker(height + width)
    weight = make.fp8(height, width)
    x = make.normal(count, width, dtype=dtype)
    check(weight, x, rows, warps, unroll)


@pytest.mark.parametrize("byte", [0, 5, 120, 200, 230])
def test_scales_near_and_far(byte):
    """Scales are taken relative to the first of a block, whatever it is; neighbours of blocks do not matter."""
    make = Maker(byte)
    weight = make.fp8(64, 256)
    assert weight.codes.unique().numel() == 254  # all but NaN
    scale = make.integers(byte, byte + 6, *weight.scale.shape, dtype=torch.uint8)
    scale[1] = 127
    x = make.normal(4, 256, scale=2.0**-14, dtype=torch.bfloat16)
    bound = 4e-6 if byte == 0 else 1e-6  # f32 has 19 to 24 bits for sums under the smallest scales
    ours = check(weight._replace(scale=scale), x, 16, 2, 2, bound=bound)
    assert ours.isfinite().all()
    assert ours[:, :32].any(0).all()
