"""Linear layers over many rows: weights decoded tile by tile inside the product, or once into bf16 for a long product.

The tile of weights is the first operand of the dot, so that few rows waste nothing and sm_90 takes the decoded tile
from registers.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from dsv41c.kernels.reference.encodings import Packed, dense
from dsv41c.kernels.triton.launch import assembly
from dsv41c.kernels.triton.target import HOPPER_SHARED, shared_memory
from dsv41c.kernels.triton.tiles import e8m0_bf16, fp8_tile, spread, three_parts

# From so many rows on, FP8 weights are decoded once into bf16 and the vendor's product takes over. Measured on an H200
# at Flash widths: about as fast at 64 rows; at 256 faster for wo_b and a shared expert's w1, at 512 for wq_b.
DECODE_ONCE_ROWS = 256
# A product whose programs are fewer than this is cut along K as well.
_FULL_PROGRAMS = 128
_LONGEST_SPLIT = 8


@triton.jit
def gemm(
    x, weight, scale, y, n, M, K, x_stride, x_group, y_stride, y_part, scale_stride, k_part,
    KIND: tl.constexpr, BN: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr, EVEN: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """Grid (row tiles of weight * tiles of x, parts of K, groups): y[part, token, group * M + row] = weight x.

    x bf16, rows `x_stride` and groups `x_group` apart; weight [groups * M, K] as KIND says: `fp8` codes with scale
    uint8 [.., K/32], `bf16`, or `f32`. A part takes `k_part` columns, a multiple of BK; y of a part is `y_part` apart.
    """
    across = tl.cdiv(n, BT)
    tile = tl.program_id(0)
    part = tl.program_id(1)
    group = tl.program_id(2)
    token = tile % across * BT + tl.arange(0, BT)
    row = tile // across * BN + tl.arange(0, BN)
    # Rows beyond the end repeat the last one and are not stored.
    from_token = tl.minimum(token, n - 1).to(tl.int64)
    from_row = (group * M + tl.minimum(row, M - 1)).to(tl.int64)
    column = part * k_part + tl.arange(0, BK)
    x_at = x + group * x_group + from_token[:, None] * x_stride + column[None, :]
    w_at = weight + from_row[:, None] * K + column[None, :]
    s_at = scale + (from_row // 32)[:, None] * scale_stride + (part * k_part // 32 + tl.arange(0, BK // 32))[None, :]
    block = tl.arange(0, BK // 32) * 32
    end = tl.minimum(K, (part + 1) * k_part)
    total = tl.zeros([BN, BT], tl.float32)
    if KIND == "fp8":
        factor = tl.load(s_at, mask=(part * k_part + block < end)[None, :], other=127)
    for k in range(part * k_part, end, BK):
        if EVEN:
            rows = tl.load(x_at)
            w = tl.load(w_at)
        else:
            inside = (k + tl.arange(0, BK) < K)[None, :]
            rows = tl.load(x_at, mask=inside, other=0.0)
            w = tl.load(w_at, mask=inside, other=0)
        if KIND == "fp8":
            # Scales are too narrow for asynchronous copies: the next ones are loaded beside this product.
            s_at += BK // 32
            following = tl.load(s_at, mask=(k + BK + block < end)[None, :], other=127)
            w = fp8_tile(w, spread(e8m0_bf16(factor), BN, BK // 32, 32), ASM)
            total = tl.dot(w, tl.trans(rows), total)
            factor = following
        elif KIND == "bf16":
            total = tl.dot(w, tl.trans(rows), total)
        else:
            first, second, third = three_parts(w)
            turned = tl.trans(rows)
            total = tl.dot(third, turned, total)
            total = tl.dot(second, turned, total)
            total = tl.dot(first, turned, total)
        x_at += BK
        w_at += BK
    at = y + part.to(tl.int64) * y_part + token.to(tl.int64)[:, None] * y_stride + (group * M + row)[None, :]
    tl.store(at, tl.trans(total).to(y.dtype.element_ty), mask=(token < n)[:, None] & (row < M)[None, :])


@triton.jit
def add_parts(parts, y, count, size, BLOCK: tl.constexpr):
    """y[i] = the sum of parts[:, i] in order; parts f32 [count, size]."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    total = tl.load(parts + at, mask=at < size, other=0.0)
    for _ in range(1, count):
        parts += size
        total += tl.load(parts + at, mask=at < size, other=0.0)
    tl.store(y + at, total.to(y.dtype.element_ty), mask=at < size)


