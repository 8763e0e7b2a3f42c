"""Attention at decode: projections as rows of matrices, and one softmax over window and selection, split by keys."""

from __future__ import annotations

import triton
import triton.language as tl

from dsv41c.kernels.triton.boundary import finish_mix, load_streams, put_streams
from dsv41c.kernels.triton.common import (
    e2m1_value,
    e4m3_bits,
    e4m3_value,
    e8m0_value,
    fp8_scale,
    within,
)
from dsv41c.kernels.triton.exchange import exchanged, next_exchange
from dsv41c.kernels.triton.planes import rows8, store_all_planes8, store_vector8
from dsv41c.kernels.triton.rows import rope_pairs, rotated, window_pairs


@triton.jit
def input_rows(
    wq_a, wq_a_scale, wkv, wkv_scale, vectors, raw, batch,
    QL: tl.constexpr, C: tl.constexpr, D: tl.constexpr, BM: tl.constexpr, T: tl.constexpr, U: tl.constexpr,
    UNROLL: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """Grid (QL/BM + C/BM, B/T upward): raw f32 [B, QL + C], wq_a x, then wkv x. vectors as `rows8` takes them."""
    first = tl.program_id(0) * BM
    token = tl.program_id(1) * T
    x = vectors + token * D
    if first < QL:
        value = rows8(wq_a, wq_a_scale, x, D, batch - token, first, QL, D, BM, T, U, UNROLL, ASM)
    else:
        value = rows8(wkv, wkv_scale, x, D, batch - token, first - QL, C, D, BM, T, U, UNROLL, ASM)
    tokens = tl.minimum(token + tl.arange(0, T), batch - 1)
    tl.store(raw + tokens[None, :] * (QL + C) + (first + tl.arange(0, BM))[:, None], value)


@triton.jit
def latents(
    raw, q_norm, kv_norm, frequency, positions, latent, planes, window_rows, q_eps, kv_eps,
    QL: tl.constexpr, C: tl.constexpr, R: tl.constexpr, QB: tl.constexpr, FAKE: tl.constexpr,
    PLANES: tl.constexpr,
):  # fmt: skip
    """Grid (2, B): the query latent normed; the window row (norm, rope, fake FP8).

    latent [B, QL] and with PLANES its planes8; window_rows [B, C]. QB: the power of two from QL on.
    """
    token = tl.program_id(1)
    own = raw + token * (QL + C)
    if tl.program_id(0) == 0:
        _query_latent(own, q_norm, latent + token * QL, planes + token * QL, q_eps, QL, QB, PLANES)
    else:
        position = tl.load(positions + token)
        _window_row(own + QL, kv_norm, frequency, position, window_rows + token * C, kv_eps, C, R, FAKE)


@triton.jit
def _query_latent(raw, weight, latent, planes, eps, QL: tl.constexpr, QB: tl.constexpr, PLANES: tl.constexpr):
    column = tl.arange(0, QB)
    inside = column < QL
    kind = latent.dtype.element_ty
    x = tl.load(raw + column, mask=inside, other=0.0).to(kind).to(tl.float32)
    scale = 1.0 / tl.sqrt_rn(tl.sum(x * x, 0) / QL + eps)
    y = (x * scale * tl.load(weight + column, mask=inside, other=0.0)).to(kind)
    tl.store(latent + column, y, mask=inside)
    if PLANES:
        store_all_planes8(planes, y.to(tl.float32), QL, QB)


@triton.jit
def _window_row(raw, weight, frequency, position, target, eps, C: tl.constexpr, R: tl.constexpr, FAKE: tl.constexpr):
    pair = tl.arange(0, C // 2)
    kind: tl.constexpr = target.dtype.element_ty
    even = tl.load(raw + 2 * pair).to(kind).to(tl.float32)
    odd = tl.load(raw + 2 * pair + 1).to(kind).to(tl.float32)
    even, odd = window_pairs(even, odd, weight, position, frequency, pair, eps, C, C, R, FAKE, kind)
    tl.store(target + 2 * pair, even.to(kind))
    tl.store(target + 2 * pair + 1, odd.to(kind))


@triton.jit
def query_rows(
    wq_b, wq_b_scale, vectors, frequency, positions, query,
    sums, mix_scale, mix_base, pre, post, comb, mix_norm_eps, mix_eps,
    M, QL: tl.constexpr, C: tl.constexpr, R: tl.constexpr, BM: tl.constexpr, T: tl.constexpr, U: tl.constexpr,
    UNROLL: tl.constexpr, ASM: tl.constexpr,
    BATCH: tl.constexpr, D: tl.constexpr, S: tl.constexpr, SLICES: tl.constexpr, ITERATIONS: tl.constexpr,
):  # fmt: skip
    """Grid (B + blocks * M/BM,): the mixing of each token finished; then, for every block of T tokens, BM rows of wq_b
    times the latents, with rope: query [B, M], M = heads * C. BM is even.
    """
    program = tl.program_id(0)
    if program < BATCH:
        finish_mix(program, sums, mix_scale, mix_base, pre, post, comb, mix_norm_eps, mix_eps, D, S, SLICES, ITERATIONS)
    else:
        blocks = M // BM
        first = (program - BATCH) % blocks * BM
        token = (program - BATCH) // blocks * T
        own = vectors + token * QL
        value = rows8(wq_b, wq_b_scale, own, QL, BATCH - token, first, M, QL, BM, T, U, UNROLL, ASM)
        kind: tl.constexpr = query.dtype.element_ty
        value = value.to(kind).to(tl.float32)
        even, odd = tl.split(tl.trans(tl.reshape(value, [BM // 2, 2, T]), 0, 2, 1))
        tokens = tl.minimum(token + tl.arange(0, T), BATCH - 1)
        row = first + 2 * tl.arange(0, BM // 2)
        if first % C + BM > C - R:
            position = tl.load(positions + tokens)[None, :]
            even, odd = rope_pairs(even, odd, position, frequency, (row % C)[:, None], C, R, kind)
        at = query + tokens[None, :] * M + row[:, None]
        tl.store(at, even.to(kind))
        tl.store(at + 1, odd.to(kind))


@triton.jit
def _window(pool, rows, slot, token, position, key, there, W: tl.constexpr, C: tl.constexpr, PACKED: tl.constexpr):
    """Rows of window keys `key`, counted from position - W + 1, f32 [KEYS, C]; the last is this call's own."""
    column = tl.arange(0, C)
    stored = position - (W - 1) + key
    own = key == W - 1
    row = (slot * W + tl.maximum(stored, 0) % W)[:, None]
    known = (there & (key < W - 1))[:, None]
    if PACKED:
        BYTES: tl.constexpr = C + C // 32
        codes = tl.load(pool + row * BYTES + column[None, :], mask=known, other=0)
        scale = tl.load(pool + row * BYTES + C + column[None, :] // 32, mask=known, other=127)
        value = e4m3_value(codes) * e8m0_value(scale)
    else:
        value = tl.load(pool + row * C + column[None, :], mask=known, other=0.0).to(tl.float32)
    current = tl.load(rows + token * C + column[None, :], mask=own[:, None], other=0.0).to(tl.float32)
    return value + current


@triton.jit
def _selected(pool, slot, group, there, G, C: tl.constexpr, PACKED: tl.constexpr):
    """Rows of the compressed KV, f32 [KEYS, C]; G is the pool's capacity."""
    column = tl.arange(0, C)
    row = (slot * G + tl.maximum(group, 0))[:, None]
    if PACKED:
        BYTES: tl.constexpr = C // 2 + C // 16
        byte = tl.load(pool + row * BYTES + column[None, :] // 2, mask=there[:, None], other=0).to(tl.int32)
        scale = tl.load(pool + row * BYTES + C // 2 + column[None, :] // 16, mask=there[:, None], other=0)
        return e2m1_value((byte >> (column % 2 * 4)[None, :]) & 15) * e4m3_value(scale)
    else:
        return tl.load(pool + row * C + column[None, :], mask=there[:, None], other=0.0).to(tl.float32)


@triton.jit
def attend_split(
    query, window_kv, window_rows, compress_kv, topk, slots, positions, best, weight, value,
    H, G, K, ratio, softmax_scale,
    SPLITS: tl.constexpr, W: tl.constexpr, C: tl.constexpr, HEADS: tl.constexpr, KEYS: tl.constexpr,
    PACKED: tl.constexpr, SELECTED: tl.constexpr,
):  # fmt: skip
    """Grid (SPLITS, heads/HEADS, B): a softmax over KEYS keys, the window's splits before the selection's.

    best, weight f32 [B, SPLITS, H] and value f32 [B, SPLITS, H, C] are the largest score, the sum of exponentials and
    the weighted sum of the split. query [B, H, C]; window_kv [slots, W, C]; compress_kv [slots, G, C]; topk int64
    [B, K].
    """
    split = tl.program_id(0)
    token = tl.program_id(2)
    slot = tl.load(slots + token)
    position = tl.load(positions + token)
    near: tl.constexpr = (W + KEYS - 1) // KEYS
    key = split * KEYS + tl.arange(0, KEYS)
    if split < near:
        there = (key < W) & (position - (W - 1) + key >= 0)
        rows = _window(window_kv, window_rows, slot, token, position, key, there, W, C, PACKED)
    else:
        if SELECTED:
            place = key - near * KEYS
            group = tl.load(topk + token * K + place, mask=place < K, other=-1)
            there = (group >= 0) & (group < (position + 1) // ratio)
            rows = _selected(compress_kv, slot, group, there, G, C, PACKED)
        else:
            there = key < 0
            rows = tl.zeros([KEYS, C], tl.float32)
    _softmax(query, rows, there, best, weight, value, token, split, H, softmax_scale, SPLITS, C, HEADS)


@triton.jit
def _softmax(
    query, rows, there, best, weight, value, token, split, H, softmax_scale,
    SPLITS: tl.constexpr, C: tl.constexpr, HEADS: tl.constexpr,
):  # fmt: skip
    """Scores of HEADS queries with rows f32 [KEYS, C], keys and values in one, where `there`; the split's softmax."""
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    column = tl.arange(0, C)
    kind = query.dtype.element_ty
    rows = rows.to(kind)
    q = tl.load(query + (token * H + head)[:, None] * C + column[None, :], mask=(head < H)[:, None], other=0.0)
    score = tl.dot(q, tl.trans(rows), out_dtype=tl.float32) * softmax_scale
    score = tl.where(there[None, :], score, float("-inf"))
    largest = tl.max(score, 1)
    shift = tl.where(largest == float("-inf"), 0.0, largest)
    part = tl.exp(score - shift[:, None])
    at = (token * SPLITS + split) * H + head
    tl.store(best + at, largest, mask=head < H)
    tl.store(weight + at, tl.sum(part, 1), mask=head < H)
    mixed = tl.dot(part.to(kind), rows, out_dtype=tl.float32)
    tl.store(value + at[:, None] * C + column[None, :], mixed, mask=(head < H)[:, None])


@triton.jit
def attend_join(
    best, weight, value, sink, frequency, positions, slots, vectors, window_rows, window_kv, sequence,
    H, SPLITS: tl.constexpr, W: tl.constexpr, C: tl.constexpr, R: tl.constexpr, GROUP: tl.constexpr,
    PACKED: tl.constexpr, KIND: tl.constexpr, SHARDS: tl.constexpr,
):  # fmt: skip
    """Grid (H + 1, B): joins the splits of a head in order, undoes the rope; the last program stores the ring's row.

    vectors: for `rows8`, of GROUP * C columns for each group of GROUP heads. With SHARDS above 1 the exchange that ends
    the sublayer is counted.
    """
    head = tl.program_id(0)
    token = tl.program_id(1)
    position = tl.load(positions + token)
    if head == H:
        store_ring(window_rows + token * C, window_kv, tl.load(slots + token) * W + position % W, C, PACKED)
        next_exchange(sequence, token == 0, SHARDS)
    else:
        pair = tl.arange(0, C // 2)
        bias = tl.load(sink + head)
        largest = float("-inf")
        for split in tl.static_range(SPLITS):
            largest = tl.maximum(largest, tl.load(best + (token * SPLITS + split) * H + head))
        largest = tl.where(largest == float("-inf"), bias, largest)
        even = tl.zeros([C // 2], tl.float32)
        odd = tl.zeros([C // 2], tl.float32)
        total = tl.exp(bias - largest)
        for split in tl.static_range(SPLITS):
            at = (token * SPLITS + split) * H + head
            factor = tl.exp(tl.load(best + at) - largest)
            total += factor * tl.load(weight + at)
            even += factor * tl.load(value + at * C + 2 * pair)
            odd += factor * tl.load(value + at * C + 2 * pair + 1)
        even = (even / total).to(KIND).to(tl.float32)
        odd = (odd / total).to(KIND).to(tl.float32)
        even, odd = rotated(even, odd, position, frequency, pair - (C - R) // 2, R, True)
        own = vectors + (token * H + head // GROUP * GROUP) * C
        first = head % GROUP * C
        everywhere = pair >= 0
        store_vector8(own, first + 2 * pair, even.to(KIND).to(tl.float32), everywhere, GROUP * C)
        store_vector8(own, first + 2 * pair + 1, odd.to(KIND).to(tl.float32), everywhere, GROUP * C)


@triton.jit
def store_ring(row, window_kv, place, C: tl.constexpr, PACKED: tl.constexpr):
    """Write one window row into its place of the ring, packed where the ring is."""
    if PACKED:
        BYTES: tl.constexpr = C + C // 32
        block = tl.arange(0, C // 32)
        column = block[:, None] * 32 + tl.arange(0, 32)[None, :]
        x = tl.load(row + column).to(tl.float32)
        # As integers, magnitudes keep their order and NaN is the largest. 2^120 is the largest scale that `pack` uses.
        largest = tl.max(x.to(tl.int32, bitcast=True) & 0x7FFFFFFF, 1).to(tl.float32, bitcast=True)
        scale = tl.minimum(fp8_scale(largest), 1.329227995784916e36)
        codes = e4m3_bits(within(x / scale[:, None], 448.0))
        tl.store(window_kv + place * BYTES + column, codes.to(tl.uint8))
        exponent = scale.to(tl.int32, bitcast=True) >> 23
        tl.store(window_kv + place * BYTES + C + block, exponent.to(tl.uint8))
    else:
        column = tl.arange(0, C)
        value = tl.load(row + column)
        tl.store(window_kv + place * C + column, value.to(window_kv.dtype.element_ty))


@triton.jit
def low_rank_rows(
    wo_a, wo_a_scale, vectors, out, batch, M, GROUPS: tl.constexpr,
    N: tl.constexpr, RANK: tl.constexpr, WIDTH: tl.constexpr, BM: tl.constexpr, T: tl.constexpr, U: tl.constexpr,
    UNROLL: tl.constexpr, ASM: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    """Grid (M/BM, B/T upward): rows of the block-diagonal wo_a [M, N], RANK a group, times vectors [B, GROUPS, N].

    out: vectors [B, WIDTH] for `rows8`, WIDTH = M.
    """
    first = tl.program_id(0) * BM
    start = tl.program_id(1) * T
    own = vectors + start * GROUPS * N + first // RANK * (N // 2 if T == 1 else N)  # planes are pairs
    value = rows8(wo_a, wo_a_scale, own, GROUPS * N, batch - start, first, M, N, BM, T, U, UNROLL, ASM)
    row = (first + tl.arange(0, BM))[:, None]
    token = tl.minimum(start + tl.arange(0, T), batch - 1)[None, :]
    store_vector8(out + token * WIDTH, row, value.to(KIND).to(tl.float32), row < M, WIDTH)


@triton.jit
def output_rows(
    wo_b, wo_b_scale, vectors, streams, post, comb, target, batch, addresses, sequence,
    N: tl.constexpr, D: tl.constexpr, S: tl.constexpr, BM: tl.constexpr, T: tl.constexpr, U: tl.constexpr,
    UNROLL: tl.constexpr, ASM: tl.constexpr, RANK: tl.constexpr, SHARDS: tl.constexpr, CAPACITY: tl.constexpr,
):  # fmt: skip
    """Grid (D/BM, B/T upward): rows of wo_b [D, N] times vectors, then onto the streams: target [B, S, D].

    Of several SHARDS wo_b has a part of the columns, and rows are summed over all of them (`exchanged`).
    """
    first = tl.program_id(0) * BM
    start = tl.program_id(1) * T
    token = tl.minimum(start + tl.arange(0, T), batch - 1)[None, :]
    row = (first + tl.arange(0, BM))[:, None]
    h, own_post, own_comb = load_streams(streams, post, comb, token, row, row < D, D, S)
    own = vectors + start * N
    value = rows8(wo_b, wo_b_scale, own, N, batch - start, first, D, N, BM, T, U, UNROLL, ASM)
    if SHARDS > 1:
        value = exchanged(value, token * D + row, addresses, sequence, RANK, SHARDS, CAPACITY)
    out = value.to(target.dtype.element_ty).to(tl.float32)
    put_streams(out, h, own_post, own_comb, target, token, row, row < D, D, S)
