"""The mixture of experts at decode: a router in one launch, then two launches over routed and shared experts alike."""

from __future__ import annotations

import triton
import triton.language as tl

from dsv41c.kernels.triton.boundary import arrive_last, finish_mix, load_streams, put_streams
from dsv41c.kernels.triton.common import e8m0_value, softplus, swiglu
from dsv41c.kernels.triton.exchange import exchanged, next_exchange
from dsv41c.kernels.triton.fragments import rows8_pair
from dsv41c.kernels.triton.planes import (
    PLANE4_HIDDEN,
    dot4,
    rows8,
    rows16,
    store_planes4,
    store_vector8,
    unit4,
)


@triton.jit
def route_rows(
    gate, bias, normed, counters, scores, weights, ids, order, gate_temp, route_scale,
    s1, s1_scale, s3, s3_scale, vectors, hidden8, limit,
    E: tl.constexpr, BATCH: tl.constexpr, A: tl.constexpr, D: tl.constexpr, K: tl.constexpr, INTER: tl.constexpr,
    BM: tl.constexpr, T: tl.constexpr, U: tl.constexpr, UNROLL: tl.constexpr, LIMITED: tl.constexpr,
    KIND: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """The router, and what does not wait for it. Grid (ceil(B/T) * (E + INTER/BM),), for blocks of T tokens:
    programs that score an expert each, the last of which picks A for every token; then, or for T tokens first, since
    they take longer, BM rows of w1 and w3 of the shared expert.

    scores f32 [B, E] (scratch); weights f32 and ids int64 [B, A], best first, ties to the lower id; order int32 [B * A]
    (for B above 1): the pairs by expert. hidden8: vectors [B, INTER] for `rows8`; counters int32 [1], 0.
    """
    BLOCKS: tl.constexpr = (BATCH + T - 1) // T
    program = tl.program_id(0)
    part = program if T == 1 else program - BLOCKS * (INTER // BM)
    if (part >= 0) & (part < BLOCKS * E):
        start = part // E * T
        expert = part % E
        if T == 1:
            logit = rows16(gate, normed, expert, E, D, D, 1, 1, K, UNROLL)
        else:
            logit = _logits(gate + expert * D, normed, start, BATCH, D, T, K)
        place = tl.minimum(start + tl.arange(0, T), BATCH - 1)[None, :] * E + expert
        tl.store(scores + place, tl.sqrt_rn(softplus(logit / gate_temp)))
        if arrive_last(counters, BLOCKS * E - 1):
            for first in range(0, BATCH, T):
                _pick(scores, bias, weights, ids, route_scale, first, BATCH, T, E, A)
            if BATCH > 1:
                tl.debug_barrier()
                _sort(ids, order, BATCH * A)
    else:
        block = program - E if T == 1 else program
        row = block % (INTER // BM) * BM
        start = block // (INTER // BM) * T
        x8 = vectors + start * D
        if T == 1:
            first = rows8(s1, s1_scale, x8, D, 1, row, INTER, D, BM, T, U, UNROLL, ASM)
            up = rows8(s3, s3_scale, x8, D, 1, row, INTER, D, BM, T, U, UNROLL, ASM)
        else:
            first, up = rows8_pair(s1, s1_scale, s3, s3_scale, x8, D, BATCH - start, row, D, BM, U // 4, UNROLL, ASM)
        first, up = first.to(KIND).to(tl.float32), up.to(KIND).to(tl.float32)
        tokens = tl.minimum(start + tl.arange(0, T), BATCH - 1)[None, :]
        value = swiglu(first, up, limit, LIMITED).to(KIND).to(tl.float32)
        store_vector8(hidden8 + tokens * INTER, row + tl.arange(0, BM)[:, None], value, tokens >= 0, INTER)


@triton.jit
def _logits(row, normed, start, BATCH: tl.constexpr, D: tl.constexpr, T: tl.constexpr, K: tl.constexpr):
    """A row of the gate times T tokens of normed [B, D], past the end the last one; fp32 [1, T]."""
    tokens = tl.minimum(start + tl.arange(0, T), BATCH - 1)[:, None] * D
    acc = tl.zeros([T, K // 2], tl.float32)
    for k in range(0, D, K):
        column = k + tl.arange(0, K)[None, :]
        w = tl.load(row + column, mask=column < D, other=0.0).to(tl.float32)
        x = tl.load(normed + tokens + column, mask=column < D, other=0.0).to(tl.float32)
        acc += tl.sum(tl.reshape(w * x, [T, K // 2, 2]), 2)
    return tl.sum(acc, 1)[None, :]


@triton.jit
def _pick(
    scores, bias, weights, ids, route_scale, first, BATCH: tl.constexpr, T: tl.constexpr, E: tl.constexpr,
    A: tl.constexpr,
):  # fmt: skip
    """For T tokens from the first on: the A best of score plus bias, and their scores over the sum, times
    `route_scale`.
    """
    EB: tl.constexpr = triton.next_power_of_2(E)
    AB: tl.constexpr = triton.next_power_of_2(A)
    token = tl.minimum(first + tl.arange(0, T), BATCH - 1)[:, None]
    expert = tl.arange(0, EB)[None, :]
    there = expert < E
    own = scores + token * E
    score = tl.load(own + expert, mask=there, other=0.0, cache_modifier=".cg")
    bits = (score + tl.load(bias + expert, mask=there, other=0.0)).to(tl.int32, bitcast=True)
    ordered = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)  # integers of the same order
    place = tl.arange(0, AB)[None, :]
    picked = tl.zeros([T, AB], tl.int64)
    if T == 1:
        # One number for both: the score, then the id, the lower the better.
        wanted = tl.where(there, ordered.to(tl.int64) * EB + (EB - 1 - expert), -(1 << 62))
        for i in tl.static_range(A):
            best = tl.max(wanted, 1)[:, None]
            picked = tl.where(place == i, EB - 1 - (best & (EB - 1)), picked)
            wanted = tl.where(wanted == best, -(1 << 62), wanted)
    else:  # half the registers, which all programs of a launch have as many of
        left = tl.where(there, ordered, -(1 << 31))
        for i in tl.static_range(A):
            best = tl.min(tl.where(left == tl.max(left, 1)[:, None], expert, EB), 1)[:, None]
            picked = tl.where(place == i, best.to(tl.int64), picked)
            left = tl.where(expert == best, -(1 << 31), left)
    chosen = tl.load(own + picked, mask=place < A, other=0.0, cache_modifier=".cg")
    share = chosen / (tl.sum(chosen, 1)[:, None] + 1e-20) * route_scale
    tl.store(weights + token * A + place, share, mask=place < A)
    tl.store(ids + token * A + place, picked, mask=place < A)


@triton.jit
def _sort(ids, order, PAIRS: tl.constexpr):
    """order int32 [PAIRS]: pairs by expert, equal ones in their own order; each by counting those before it."""
    every = tl.arange(0, triton.next_power_of_2(PAIRS))
    other = tl.load(ids + every, mask=every < PAIRS, other=1 << 30, cache_modifier=".cg").to(tl.int32)
    for start in range(0, PAIRS, 16):
        pair = start + tl.arange(0, 16)
        own = tl.load(ids + pair, mask=pair < PAIRS, other=0, cache_modifier=".cg").to(tl.int32)
        before = (other[None, :] < own[:, None]) | ((other[None, :] == own[:, None]) & (every[None, :] < pair[:, None]))
        tl.store(order + tl.sum(before.to(tl.int32), 1), pair, mask=pair < PAIRS)


@triton.jit
def hidden_rows(
    w1, w1_scale, w3, w3_scale, planes4, weights, ids, order, hidden4, limit,
    s2, s2_scale, hidden8, shared,
    sums, mix_scale, mix_base, pre, post, comb, mix_norm_eps, mix_eps, sequence,
    BATCH: tl.constexpr, A: tl.constexpr, D: tl.constexpr, INTER: tl.constexpr, G: tl.constexpr,
    UNROLL: tl.constexpr, LIMITED: tl.constexpr, BM: tl.constexpr, T: tl.constexpr, U: tl.constexpr,
    UNROLL8: tl.constexpr, S: tl.constexpr, SLICES: tl.constexpr, ITERATIONS: tl.constexpr, KIND: tl.constexpr,
    ASM: tl.constexpr, SHARDS: tl.constexpr,
):  # fmt: skip
    """Grid (B + B * A * INTER + ceil(B/T) * D/BM,): the mixing of each token finished; a row of w1 and w3 of a chosen
    expert, with SwiGLU and routing weight; BM rows of w2 of the shared expert, which for T tokens take long and come
    before the chosen ones.

    w1, w3 int32 pointers [experts, INTER, D/8], scales uint8 [experts, INTER, D/32]; hidden4: planes4 [B, A * INTER];
    shared f32 [B, D], rounded unless it is the part of one of several SHARDS, for whom the exchange that ends the
    sublayer is counted. For more than one token pairs come by expert (`order`), so that one read a second time is in
    the L2 cache still.
    """
    program = tl.program_id(0)
    SHARED: tl.constexpr = 0 if T == 1 else (BATCH + T - 1) // T * (D // BM)
    routed = program - BATCH - SHARED
    if program < BATCH:
        finish_mix(program, sums, mix_scale, mix_base, pre, post, comb, mix_norm_eps, mix_eps, D, S, SLICES, ITERATIONS)
        next_exchange(sequence, program == 0, SHARDS)
    elif (routed >= 0) & (routed < BATCH * A * INTER):
        slot = routed // INTER
        row = routed % INTER
        if BATCH > 1:
            slot = tl.load(order + slot)
        at = tl.load(ids + slot) * INTER + row
        planes = planes4 + slot // A * (D // 2)
        value = _routed(w1, w1_scale, w3, w3_scale, planes, at, limit, D, G, UNROLL, LIMITED, KIND, BATCH == 1, ASM)
        weighted = (value * tl.load(weights + slot)).to(KIND).to(tl.float32) * PLANE4_HIDDEN
        column = slot % A * INTER + row + tl.zeros([1, 1], tl.int32)
        store_planes4(hidden4 + slot // A * A * INTER, column, weighted, column >= 0, A * INTER)
    else:
        block = routed - BATCH * A * INTER if T == 1 else program - BATCH
        first = block % (D // BM) * BM
        token = block // (D // BM) * T
        own = hidden8 + token * INTER
        out = rows8(s2, s2_scale, own, INTER, BATCH - token, first, D, INTER, BM, T, U, UNROLL8, ASM)
        tokens = tl.minimum(token + tl.arange(0, T), BATCH - 1)[None, :]
        place = tokens * D + first + tl.arange(0, BM)[:, None]
        tl.store(shared + place, out if SHARDS > 1 else out.to(KIND).to(tl.float32))


@triton.jit
def _routed(
    w1, w1_scale, w3, w3_scale, planes, at, limit, D: tl.constexpr, G: tl.constexpr, UNROLL: tl.constexpr,
    LIMITED: tl.constexpr, KIND: tl.constexpr, ONCE: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """SwiGLU of row `at` (int64, over all experts) of w1 and w3, which share the loads of x; fp32 [1, 1].

    ONCE: no other program reads these rows, so that the cache need not keep them.
    """
    EVICT: tl.constexpr = "evict_first" if ONCE else ""
    GROUPS: tl.constexpr = D // 32
    MASKED: tl.constexpr = GROUPS % G != 0
    words = (tl.arange(0, G)[:, None] * 4 + tl.arange(0, 4)[None, :])[None, :, :]
    w1 += at * (GROUPS * 4)
    w3 += at * (GROUPS * 4)
    w1_scale += at * GROUPS
    w3_scale += at * GROUPS
    a1 = tl.zeros([1, 1, G], tl.float32)
    a3 = tl.zeros([1, 1, G], tl.float32)
    for k in tl.range(0, (GROUPS + G - 1) // G, loop_unroll_factor=UNROLL):
        group = k * G + tl.arange(0, G)
        inside = group < GROUPS
        if MASKED:
            p = tl.load(w1 + k * G * 4 + words, mask=inside[None, :, None], other=0, eviction_policy=EVICT)
            q = tl.load(w3 + k * G * 4 + words, mask=inside[None, :, None], other=0, eviction_policy=EVICT)
            c1 = tl.load(w1_scale + group, mask=inside, other=0, eviction_policy=EVICT)
            c3 = tl.load(w3_scale + group, mask=inside, other=0, eviction_policy=EVICT)
        else:
            p = tl.load(w1 + k * G * 4 + words, eviction_policy=EVICT)
            q = tl.load(w3 + k * G * 4 + words, eviction_policy=EVICT)
            c1 = tl.load(w1_scale + group, eviction_policy=EVICT)
            c3 = tl.load(w3_scale + group, eviction_policy=EVICT)
        x = planes + group[None, None, :]
        mask = inside[None, None, :]
        a1 += dot4(p, x, GROUPS, mask, 1, G, MASKED, ASM) * e8m0_value(c1)[None, None, :]
        a3 += dot4(q, x, GROUPS, mask, 1, G, MASKED, ASM) * e8m0_value(c3)[None, None, :]
    gate = (tl.sum(a1, 2) * unit4(ASM)).to(KIND).to(tl.float32)
    up = (tl.sum(a3, 2) * unit4(ASM)).to(KIND).to(tl.float32)
    return swiglu(gate, up, limit, LIMITED)


@triton.jit
def down_rows(
    w2, w2_scale, hidden4, ids, shared, streams, post, comb, target, addresses, sequence,
    A: tl.constexpr, D: tl.constexpr, INTER: tl.constexpr, S: tl.constexpr, BM: tl.constexpr, G: tl.constexpr,
    UNROLL: tl.constexpr, TOKEN_FIRST: tl.constexpr, ASM: tl.constexpr,
    RANK: tl.constexpr, SHARDS: tl.constexpr, CAPACITY: tl.constexpr,
):  # fmt: skip
    """BM rows of w2 of every chosen expert, summed, over all SHARDS too (`exchanged`), and with the shared expert's put
    onto the streams: [B, S, D].

    Grid (D/BM, B), or with TOKEN_FIRST (B, D/BM), so that tokens with one expert find its rows in the cache.
    """
    if TOKEN_FIRST:
        token = tl.program_id(0)
        first = tl.program_id(1) * BM
    else:
        first = tl.program_id(0) * BM
        token = tl.program_id(1)
    EVICT: tl.constexpr = "" if TOKEN_FIRST else "evict_first"
    GROUPS: tl.constexpr = INTER // 32
    TOTAL: tl.constexpr = A * GROUPS
    MASKED: tl.constexpr = TOTAL % G != 0
    word = tl.arange(0, 4)
    row = first + tl.arange(0, BM)[:, None]
    tokens = token + tl.zeros([1, 1], tl.int32)
    h, own_post, own_comb = load_streams(streams, post, comb, tokens, row, row < D, D, S)
    total = tl.load(shared + token * D + row)
    planes = hidden4 + token * (A * INTER // 2)
    acc = tl.zeros([BM, 1, G], tl.float32)
    for k in tl.range(0, (TOTAL + G - 1) // G, loop_unroll_factor=UNROLL):
        group = k * G + tl.arange(0, G)
        inside = group < TOTAL
        choice = group // GROUPS
        expert = tl.load(ids + token * A + choice, mask=inside, other=0)
        at = (expert[None, :] * D + row) * GROUPS + (group - choice * GROUPS)[None, :]
        at4 = at[:, :, None] * 4 + word[None, None, :]
        words = tl.load(w2 + at4, mask=inside[None, :, None], other=0, eviction_policy=EVICT)
        scale = tl.load(w2_scale + at, mask=inside[None, :], other=0, eviction_policy=EVICT)
        part = dot4(words, planes + group[None, None, :], TOTAL, inside[None, None, :], BM, G, MASKED, ASM)
        acc += part * e8m0_value(scale)[:, None, :]
    total += tl.sum(acc, 2) * (unit4(ASM) / PLANE4_HIDDEN)
    if SHARDS > 1:
        total = exchanged(total, tokens * D + row, addresses, sequence, RANK, SHARDS, CAPACITY)
    out = total.to(target.dtype.element_ty).to(tl.float32)
    put_streams(out, h, own_post, own_comb, target, tokens, row, row < D, D, S)


@triton.jit
def head_rows(
    head, normed, logits, V, D: tl.constexpr, BM: tl.constexpr, T: tl.constexpr, K: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """Grid (V/BM, B/T): logits f32 [B, V]."""
    first = tl.program_id(0) * BM
    block = tl.program_id(1)
    value = rows16(head, normed + block * T * D, first, V, D, D, BM, T, K, UNROLL)
    row = (first + tl.arange(0, BM))[:, None]
    token = (block * T + tl.arange(0, T))[None, :].to(tl.int64)
    tl.store(logits + token * V + row, value, mask=row < V)
