"""Engram: hash ids in one launch for any number of tokens, rows of a table that kernels read, and the gate."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from dsv41c.kernels.reference import engram as reference
from dsv41c.kernels.reference.encodings import Packed
from dsv41c.kernels.reference.engram import RowTable
from dsv41c.kernels.reference.linear import linear
from dsv41c.kernels.step import Step
from dsv41c.kernels.triton.common import e4m3_value, e8m0_value
from dsv41c.kernels.triton.launch import Tile, assembly, is_fp8, tile8, vector_block, words
from dsv41c.kernels.triton.matmul import matmul
from dsv41c.kernels.triton.planes import rows8, store_planes8

DECODE_ROWS = 8  # tokens whose projection walks the matrix row by row; more go to a matrix product
_DEAD = tl.constexpr(reference.DEAD)


@triton.jit
def _known(token_map, ids, history, position, at, tokens, N: tl.constexpr):
    """Compressed ids at places `at` of the call, those before it from the history [N - 1]; _DEAD before the start."""
    old = at < 0
    token = tl.load(ids + at, mask=(at >= 0) & (at < tokens), other=-1)
    fresh = tl.load(token_map + tl.maximum(token, 0), mask=token >= 0, other=_DEAD)
    kept = tl.load(history + N - 1 + at, mask=old & (at >= 1 - N) & (position + at >= 0), other=_DEAD)
    return tl.where(old, kept, fresh)


@triton.jit
def hash_rows(
    ids, history, token_map, multipliers, primes, offsets, slots, positions, out, tokens, pad,
    N: tl.constexpr, E: tl.constexpr, COLUMNS: tl.constexpr, BT: tl.constexpr,
):  # fmt: skip
    """Grid (ceil(tokens / BT), B): table rows of BT tokens, and by the first program the new history.

    ids int64 [B, tokens]; history int64 [slots, N - 1]; out int64 [B, tokens, E, COLUMNS]. BT is at least N - 1, so
    that only the first program reads the history.
    """
    session = tl.program_id(1)
    ids += session * tokens
    history += tl.load(slots + session) * (N - 1)
    position = tl.load(positions + session)
    at = tl.program_id(0) * BT + tl.arange(0, BT)
    column = tl.arange(0, triton.next_power_of_2(E * COLUMNS))
    inside = column < E * COLUMNS
    layer = column // COLUMNS
    size = column % COLUMNS // (COLUMNS // (N - 1)) + 1  # how many tokens back this column's n-gram goes
    padding = tl.load(token_map + pad)
    ended = at < 0
    mixed = tl.zeros([BT, triton.next_power_of_2(E * COLUMNS)], tl.int64)
    for back in tl.static_range(N):
        token = _known(token_map, ids, history, position, at - back, tokens, N)
        ended = ended | (token == _DEAD)
        factor = tl.load(multipliers + layer * N + back, mask=inside & (size >= back), other=0)
        mixed = mixed ^ (tl.where(ended, padding, token)[:, None] * factor[None, :])
    prime = tl.load(primes + column, mask=inside, other=1)
    row = mixed % prime[None, :]
    row = tl.where(row < 0, row + prime[None, :], row) + tl.load(offsets + column, mask=inside, other=0)[None, :]
    place = out + (session * tokens + at).to(tl.int64)[:, None] * (E * COLUMNS) + column[None, :]
    tl.store(place, row, mask=(at < tokens)[:, None] & inside[None, :])
    if tl.program_id(0) == 0:
        kept = tl.arange(0, triton.next_power_of_2(N - 1))
        last = _known(token_map, ids, history, position, tokens + 1 - N + kept, tokens, N)
        tl.debug_barrier()  # every thread has read the history
        tl.store(history + kept, last, mask=kept < N - 1)


def engram_ids(
    step: Step,
    ids: Tensor,
    token_history: Tensor,
    token_map: Tensor,
    multipliers: Tensor,
    primes: Tensor,
    offsets: Tensor,
    *,
    pad_id: int,
) -> tuple[Tensor, Tensor]:
    """`reference.engram_ids` in one launch: int64 [B, T, E, columns], and the history, updated in place."""
    batch, tokens = ids.shape
    layers, columns = primes.shape
    size = multipliers.shape[1]
    out = torch.empty(batch, tokens, layers, columns, dtype=torch.int64, device=ids.device)
    block = triton.next_power_of_2(max(size - 1, min(tokens, 16)))
    hash_rows[triton.cdiv(tokens, block), batch](
        ids.contiguous(), token_history, token_map, multipliers, primes, offsets, step.slots, step.positions, out,
        tokens, pad_id, N=size, E=layers, COLUMNS=columns, BT=block,
    )  # fmt: skip
    return out, token_history


@dataclass(frozen=True, eq=False, slots=True)
class DeviceTable:
    """A RowTable that kernels read as it is stored: codes E4M3 uint8 [rows, C], scale E8M0 uint8 [rows, C/32].

    On the device that reads it, or in pinned memory, where every GPU of the host reaches it. Bytes of a row follow each
    other; rows may lie apart.
    """

    codes: Tensor
    scale: Tensor

    def rows(self, ids: Tensor) -> Tensor:
        """The decoded rows bf16 [..., C] of int64 ids [...], on their device. bf16 holds every one exactly."""
        width = self.codes.shape[1]
        out = torch.empty(*ids.shape, width, dtype=torch.bfloat16, device=ids.device)
        if ids.numel():
            _gather(self, ids.contiguous(), ids.numel(), 1, 1, 0, out)
        return out


@triton.jit
def gather_rows(
    ids, codes, scale, out, columns, stride, first, CODES_PITCH: tl.constexpr, SCALE_PITCH: tl.constexpr,
    C: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Grid (tokens * columns): one table row, C channels, to out [tokens, columns, C]; ids `stride` apart by token.

    Rows of codes and of scales begin a pitch of bytes apart.
    """
    program = tl.program_id(0).to(tl.int64)
    row = tl.load(ids + program // columns * stride + first + program % columns)
    block = tl.arange(0, BLOCK // 32)
    channel = block[:, None] * 32 + tl.arange(0, 32)[None, :]
    value = e4m3_value(tl.load(codes + row * CODES_PITCH + channel, mask=channel < C, other=0))
    factor = e8m0_value(tl.load(scale + row * SCALE_PITCH + block, mask=block * 32 < C, other=127))
    tl.store(out + program * C + channel, (value * factor[:, None]).to(out.dtype.element_ty), mask=channel < C)


def _gather(table: DeviceTable, ids: Tensor, tokens: int, columns: int, stride: int, first: int, out: Tensor) -> None:
    width = table.codes.shape[1]
    gather_rows[(tokens * columns,)](
        ids, table.codes, table.scale, out, columns, stride, first, CODES_PITCH=table.codes.stride(0),
        SCALE_PITCH=table.scale.stride(0), C=width, BLOCK=triton.next_power_of_2(width), num_warps=1,
    )  # fmt: skip


def engram_rows(engram_ids: Tensor, table: RowTable, *, index: int) -> Tensor:
    """`reference.engram_rows`: [B, T, columns * C]. A `DeviceTable` is read in one launch, as bf16."""
    if not isinstance(table, DeviceTable):
        return reference.engram_rows(engram_ids, table, index=index)
    batch, tokens, layers, columns = engram_ids.shape
    shape = (batch, tokens, columns * table.codes.shape[1])
    out = torch.empty(shape, dtype=torch.bfloat16, device=engram_ids.device)
    if out.numel():
        ids = engram_ids.contiguous()
        _gather(table, ids, batch * tokens, columns, layers * columns, index * columns, out)
    return out


@triton.jit
def to_planes(x, planes, N: tl.constexpr, BLOCK: tl.constexpr):
    """Grid (ceil(N / BLOCK), rows): rows [N] as `planes8`."""
    row = tl.program_id(1)
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + row * N + column, mask=column < N, other=0.0).to(tl.float32)
    store_planes8(planes + row * N, column, value, column < N, N)


@triton.jit
def project_rows(
    codes, scales, vectors, out, count, M: tl.constexpr, N: tl.constexpr, BM: tl.constexpr, T: tl.constexpr,
    U: tl.constexpr, UNROLL: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """Grid (M / BM, count / T upward): out [count, M] of an E4M3 matrix [M, N] times vectors as `rows8` takes them."""
    first = tl.program_id(0) * BM
    token = tl.program_id(1) * T
    value = rows8(codes, scales, vectors + token * N, N, count - token, first, M, N, BM, T, U, UNROLL, ASM)
    tokens = tl.minimum(token + tl.arange(0, T), count - 1)
    place = out + tokens[None, :] * M + (first + tl.arange(0, BM))[:, None]
    tl.store(place, value.to(out.dtype.element_ty))


@triton.jit
def gate_streams(
    streams, projected, q_weight, k_weight, out, gates, eps, S: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Grid (S, rows): one stream of streams [rows, S, D] plus its gate times the value; gates f32 [rows, S].

    projected [rows, S + 1, D]: the keys, then the value.
    """
    stream = tl.program_id(0)
    row = tl.program_id(1).to(tl.int64)
    h = streams + (row * S + stream) * D
    key = projected + (row * (S + 1) + stream) * D
    value = projected + (row * (S + 1) + S) * D
    dots = tl.zeros([BLOCK], tl.float32)
    squares = tl.zeros([BLOCK], tl.float32)
    key_squares = tl.zeros([BLOCK], tl.float32)
    for start in tl.static_range(0, D, BLOCK):
        column = start + tl.arange(0, BLOCK)
        inside = column < D
        a = tl.load(h + column, mask=inside, other=0.0).to(tl.float32)
        b = tl.load(key + column, mask=inside, other=0.0).to(tl.float32)
        q = tl.load(q_weight + stream * D + column, mask=inside, other=0.0)
        k = tl.load(k_weight + stream * D + column, mask=inside, other=0.0)
        dots += a * (q * k) * b
        squares += a * a
        key_squares += b * b
    scale = 1.0 / tl.sqrt_rn(tl.sum(squares, 0) / D + eps) * (1.0 / tl.sqrt_rn(tl.sum(key_squares, 0) / D + eps))
    dot = tl.sum(dots, 0) * scale * (1.0 / tl.sqrt_rn(tl.zeros([], tl.float32) + D))
    root = tl.sqrt_rn(tl.where(tl.abs(dot) < 1e-6, 1e-6, tl.abs(dot)))
    negative = dot.to(tl.int32, bitcast=True) < 0  # the sign bit: -0 counts as negative, +0 as positive
    gate = 1.0 / (1.0 + tl.exp(tl.where(negative, root, -root)))
    tl.store(gates + row * S + stream, gate)
    for start in tl.static_range(0, D, BLOCK):
        column = start + tl.arange(0, BLOCK)
        inside = column < D
        a = tl.load(h + column, mask=inside, other=0.0).to(tl.float32)
        v = tl.load(value + column, mask=inside, other=0.0).to(tl.float32)
        place = out + (row * S + stream) * D + column
        tl.store(place, (a + gate * v).to(out.dtype.element_ty), mask=inside)


def engram_gate(
    streams: Tensor,
    engram_rows: Tensor,
    wkv: Tensor | Packed,
    q_weight: Tensor,
    k_weight: Tensor,
    *,
    eps: float,
    activation_quant: str,
) -> tuple[Tensor, Tensor]:
    """`reference.engram_gate`, in three launches at decode: streams [B, T, S, D], and the gates f32 [B, T, S]."""
    batch, tokens, count, dim = streams.shape
    rows = engram_rows.to(streams.dtype).reshape(batch * tokens, -1)
    if streams.dtype == torch.bfloat16 and activation_quant == "none":
        projected = _projected(rows, wkv)
    else:
        projected = linear(rows, wkv, activation_quant)
    out = torch.empty_like(streams, memory_format=torch.contiguous_format)
    gates = torch.empty(batch, tokens, count, dtype=torch.float32, device=streams.device)
    gate_streams[count, batch * tokens](
        streams.contiguous(), projected, q_weight, k_weight, out, gates, eps, S=count, D=dim,
        BLOCK=min(1024, triton.next_power_of_2(dim)), enable_fp_fusion=False,
    )  # fmt: skip
    return out, gates


def _projected(rows: Tensor, wkv: Tensor | Packed) -> Tensor:
    """wkv x, bf16 [rows, M], of rows bf16 [rows, N]."""
    count, width = rows.shape
    if count > DECODE_ROWS or not isinstance(wkv, Packed) or not is_fp8(wkv) or wkv.codes.shape[0] % 2:
        return matmul(rows, wkv, rows.dtype)
    height = wkv.codes.shape[0]
    vectors, block = rows.contiguous(), vector_block(count)
    tile = Tile(2, min(32, triton.next_power_of_2(width // 16)), 4)
    if count == 1:
        planes = torch.empty(count, width, dtype=torch.float16, device=rows.device)
        to_planes[triton.cdiv(width, 1024), count](vectors, planes, N=width, BLOCK=1024)
        vectors = planes.view(torch.int32)
    else:
        tile = tile8(width, height, tokens=block)
    out = torch.empty(count, height, dtype=rows.dtype, device=rows.device)
    project_rows[height // tile.rows, triton.cdiv(count, block)](
        words(wkv.codes), wkv.scale.view(torch.uint8), vectors, out, count, M=height, N=width, BM=tile.rows, T=block,
        U=tile.units, UNROLL=tile.unroll, ASM=assembly(rows.device), num_warps=tile.warps,
    )  # fmt: skip
    return out
