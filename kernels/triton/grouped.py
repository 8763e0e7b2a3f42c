"""The mixture of experts over many rows: pairs of token and expert sorted by expert, then products tile by tile.

A tile of pairs belongs to one expert. How many tiles an expert fills is known on the device only, so that the grid
covers the most there can be and tiles beyond the last one end at once. Weights stay packed until they are in the
product: a byte holds the columns 2k and 2k+1, so that x is stored with its even columns before its odd ones, and each
half meets its nibbles in a dot of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from dsv41c.kernels.reference.encodings import Packed, Stacked
from dsv41c.kernels.triton.common import swiglu
from dsv41c.kernels.triton.launch import assembly, power
from dsv41c.kernels.triton.matmul import matmul
from dsv41c.kernels.triton.target import HOPPER_SHARED, shared_memory
from dsv41c.kernels.triton.tiles import e8m0_bf16, fp4_tiles, spread


@triton.jit
def count_pairs(ids, counts, pairs, BLOCK: tl.constexpr):
    """Grid (experts): how many of the ids int64 [pairs] are this expert; counts int32 [experts]."""
    expert = tl.program_id(0)
    total = tl.zeros([BLOCK], tl.int32)
    for start in range(0, pairs, BLOCK):
        at = start + tl.arange(0, BLOCK)
        total += (tl.load(ids + at, mask=at < pairs, other=-1) == expert).to(tl.int32)
    tl.store(counts + expert, tl.sum(total, 0))


@triton.jit
def place_pairs(
    ids, counts, order, tile_expert, pairs, experts, tiles, BT: tl.constexpr, EB: tl.constexpr, BLOCK: tl.constexpr
):
    """Grid (experts): the pairs of this expert into its tiles of BT places, in order, then -1; and whose tile it is.

    order int32 [tiles * BT]; tile_expert int32 [tiles], -1 behind the last tile used. EB: the power of two from experts
    on.
    """
    expert = tl.program_id(0)
    every = tl.arange(0, EB)
    filled = (tl.load(counts + every, mask=every < experts, other=0) + BT - 1) // BT
    first = tl.sum(tl.where(every < expert, filled, 0), 0)
    last = first + tl.sum(tl.where(every == expert, filled, 0), 0)
    step = tl.arange(0, 64)
    for tile in range(first, last, 64):
        tl.store(tile_expert + tile + step, expert, mask=tile + step < last)
    if expert == experts - 1:
        for tile in range(last, tiles, 64):
            tl.store(tile_expert + tile + step, -1, mask=tile + step < tiles)
    place = first * BT
    for start in range(0, pairs, BLOCK):
        at = start + tl.arange(0, BLOCK)
        chosen = (tl.load(ids + at, mask=at < pairs, other=-1) == expert).to(tl.int32)
        tl.store(order + place + tl.cumsum(chosen, 0) - 1, at, mask=chosen == 1)
        place += tl.sum(chosen, 0)
    rest = place + tl.arange(0, BT)
    tl.store(order + rest, -1, mask=rest < last * BT)


@triton.jit
def _scales(scale, row, k, HALF, BK: tl.constexpr):
    """E8M0 bytes [rows, BK/16] of the packed columns from k on: 16 bytes of codes have one; 127 beyond the end."""
    group = k // 16 + tl.arange(0, BK // 16)
    return tl.load(scale + row[:, None] * (HALF // 16) + group[None, :], mask=(group * 16 < HALF)[None, :], other=127)


@triton.jit
def _halves(x_at, odd, k, HALF, BK: tl.constexpr, EVEN: tl.constexpr):
    """The even and the odd columns of BK packed columns of x, bf16 [BT, BK] each."""
    if EVEN:
        return tl.load(x_at), tl.load(x_at + odd)
    else:
        inside = (k + tl.arange(0, BK) < HALF)[None, :]
        return tl.load(x_at, mask=inside, other=0.0), tl.load(x_at + odd, mask=inside, other=0.0)


@triton.jit
def _codes(w_at, k, HALF, BK: tl.constexpr, EVEN: tl.constexpr):
    if EVEN:
        return tl.load(w_at)
    else:
        return tl.load(w_at, mask=(k + tl.arange(0, BK) < HALF)[None, :], other=0)


@triton.jit
def expert_hidden(
    x, w1, s1, w3, s3, order, tile_expert, shares, hidden, active, limit, D, INTER,
    LIMITED: tl.constexpr, BN: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr, EVEN: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """Grid (tiles of pairs * tiles of INTER): share * silu(min(w1 x, limit)) * clamp(w3 x), even columns first.

    x bf16 [n, D], even columns first; w1, w3 uint8 [E, INTER, D/2] with scales uint8 [E, INTER, D/32]; shares f32 [n *
    active]; hidden bf16 [places, INTER]. Places of no pair get whatever comes.
    """
    across = tl.cdiv(INTER, BN)
    tile = tl.program_id(0) // across
    expert = tl.load(tile_expert + tile)
    if expert >= 0:
        HALF = D // 2
        place = tile * BT + tl.arange(0, BT)
        pair = tl.maximum(tl.load(order + place), 0)
        # Even rows of the tile before its odd ones: the order in which the next product wants them.
        index = tl.arange(0, BN)
        base = tl.program_id(0) % across * BN
        row = base + index % (BN // 2) * 2 + index // (BN // 2)
        from_row = expert.to(tl.int64) * INTER + tl.minimum(row, INTER - 1)
        column = tl.arange(0, BK)
        x_at = x + (pair // active).to(tl.int64)[:, None] * D + column[None, :]
        w1_at = w1 + from_row[:, None] * HALF + column[None, :]
        w3_at = w3 + from_row[:, None] * HALF + column[None, :]
        gate = tl.zeros([BN, BT], tl.float32)
        up = tl.zeros([BN, BT], tl.float32)
        # Scales are too narrow for asynchronous copies: the next ones are loaded beside each product.
        f1 = _scales(s1, from_row, 0, HALF, BK)
        f3 = _scales(s3, from_row, 0, HALF, BK)
        for k in range(0, HALF, BK):
            even, odd = _halves(x_at, HALF, k, HALF, BK, EVEN)
            c1 = _codes(w1_at, k, HALF, BK, EVEN)
            c3 = _codes(w3_at, k, HALF, BK, EVEN)
            next1 = _scales(s1, from_row, k + BK, HALF, BK)
            next3 = _scales(s3, from_row, k + BK, HALF, BK)
            even = tl.trans(even)
            odd = tl.trans(odd)
            low, high = fp4_tiles(c1, spread(e8m0_bf16(f1), BN, BK // 16, 16), ASM)
            gate = tl.dot(low, even, gate)
            gate = tl.dot(high, odd, gate)
            low, high = fp4_tiles(c3, spread(e8m0_bf16(f3), BN, BK // 16, 16), ASM)
            up = tl.dot(low, even, up)
            up = tl.dot(high, odd, up)
            f1 = next1
            f3 = next3
            x_at += BK
            w1_at += BK
            w3_at += BK
        value = _rounded_swiglu(gate, up, limit, LIMITED) * tl.load(shares + pair)[None, :]
        at = hidden + place.to(tl.int64)[:, None] * INTER
        at += (index // (BN // 2) * (INTER // 2) + base // 2 + index % (BN // 2))[None, :]
        tl.store(at, tl.trans(value.to(tl.bfloat16)), mask=(row < INTER)[None, :])


@triton.jit
def _rounded_swiglu(gate, up, limit, LIMITED: tl.constexpr):
    """`swiglu` of products in fp32, which are rounded to bf16 first."""
    return swiglu(gate.to(tl.bfloat16).to(tl.float32), up.to(tl.bfloat16).to(tl.float32), limit, LIMITED)


@triton.jit
def expert_down(
    hidden, w2, s2, order, tile_expert, out, D, INTER,
    BN: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr, EVEN: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """Grid (tiles of pairs * tiles of D): out[pair] = w2 hidden[place], bf16 [n * active, D].

    hidden bf16 [places, INTER], even columns first; w2 uint8 [E, D, INTER/2] with scales uint8 [E, D, INTER/32].
    """
    across = tl.cdiv(D, BN)
    tile = tl.program_id(0) // across
    expert = tl.load(tile_expert + tile)
    if expert >= 0:
        HALF = INTER // 2
        place = tile * BT + tl.arange(0, BT)
        pair = tl.load(order + place)
        row = tl.program_id(0) % across * BN + tl.arange(0, BN)
        from_row = expert.to(tl.int64) * D + tl.minimum(row, D - 1)
        column = tl.arange(0, BK)
        x_at = hidden + place.to(tl.int64)[:, None] * INTER + column[None, :]
        w_at = w2 + from_row[:, None] * HALF + column[None, :]
        total = tl.zeros([BN, BT], tl.float32)
        factor = _scales(s2, from_row, 0, HALF, BK)
        for k in range(0, HALF, BK):
            even, odd = _halves(x_at, HALF, k, HALF, BK, EVEN)
            codes = _codes(w_at, k, HALF, BK, EVEN)
            following = _scales(s2, from_row, k + BK, HALF, BK)
            low, high = fp4_tiles(codes, spread(e8m0_bf16(factor), BN, BK // 16, 16), ASM)
            total = tl.dot(low, tl.trans(even), total)
            total = tl.dot(high, tl.trans(odd), total)
            factor = following
            x_at += BK
            w_at += BK
        at = out + pair.to(tl.int64)[:, None] * D + row[None, :]
        tl.store(at, tl.trans(total.to(tl.bfloat16)), mask=(pair >= 0)[:, None] & (row < D)[None, :])


@triton.jit
def sum_pairs(parts, ids, shared, out, D, A: tl.constexpr, AB: tl.constexpr, BLOCK: tl.constexpr, SHARED: tl.constexpr):
    """Grid (n, ceil(D/BLOCK)): the sum over a token's pairs by ascending expert, fp32; plus `shared` if SHARED.

    parts bf16 [n * A, D]; ids int64 [n, A]; shared bf16 [n, D]; out [n, D]. AB: the power of two from A on.
    """
    token = tl.program_id(0)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    place = tl.arange(0, AB)
    chosen = tl.load(ids + token * A + place, mask=place < A, other=1 << 40)
    before = (chosen[:, None] < chosen[None, :]) | (
        (chosen[:, None] == chosen[None, :]) & (place[:, None] < place[None, :])
    )
    rank = tl.sum(before.to(tl.int32), 0)
    total = tl.zeros([BLOCK], tl.float32)
    for turn in tl.static_range(A):
        pair = token.to(tl.int64) * A + tl.sum(tl.where(rank == turn, place, 0), 0)
        total += tl.load(parts + pair * D + column, mask=column < D, other=0.0).to(tl.float32)
    at = token.to(tl.int64) * D + column
    if SHARED:
        total += tl.load(shared + at, mask=column < D, other=0.0).to(tl.float32)
    tl.store(out + at, total.to(out.dtype.element_ty), mask=column < D)


@triton.jit
def swiglu_rows(gate, up, out, size, limit, LIMITED: tl.constexpr, BLOCK: tl.constexpr):
    """out[i] = silu(gate[i]) * up[i] with the experts' clamps; bf16 in and out, fp32 inside."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    value = _rounded_swiglu(tl.load(gate + at, mask=at < size), tl.load(up + at, mask=at < size), limit, LIMITED)
    tl.store(out + at, value.to(tl.bfloat16), mask=at < size)