@triton.jit
def decode_fp8(codes, scale, out, M, K, scale_stride, BM: tl.constexpr, BK: tl.constexpr, ASM: tl.constexpr):
    """Grid (ceil(M/BM), ceil(K/BK)): bf16 [M, K] of E4M3 codes under scales of 32x32 blocks."""
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    first = tl.program_id(1) * BK
    column = first + tl.arange(0, BK)
    block = first // 32 + tl.arange(0, BK // 32)
    inside = (row < M)[:, None] & (column < K)[None, :]
    at = row.to(tl.int64)[:, None] * K + column[None, :]
    there = (row < M)[:, None] & (block * 32 < K)[None, :]
    factor = tl.load(scale + (row // 32)[:, None] * scale_stride + block[None, :], mask=there, other=127)
    value = fp8_tile(tl.load(codes + at, mask=inside, other=0), spread(e8m0_bf16(factor), BM, BK // 32, 32), ASM)
    tl.store(out + at, value, mask=inside)


@dataclass(frozen=True, slots=True)
class Tile:
    """A tile of `gemm`: rows of the weight, rows of x, columns at a time; warps and stages of the pipeline."""

    rows: int
    tokens: int
    columns: int
    warps: int
    stages: int


def tile_for(n: int, shared: int) -> Tile:
    """The tile for n rows of x: bytes of a stage are at most rows * columns * 4 + tokens * columns * 2."""
    if shared < HOPPER_SHARED:  # sm_89 and AMD: two stages of 24 KiB
        return Tile(64, 16, 64, 4, 2) if n <= 16 else Tile(64, 32, 64, 4, 2) if n <= 32 else Tile(64, 64, 64, 4, 2)
    if n <= 16:
        return Tile(64, 16, 128, 4, 4)
    if n <= 32:
        return Tile(64, 32, 128, 4, 4)
    if n <= 64:
        return Tile(64, 64, 128, 4, 3)
    return Tile(128, 128, 64, 8, 3)


def matmul(x: Tensor, weight: Packed | Tensor, out_dtype: torch.dtype, groups: int = 1) -> Tensor:
    """x weight^T with fp32 sums, [n, M] in `out_dtype` (bf16 or f32); x bf16 [n, K] with any distance between rows.

    weight [M, K]: packed `fp8_32x32`, bf16 or f32 (products with which keep fp32 accuracy); other encodings are decoded
    whole. With groups, weight is block-diagonal as wo_a is: [M, K / groups], group g takes M / groups rows and
    its K / groups of the columns of x.
    """
    if isinstance(weight, Packed) and weight.encoding != "fp8_32x32":
        weight = dense(weight, x.dtype)
    if x.shape[0] >= DECODE_ONCE_ROWS:
        if isinstance(weight, Packed):
            weight = dequantise(weight)
        if weight.dtype == torch.bfloat16:
            return vendor_product(x, weight, out_dtype, groups)
    return _native(x, weight, out_dtype, groups)


def vendor_product(x: Tensor, weight: Tensor, out_dtype: torch.dtype, groups: int) -> Tensor:
    """`matmul` by the product of the device's own library, for bf16 weights."""
    if groups > 1:
        grouped = torch.unflatten(x, 1, (groups, -1)).transpose(0, 1)
        parts = torch.bmm(grouped, torch.unflatten(weight, 0, (groups, -1)).transpose(1, 2))
        return parts.transpose(0, 1).flatten(1).to(out_dtype)
    if out_dtype == x.dtype:
        return torch.mm(x, weight.t())
    if x.device.type == "cuda":
        return torch.mm(x, weight.t(), out_dtype=out_dtype)
    return torch.mm(x.to(out_dtype), weight.t().to(out_dtype))


def _native(x: Tensor, weight: Packed | Tensor, out_dtype: torch.dtype, groups: int) -> Tensor:
    n, wide = x.shape
    codes = weight.codes.view(torch.uint8) if isinstance(weight, Packed) else weight
    scale = weight.scale.view(torch.uint8) if isinstance(weight, Packed) else codes
    kind = "fp8" if isinstance(weight, Packed) else "bf16" if codes.dtype == torch.bfloat16 else "f32"
    total, columns = codes.shape
    assert columns * groups == wide and x.stride(1) == 1, f"x {list(x.shape)} and a weight {list(codes.shape)}"
    rows = total // groups
    tile = tile_for(n, shared_memory(x.device))
    programs = triton.cdiv(n, tile.tokens) * triton.cdiv(rows, tile.rows) * groups
    steps = triton.cdiv(columns, tile.columns)
    parts = max(1, min(_FULL_PROGRAMS // programs, _LONGEST_SPLIT, steps // 4))
    k_part = triton.cdiv(steps, parts) * tile.columns
    parts = triton.cdiv(columns, k_part)
    y = torch.empty((parts, n, total), dtype=torch.float32 if parts > 1 else out_dtype, device=x.device)
    gemm[(programs // groups, parts, groups)](
        x, codes, scale, y, n, rows, columns, x.stride(0), columns, total, n * total, scale.stride(0), k_part,
        kind, tile.rows, tile.tokens, tile.columns, columns % tile.columns == 0, assembly(x.device),
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    if parts == 1:
        return y[0]
    out = torch.empty((n, total), dtype=out_dtype, device=x.device)
    add_parts[(triton.cdiv(n * total, 1024),)](y, out, parts, n * total, 1024)
    return out


def dequantise(weight: Packed) -> Tensor:
    """The matrix bf16 [M, K] of a packed `fp8_32x32` weight; exact within bf16's exponents."""
    codes, scale = weight.codes.view(torch.uint8), weight.scale.view(torch.uint8)
    rows, columns = codes.shape
    out = torch.empty((rows, columns), dtype=torch.bfloat16, device=codes.device)
    grid = (triton.cdiv(rows, 32), triton.cdiv(columns, 256))
    decode_fp8[grid](codes, scale, out, rows, columns, scale.stride(0), 32, 256, assembly(codes.device))
    return out


def grouped_output(
    attended: Tensor, wo_a: Packed | Tensor, wo_b: Packed | Tensor, groups: int, out_dtype: torch.dtype
) -> Tensor:
    """wo_b(concat over groups of wo_a[g] heads[g]), [n, D] in `out_dtype`, of attended bf16 [n, H, C].

    Each product is rounded once; to f32, the second one not.
    """
    low_rank = matmul(attended.flatten(1), wo_a, attended.dtype, groups)
    return matmul(low_rank, wo_b, out_dtype)
