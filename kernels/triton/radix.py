"""The k largest of a row by radix: 8 bits of ordering keys a pass, ties to the lower index, indices ascending.

Keys are int32 by `order16`, or int64 by `order32`; -1 stands for what is not there. What a key of -inf or less has is
never taken. A selection is a limit and a rest: all keys above the limit, and the first `rest` of those equal to it.
"""

from __future__ import annotations

import triton
import triton.language as tl

from dsv41c.kernels.triton.score import HIDDEN16, INFINITE16

HIDDEN32: tl.constexpr = tl.constexpr(0x007FFFFF)  # the key of -inf
INFINITE32: tl.constexpr = tl.constexpr(0xFF800000)  # the key of +inf


@triton.jit
def order32(value):
    """Keys int64 0 to 2^32 - 1 that order as f32 values do; -0 is 0, and NaN above all."""
    bits = value.to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF
    bits = tl.where(bits == 0x80000000, 0, bits)
    key = tl.where(bits >= 0x80000000, 0xFFFFFFFF - bits, bits | 0x80000000)
    return tl.where((bits & 0x7FFFFFFF) > 0x7F800000, 0xFFFFFFFF, key)


@triton.jit
def load_keys_of(scores, number, inside, WIDE: tl.constexpr):
    """Keys of scores at `number`, where `inside`; -1 elsewhere. WIDE: scores are f32; else int16 keys as stored."""
    if WIDE:
        key = order32(tl.load(scores + number, mask=inside, other=0.0))
    else:
        key = tl.load(scores + number, mask=inside, other=0).to(tl.int32) & 0xFFFF
    return tl.where(inside, key, -1)


@triton.jit
def item_keys(scores, item, end, count, BLOCKS: tl.constexpr, SIZE: tl.constexpr, WIDE: tl.constexpr):
    """Keys of items below `end`: of groups, or with BLOCKS of blocks of SIZE groups, the newest visible one pinned.

    `count` groups are visible. A block's key is that of its best group; the newest block's that of +inf.
    """
    if BLOCKS:
        step = tl.arange(0, triton.next_power_of_2(SIZE))
        number = item[:, None] * SIZE + step[None, :]
        inside = (item < end)[:, None] & (step < SIZE)[None, :] & (number < count)
        key = tl.max(load_keys_of(scores, number, inside, WIDE), 1)
        return tl.where((item < end) & (item == (count - 1) // SIZE), INFINITE32 if WIDE else INFINITE16, key)
    else:
        return load_keys_of(scores, item, item < end, WIDE)


@triton.jit
def find_bin(counts, wanted):
    """The highest of 256 bins from which on there are at least `wanted`, or bin 0; and how many are above it."""
    above = tl.sum(counts, 0) - tl.cumsum(counts, 0)
    found = tl.maximum(tl.sum((above + counts >= wanted).to(tl.int32), 0) - 1, 0)
    return found, tl.sum(tl.where(tl.arange(0, 256) > found, counts, 0), 0)


@triton.jit
def find_limit(
    scores, items, count, wanted, BLOCKS: tl.constexpr, SIZE: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """The limit and rest of the `wanted` largest of `items` items of a row."""
    DIGITS: tl.constexpr = 4 if WIDE else 2
    limit = tl.zeros([], tl.int64 if WIDE else tl.int32)
    above = tl.zeros([], tl.int32)
    for digit in tl.static_range(DIGITS):
        shift = 8 * (DIGITS - 1 - digit)
        counts = tl.zeros([256], tl.int32)
        for start in range(0, items, BLOCK):
            key = item_keys(scores, start + tl.arange(0, BLOCK), items, count, BLOCKS, SIZE, WIDE)
            match = (key >= 0) & ((key >> shift >> 8) == limit)
            counts += tl.histogram(((key >> shift) & 255).to(tl.int32), 256, mask=match)
        found, more = find_bin(counts, wanted - above)
        above += more
        limit = limit * 256 + found
    hidden: tl.constexpr = HIDDEN32 if WIDE else HIDDEN16
    return tl.maximum(limit, hidden), tl.where(limit > hidden, wanted - above, 0)


@triton.jit
def take(key, limit, rest, above, ties):
    """Which keys of a tile a selection takes, and their places in it; then `above` and `ties` behind this tile.

    `above` and `ties` count the keys above and at the limit in front of the tile. A tile has at most 16384 keys.
    """
    more = (key > limit).to(tl.int32)
    same = (key == limit).to(tl.int32)
    both = more + (same << 16)
    before = tl.cumsum(both, 0) - both
    rank = ties + (before >> 16)
    place = above + (before & 0xFFFF) + tl.minimum(rest, rank)
    total = tl.sum(both, 0)
    return (more > 0) | ((same > 0) & (rank < rest)), place, above + (total & 0xFFFF), ties + (total >> 16)


@triton.jit
def fill(out, begin, end, value, BLOCK: tl.constexpr):
    """Store a value at out[begin : end]."""
    for start in range(begin, end, BLOCK):
        place = start + tl.arange(0, BLOCK)
        tl.store(out + place, (tl.zeros([BLOCK], tl.int32) + value).to(out.dtype.element_ty), mask=place < end)


@triton.jit
def select_rows(
    scores, positions, out, start, tokens, rows, count, wanted, width,
    RATIO: tl.constexpr, STEPPED: tl.constexpr, BLOCKS: tl.constexpr, SIZE: tl.constexpr, WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Grid (rows, B): the `wanted` best of a row of scores [B, rows, count] of the tokens from `start` on.

    STEPPED: only what a token sees is read; else all. Without BLOCKS out is int64 [B, tokens, width]: groups,
    ascending, then -1. With BLOCKS it is uint8: 1 for blocks of SIZE groups that are kept, else 0.
    """
    row = tl.program_id(0)
    session = tl.program_id(1).to(tl.int64)
    seen = count
    if STEPPED:
        seen = tl.minimum((tl.load(positions + session) + start + row + 1) // RATIO, count).to(tl.int32)
    items = tl.cdiv(seen, SIZE) if BLOCKS else seen
    scores += (session * rows + row) * count
    out += (session * tokens + start + row) * width
    limit, rest = find_limit(scores, items, seen, wanted, BLOCKS, SIZE, WIDE, BLOCK)
    above = tl.zeros([], tl.int32)
    ties = tl.zeros([], tl.int32)
    for first in range(0, items, BLOCK):
        item = first + tl.arange(0, BLOCK)
        key = item_keys(scores, item, items, seen, BLOCKS, SIZE, WIDE)
        taken, place, above, ties = take(key, limit, rest, above, ties)
        if BLOCKS:
            tl.store(out + item, taken.to(tl.uint8), mask=item < items)
        else:
            tl.store(out + place, item.to(tl.int64), mask=taken)
    fill(out, items if BLOCKS else above + tl.minimum(rest, ties), width, 0 if BLOCKS else -1, 256)