@dataclass(frozen=True, slots=True)
class Tile:
    """A tile of a product of experts: rows of the weight, pairs, packed columns at a time; warps and stages."""

    rows: int
    pairs: int
    columns: int
    warps: int
    stages: int


def tiles_for(pairs: int, experts: int, shared: int) -> tuple[Tile, Tile]:
    """The tiles of w1 and w3, and of w2, for so many pairs: about as many places as an expert has pairs on average.

    Those of 128 places are the fastest that were measured on an H200: 8192 rows, 128 experts, Flash widths.
    """
    places = min(128, max(16, power(max(1, pairs // experts))))
    if shared < HOPPER_SHARED:  # sm_89 and AMD: two stages of 24 KiB at most
        tile = Tile(64, min(places, 64), 64, 4, 2)
        return tile, tile
    if places <= 32:
        tile = Tile(64, places, 128, 4, 3)
        return tile, tile
    if places <= 64:
        tile = Tile(128, places, 64, 8, 3)
        return tile, tile
    return Tile(64, places, 32, 4, 4), Tile(128, places, 32, 8, 3)


def expert_pairs(
    halves: Tensor,
    expert_weights: Tensor,
    expert_ids: Tensor,
    w1: Stacked,
    w2: Stacked,
    w3: Stacked,
    limit: float,
) -> Tensor:
    """What each pair of token and expert adds, bf16 [n * A, D]; `halves` bf16 [n, D], even columns first."""
    (n, dim), active, (experts, inter, _) = halves.shape, expert_ids.shape[1], w1.codes.shape
    pairs, device, asm = n * active, halves.device, assembly(halves.device)
    tile, down = tiles_for(pairs, experts, shared_memory(device))
    tiles = pairs // tile.pairs + min(experts, pairs)
    order, tile_expert = _plan(expert_ids, experts, tiles, tile.pairs)
    hidden = torch.empty(tiles * tile.pairs, inter, dtype=torch.bfloat16, device=device)
    codes = [weight.codes.view(torch.uint8) for weight in (w1, w2, w3)]
    scale = [weight.scale.view(torch.uint8) for weight in (w1, w2, w3)]
    expert_hidden[(tiles * triton.cdiv(inter, tile.rows),)](
        halves, codes[0], scale[0], codes[2], scale[2], order, tile_expert, expert_weights, hidden,
        active, limit, dim, inter, limit > 0, tile.rows, tile.pairs, tile.columns, dim // 2 % tile.columns == 0, asm,
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    out = torch.empty(pairs, dim, dtype=torch.bfloat16, device=device)
    expert_down[(tiles * triton.cdiv(dim, down.rows),)](
        hidden, codes[1], scale[1], order, tile_expert, out, dim, inter,
        down.rows, down.pairs, down.columns, inter // 2 % down.columns == 0, asm,
        num_warps=down.warps, num_stages=down.stages,
    )  # fmt: skip
    return out


def _plan(ids: Tensor, experts: int, tiles: int, places: int) -> tuple[Tensor, Tensor]:
    """The pairs by expert in tiles, int32 [tiles * places], and the expert of each tile, int32 [tiles]; -1 = none."""
    pairs, device = ids.numel(), ids.device
    block = min(2048, power(pairs))
    counts = torch.empty(experts, dtype=torch.int32, device=device)
    order = torch.empty(tiles * places, dtype=torch.int32, device=device)
    tile_expert = torch.empty(tiles, dtype=torch.int32, device=device)
    count_pairs[(experts,)](ids, counts, pairs, block)
    place_pairs[(experts,)](ids, counts, order, tile_expert, pairs, experts, tiles, places, power(experts), block)
    return order, tile_expert


def add_pairs(parts: Tensor, ids: Tensor, shared: Tensor | None) -> Tensor:
    """The sum over each token's pairs: f32 [n, D]; with `shared` bf16 [n, D] that is added too, and rounded to bf16."""
    (n, active), dim = ids.shape, parts.shape[1]
    kind = torch.float32 if shared is None else torch.bfloat16
    out = torch.empty(n, dim, dtype=kind, device=parts.device)
    block = min(1024, power(dim))
    sum_pairs[(n, triton.cdiv(dim, block))](
        parts, ids, parts if shared is None else shared, out, dim, active, power(active), block, shared is not None
    )
    return out


def shared_hidden(x: Tensor, w1: Packed | Tensor, w3: Packed | Tensor, limit: float) -> Tensor:
    """silu(w1 x) * w3 x with the experts' clamps, bf16 [n, inter]."""
    gate, up = matmul(x, w1, x.dtype), matmul(x, w3, x.dtype)
    out = torch.empty_like(gate)
    swiglu_rows[(triton.cdiv(gate.numel(), 1024),)](gate, up, out, gate.numel(), limit, limit > 0, 1024)
    return out
