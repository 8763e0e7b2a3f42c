"""Sparse attention over many rows: a program takes one token and a block of its heads through all that the token sees.

Window and selected groups go through one online softmax, a tile of keys at a time. A key is its value too, so that a
tile is loaded once for both products.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from dsv41c.kernels.step import Step
from dsv41c.kernels.triton.common import e4m3_value
from dsv41c.kernels.triton.launch import assembly, power
from dsv41c.kernels.triton.rows import rotated
from dsv41c.kernels.triton.target import ADA_SHARED, HOPPER_SHARED, shared_memory
from dsv41c.kernels.triton.tiles import e8m0_bf16, fp4_tiles, spread


@triton.jit
def _ring_rows(ring, place, there, C: tl.constexpr, CB: tl.constexpr, PACKED: tl.constexpr):
    """Rows of the ring as bf16 [keys, CB], 0 where none is there; `place` counts rows over all slots."""
    column = tl.arange(0, CB)
    mask = there[:, None] & (column < C)[None, :]
    if PACKED:
        BYTES: tl.constexpr = C + C // 32
        codes = tl.load(ring + place[:, None] * BYTES + column[None, :], mask=mask, other=0)
        block = tl.arange(0, CB // 32)
        mask = there[:, None] & (block < C // 32)[None, :]
        scale = tl.load(ring + place[:, None] * BYTES + C + block[None, :], mask=mask, other=127)
        factor = spread(e8m0_bf16(scale), place.shape[0], CB // 32, 32)
        return (e4m3_value(codes) * factor.to(tl.float32)).to(tl.bfloat16)
    else:
        return tl.load(ring + place[:, None] * C + column[None, :], mask=mask, other=0.0)


@triton.jit
def _group_rows(pool, place, there, C: tl.constexpr, CB: tl.constexpr, PACKED: tl.constexpr, ASM: tl.constexpr):
    """Rows of the compressed KV as bf16 [keys, CB], 0 where none is there; `place` counts rows over all slots."""
    if PACKED:
        BYTES: tl.constexpr = C // 2 + C // 16
        column = tl.arange(0, CB // 2)
        mask = there[:, None] & (column < C // 2)[None, :]
        codes = tl.load(pool + place[:, None] * BYTES + column[None, :], mask=mask, other=0)
        block = tl.arange(0, CB // 16)
        mask = there[:, None] & (block < C // 16)[None, :]
        scale = tl.load(pool + place[:, None] * BYTES + C // 2 + block[None, :], mask=mask, other=0)
        # A product of E2M1 and E4M3 has at most six significant bits: exact in bf16.
        factor = e4m3_value(scale).to(tl.bfloat16)
        low, high = fp4_tiles(codes, spread(factor, place.shape[0], CB // 16, 8), ASM)
        return tl.reshape(tl.join(low, high), [place.shape[0], CB])
    else:
        column = tl.arange(0, CB)
        mask = there[:, None] & (column < C)[None, :]
        return tl.load(pool + place[:, None] * C + column[None, :], mask=mask, other=0.0)


@triton.jit
def _take(query, keys, there, largest, total, mixed, softmax_scale):
    """One step of the online softmax: the running maximum, the sum of exponentials and the weighted sum of values.

    The exponentials are rounded to bf16 before they meet the values, but not in their sum.
    """
    score = tl.dot(query, tl.trans(keys)) * softmax_scale
    score = tl.where(there[None, :], score, float("-inf"))
    larger = tl.maximum(largest, tl.max(score, 1))
    shift = tl.where(larger == float("-inf"), 0.0, larger)
    keep = tl.exp(largest - shift)
    weight = tl.exp(score - shift[:, None])
    total = total * keep + tl.sum(weight, 1)
    mixed = tl.dot(weight.to(tl.bfloat16), keys, mixed * keep[:, None])
    return larger, total, mixed


@triton.jit
def _undo_rope(value, position, frequency, C: tl.constexpr, CB: tl.constexpr, R: tl.constexpr):
    """bf16 [heads, CB] with the pairs of the last R of C channels turned back, fp32 inside."""
    even, odd = tl.split(tl.reshape(value, [value.shape[0], CB // 2, 2]))
    pair = tl.arange(0, CB // 2)[None, :] - (C - R) // 2
    even, odd = rotated(even.to(tl.float32), odd.to(tl.float32), position, frequency, pair, R, True)
    return tl.reshape(tl.join(even.to(tl.bfloat16), odd.to(tl.bfloat16)), [value.shape[0], CB])


@triton.jit(do_not_specialize=["begin"])
def attend_token(
    query, ring, rows, pool, topk, slots, positions, sink, frequency, out,
    tokens, heads, capacity, selected, ratio, begin, softmax_scale,
    W: tl.constexpr, C: tl.constexpr, CB: tl.constexpr, R: tl.constexpr, BH: tl.constexpr, KEYS: tl.constexpr,
    SB: tl.constexpr, RING_PACKED: tl.constexpr, POOL_PACKED: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """Grid (blocks of heads * tokens, B): attention of one token and BH heads; out bf16 [B, tokens, heads, C].

    query like out; ring [slots, W, C] as it was before this call, rows bf16 [B, tokens, C]; pool [slots, capacity, C];
    topk int64 [B, tokens, selected]. CB is the power of two from C on, SB that from `selected` on, 0 without any.
    The ring has no rows of positions before `begin`.
    """
    blocks = tl.cdiv(heads, BH)
    session = tl.program_id(1)
    token = tl.program_id(0) // blocks
    head = tl.program_id(0) % blocks * BH + tl.arange(0, BH)
    column = tl.arange(0, CB)
    slot = tl.load(slots + session)
    start = tl.load(positions + session)
    position = start + token
    line = (session * tokens + token).to(tl.int64)
    inside = (head < heads)[:, None] & (column < C)[None, :]
    at = (line * heads + head)[:, None] * C + column[None, :]
    q = tl.load(query + at, mask=inside, other=0.0)
    largest = tl.full([BH], float("-inf"), tl.float32)
    total = tl.zeros([BH], tl.float32)
    mixed = tl.zeros([BH, CB], tl.float32)
    # Key i of the window stands at position - W + 1 + i; the first `token` + 1 of them counted from the end are rows of
    # this call, the others are in the ring.
    for first in range(0, W, KEYS):
        key = first + tl.arange(0, KEYS)
        stands = position - (W - 1) + key
        own = (key < W) & (stands >= start)
        mask = own[:, None] & (column < C)[None, :]
        near = tl.load(rows + (line - (W - 1) + key)[:, None] * C + column[None, :], mask=mask, other=0.0)
        if token < W - 1 - first:
            before = (stands >= begin) & (stands < start) & (key < W)
            old = _ring_rows(ring, slot * W + tl.maximum(stands, 0) % W, before, C, CB, RING_PACKED)
            near = tl.where(own[:, None], near, old)
        there = (key < W) & (stands >= begin)
        largest, total, mixed = _take(q, near, there, largest, total, mixed, softmax_scale)
    if SB > 0:
        visible = (position + 1) // ratio
        every = tl.arange(0, SB)
        known = tl.load(topk + line * selected + every, mask=every < selected, other=-1)
        count = tl.max(tl.where((known >= 0) & (known < visible), every + 1, 0), 0)
        for first in range(0, count, KEYS):
            place = first + tl.arange(0, KEYS)
            group = tl.load(topk + line * selected + place, mask=place < selected, other=-1)
            there = (group >= 0) & (group < visible)
            far = _group_rows(pool, slot * capacity + tl.where(there, group, 0), there, C, CB, POOL_PACKED, ASM)
            largest, total, mixed = _take(q, far, there, largest, total, mixed, softmax_scale)
    bias = tl.load(sink + head, mask=head < heads, other=0.0)
    # The sink is in the denominator alone. With nothing to see this is 0 / 1.
    shift = tl.where(largest == float("-inf"), bias, largest)
    value = (mixed / (total + tl.exp(bias - shift))[:, None]).to(tl.bfloat16)
    tl.store(out + at, _undo_rope(value, position, frequency, C, CB, R), mask=inside)


@dataclass(frozen=True, slots=True)
class Tile:
    """A tile of attention: heads, keys at a time; warps and stages."""

    heads: int
    keys: int
    warps: int
    stages: int


def tile_for(heads: int, channels: int, shared: int) -> Tile:
    """The tile for rows of so many channels: queries and the stages' keys are in shared memory, sums in registers.

    Those of 512 channels are, within 3 %, the fastest that were measured on an H200 for 64, 32 and 16 heads, packed
    pools or not; of fewer channels none was.
    """
    wide = channels > 256
    if shared >= HOPPER_SHARED:
        if heads > 32:
            return Tile(64, 64 if wide else 128, 8, 2)
        return Tile(32, 128, 8, 1) if heads > 16 else Tile(16, 64, 4, 1)
    if shared >= ADA_SHARED:
        return Tile(16, 32, 4, 2)
    return Tile(16, 16 if wide else 32, 4, 1)


def attend_rows(
    step: Step,
    query: Tensor,
    window_kv: Tensor,
    window_rows: Tensor,
    rope: Tensor,
    sink: Tensor,
    *,
    compress_kv: Tensor | None = None,
    topk: Tensor | None = None,
    window: int,
    ratio: int,
    rope_dim: int,
) -> Tensor:
    """`attend` of the reference, for bf16 queries [B, T, H, C] of any B and T; bf16 [B, T, H, C].

    window_kv [slots, W, C] and compress_kv [slots, capacity, C] bf16, or uint8 packed rows; window_rows bf16 [B, T, C];
    rope f32 [rope_dim / 2]; sink f32 [H]; topk int64 [B, T, K], -1 = none.
    """
    batch, tokens, heads, channels = query.shape
    selection = topk is not None and compress_kv is not None and topk.shape[2] > 0 and compress_kv.shape[1] > 0
    pool = compress_kv if selection and compress_kv is not None else window_kv
    ids = topk if selection and topk is not None else step.slots
    selected = ids.shape[2] if selection else 0
    tile = tile_for(heads, channels, shared_memory(query.device))
    out = torch.empty_like(query)
    attend_token[(triton.cdiv(heads, tile.heads) * tokens, batch)](
        query, window_kv, window_rows, pool, ids, step.slots, step.positions, sink, rope, out,
        tokens, heads, pool.shape[1], selected, max(ratio, 1), step.window_begin, channels**-0.5,
        window, channels, power(channels), rope_dim, tile.heads, tile.keys, power(selected) if selected else 0,
        window_kv.dtype == torch.uint8, pool.dtype == torch.uint8, assembly(query.device),
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return out
