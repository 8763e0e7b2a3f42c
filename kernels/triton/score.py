"""Scores of groups by the indexer: queries times keys, weighted over heads; and selections made of them at once.

Scores are bf16 numbers. For selections they are stored as 16-bit keys that order as the scores do: see `order16`.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from dsv41c.kernels.triton.common import e2m1_value, e8m0_value

HIDDEN16: tl.constexpr = tl.constexpr(0x007F)  # the key of -inf
INFINITE16: tl.constexpr = tl.constexpr(0xFF80)  # the key of +inf


@triton.jit
def order16(bits):
    """Keys int32 0 to 0xFFFF that order as bf16 numbers of these bits, int32; -0 is 0, and NaN above all."""
    bits = tl.where(bits == 0x8000, 0, bits)
    key = tl.where(bits >= 0x8000, 0xFFFF - bits, bits | 0x8000)
    return tl.where((bits & 0x7FFF) > 0x7F80, 0xFFFF, key)


@triton.jit
def load_query(query, C: tl.constexpr, H: tl.constexpr, HP: tl.constexpr, FIRST: tl.constexpr, STEP: tl.constexpr):
    """Channels FIRST, FIRST + STEP, … of a token's query [H, C], as a right operand [C / STEP, HP]; no head: zeros."""
    channel = FIRST + STEP * tl.arange(0, C // STEP)
    head = tl.arange(0, HP)
    return tl.load(query + head[None, :] * C + channel[:, None], mask=(head < H)[None, :], other=0.0)


@triton.jit
def load_halves(keys, number, inside, C: tl.constexpr, KIND: tl.constexpr):
    """Even and odd channels [BN, C/2] of packed key rows `number`, where `inside`; zeros elsewhere."""
    WIDTH: tl.constexpr = C // 2 + C // 32
    byte = tl.arange(0, C // 2)
    row = keys + number.to(tl.int64)[:, None] * WIDTH
    codes = tl.load(row + byte[None, :], mask=inside[:, None], other=0).to(tl.int32)
    scale = e8m0_value(tl.load(row + C // 2 + (byte // 16)[None, :], mask=inside[:, None], other=0))
    return (e2m1_value(codes & 15) * scale).to(KIND), (e2m1_value(codes >> 4) * scale).to(KIND)


@triton.jit
def weighted(dots, weight, KIND: tl.constexpr):
    """Scores [BN] f32 of dots [BN, heads]: weight * relu(dot), summed; dots, products and sum rounded to KIND."""
    dots = dots.to(KIND).to(tl.float32)
    product = (tl.where(dots < 0.0, 0.0, dots) * weight[None, :]).to(KIND).to(tl.float32)
    return tl.sum(product, 1).to(KIND)


@triton.jit
def load_keys(keys, number, inside, C: tl.constexpr, PACKED: tl.constexpr, KIND: tl.constexpr):
    """Key rows `number`, where `inside`: even and odd channels where packed, else all of them, twice."""
    if PACKED:
        first, second = load_halves(keys, number, inside, C, KIND)
    else:
        place = keys + number.to(tl.int64)[:, None] * C + tl.arange(0, C)[None, :]
        first = tl.load(place, mask=inside[:, None], other=0.0)
        second = first
    return first, second


@triton.jit
def scores_of(
    first, second, query, weight, H: tl.constexpr, HP: tl.constexpr, C: tl.constexpr, PACKED: tl.constexpr
):  # fmt: skip
    """Scores [BN] of key rows by `load_keys` for one token, in the query's dtype."""
    KIND: tl.constexpr = query.dtype.element_ty
    head = tl.arange(0, HP)
    weights = tl.load(weight + head, mask=head < H, other=0.0).to(tl.float32)
    if PACKED:
        dots = tl.dot(first, load_query(query, C, H, HP, 0, 2))
        dots = tl.dot(second, load_query(query, C, H, HP, 1, 2), dots)
    else:
        dots = tl.dot(first, load_query(query, C, H, HP, 0, 1))
    return weighted(dots, weights, KIND)


@triton.jit
def visible(candidates, number, count, BLOCK_SIZE: tl.constexpr, MASKED: tl.constexpr):
    """Which of the groups `number` are among the first `count`, and with MASKED in a candidate block."""
    seen = number < count
    if MASKED:
        seen = seen & (tl.load(candidates + number // BLOCK_SIZE, mask=seen, other=0).to(tl.int32) != 0)
    return seen


@triton.jit
def score_tiles(
    query, weight, keys, candidates, slots, positions, out, capacity, start, tokens, rows, count, blocks,
    H: tl.constexpr, HP: tl.constexpr, C: tl.constexpr, WIDTH: tl.constexpr, RATIO: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, MASKED: tl.constexpr, PACKED: tl.constexpr, KEYS: tl.constexpr,
    BN: tl.constexpr, BT: tl.constexpr,
):  # fmt: skip
    """Grid (count / BN, rows / BT, B): scores of BN groups for BT tokens, from token `start` of a call of `tokens`.

    query [B, tokens, H, C]; weight [B, tokens, H]; keys [slots, capacity, WIDTH]; candidates bool
    [B, tokens, blocks]. out [B, rows, count] is f32, -inf where hidden; with KEYS int16 by `order16`, and nothing is
    stored past what the newest of the BT tokens sees.
    """
    session = tl.program_id(2).to(tl.int64)
    first = tl.program_id(1) * BT
    end = tl.minimum(first + BT, rows)
    number = tl.program_id(0) * BN + tl.arange(0, BN)
    base = tl.load(positions + session) + start + 1
    newest = tl.minimum((base + end - 1) // RATIO, count)
    own = keys + tl.load(slots + session) * capacity * WIDTH
    KIND: tl.constexpr = query.dtype.element_ty
    if tl.program_id(0) * BN < newest:
        even, odd = load_keys(own, number, number < newest, C, PACKED, KIND)
        for i in range(first, end):
            token = session * tokens + start + i
            seen = visible(candidates + token * blocks, number, (base + i) // RATIO, BLOCK_SIZE, MASKED)
            value = scores_of(even, odd, query + token * (H * C), weight + token * H, H, HP, C, PACKED)
            place = out + (session * rows + i) * count + number
            if KEYS:
                key = order16(value.to(tl.int16, bitcast=True).to(tl.int32) & 0xFFFF)
                tl.store(place, tl.where(seen, key, HIDDEN16).to(tl.int16), mask=number < count)
            else:
                tl.store(place, tl.where(seen, value.to(tl.float32), float("-inf")), mask=number < count)
    elif not KEYS:
        for i in range(first, end):
            hidden = tl.zeros([BN], tl.float32) + float("-inf")
            tl.store(out + (session * rows + i) * count + number, hidden, mask=number < count)


@triton.jit
def chunk_of(positions, session, count, RATIO: tl.constexpr, LEAST: tl.constexpr):
    """How many groups a session's one token sees, and how many a chunk, one of program_id(0), takes of them.

    A chunk takes a multiple of LEAST groups; the chunks behind the last visible group are empty.
    """
    seen = tl.minimum((tl.load(positions + session) + 1) // RATIO, count).to(tl.int32)
    return seen, tl.maximum(tl.cdiv(seen, tl.num_programs(0) * LEAST), 1) * LEAST


@triton.jit
def score_chunk(
    query, weight, keys, candidates, slots, positions, out, capacity, count, blocks,
    H: tl.constexpr, HP: tl.constexpr, C: tl.constexpr, WIDTH: tl.constexpr, RATIO: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, MASKED: tl.constexpr, PACKED: tl.constexpr, BN: tl.constexpr, LEAST: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Keys int16 by `order16` of a chunk of the groups that a session's one token sees, to out [B, count].

    For a program of grid (chunks, B); arguments as those of `score_tiles`.
    """
    session = tl.program_id(1)
    KIND: tl.constexpr = query.dtype.element_ty
    groups, size = chunk_of(positions, session, count, RATIO, LEAST)
    begin = tl.program_id(0) * size
    end = tl.minimum(begin + size, groups)
    own = keys + tl.load(slots + session) * capacity * WIDTH
    for start in tl.range(begin, end, BN, num_stages=STAGES):
        number = start + tl.arange(0, BN)
        seen = visible(candidates + session * blocks, number, end, BLOCK_SIZE, MASKED)
        even, odd = load_keys(own, number, seen, C, PACKED, KIND)
        value = scores_of(even, odd, query + session * (H * C), weight + session * H, H, HP, C, PACKED)
        key = order16(value.to(tl.int16, bitcast=True).to(tl.int32) & 0xFFFF)
        place = out + session.to(tl.int64) * count + number
        tl.store(place, tl.where(seen, key, HIDDEN16).to(tl.int16), mask=number < end)


def shape_of_tiles(index_query: Tensor, index_k: Tensor, tokens: int) -> dict[str, Any]:
    """The arguments of `score_tiles` that follow from shapes alone."""
    heads, channels = index_query.shape[2:]
    return {
        "H": heads,
        "HP": max(16, triton.next_power_of_2(heads)),
        "C": channels,
        "WIDTH": index_k.shape[2],
        "PACKED": index_k.dtype == torch.uint8,
        "BN": 128,
        "BT": 1 if tokens == 1 else 16,
    }
