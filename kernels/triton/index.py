"""The indexer: keys of groups, queries of tokens, and scores of groups."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from dsv41c.kernels.reference import index as reference
from dsv41c.kernels.reference.encodings import Packed, dense
from dsv41c.kernels.step import Step
from dsv41c.kernels.triton.common import e4m3_value, e8m0_value
from dsv41c.kernels.triton.matmul import matmul
from dsv41c.kernels.triton.planes import rows16
from dsv41c.kernels.triton.rows import MODES, fp4_pairs, norm_pairs, rope_pairs, row_place, store_row
from dsv41c.kernels.triton.score import score_tiles, shape_of_tiles

KEY_ROWS = 32  # groups whose keys one launch projects and stores; more go to matrix products first
QUERY_ROWS = 8  # tokens, likewise


@triton.jit
def store_keys(
    rows, wk, k_norm, frequency, slots, positions, pool, capacity, spare, eps,
    C: tl.constexpr, N: tl.constexpr, R: tl.constexpr, WIDTH: tl.constexpr, RATIO: tl.constexpr, MODE: tl.constexpr,
    K: tl.constexpr, PROJECT: tl.constexpr,
):  # fmt: skip
    """Grid (G, B): the key of a group, C channels, to its row of pool [slots, capacity, WIDTH].

    rows [B, G, N] are latents, which wk [C, N] projects here; without PROJECT they are the projected rows [B, G, C].
    """
    group = tl.program_id(0)
    session = tl.program_id(1)
    KIND: tl.constexpr = rows.dtype.element_ty
    pair = tl.arange(0, C // 2)
    if PROJECT:
        own = rows + (session * tl.num_programs(0) + group) * N
        sum_even = tl.zeros([C // 2, K], tl.float32)
        sum_odd = tl.zeros([C // 2, K], tl.float32)
        for k in tl.static_range((N + K - 1) // K):
            column = k * K + tl.arange(0, K)
            inside = (pair >= 0)[:, None] & (column < N)[None, :]
            x = tl.load(own + column, mask=column < N, other=0.0).to(tl.float32)[None, :]
            place = wk + 2 * pair[:, None] * N + column[None, :]
            sum_even += tl.load(place, mask=inside, other=0.0).to(tl.float32) * x
            sum_odd += tl.load(place + N, mask=inside, other=0.0).to(tl.float32) * x
        even = tl.sum(sum_even, 1).to(KIND).to(tl.float32)
        odd = tl.sum(sum_odd, 1).to(KIND).to(tl.float32)
    else:
        own = rows + (session.to(tl.int64) * tl.num_programs(0) + group) * C
        even = tl.load(own + 2 * pair).to(tl.float32)
        odd = tl.load(own + 2 * pair + 1).to(tl.float32)
    even, odd = norm_pairs(even, odd, k_norm, pair, eps, C, KIND)
    number = tl.load(positions + session) // RATIO + group
    even, odd = rope_pairs(even, odd, number * RATIO, frequency, 2 * pair, C, R, KIND)
    row = row_place(pool, tl.load(slots + session), number, capacity, spare, WIDTH)
    store_row(row, even, odd, C, 32, False, MODE)


def index_keys(
    step: Step,
    latent: Tensor,
    index_k: Tensor,
    rope: Tensor,
    wk: Tensor,
    k_norm: Tensor,
    *,
    ratio: int,
    rope_dim: int,
    eps: float,
    kv_cache: str,
) -> Tensor:
    """`reference.index_keys`, one launch at decode: latent [B, G, C] to rows of index_k, in place; returns it."""
    batch, groups, width = latent.shape
    channels = wk.shape[0]
    if latent.dtype != torch.bfloat16 or not _whole_blocks(channels):
        return reference.index_keys(
            step, latent, index_k, rope, wk, k_norm, ratio=ratio, rope_dim=rope_dim, eps=eps, kv_cache=kv_cache
        )
    if index_k.shape[1] == 0 or groups == 0:
        return index_k
    project = batch * groups <= KEY_ROWS
    rows = latent.contiguous() if project else matmul(latent.flatten(0, 1), wk, latent.dtype)
    store_keys[(groups, batch)](
        rows, wk, k_norm, rope, step.slots, step.positions, index_k, index_k.shape[1], index_k.shape[0] - 1, eps,
        C=channels, N=width, R=rope_dim, WIDTH=index_k.shape[2], RATIO=ratio, MODE=MODES[kv_cache],
        K=min(128, triton.next_power_of_2(width)), PROJECT=project, num_warps=8 if project else 1,
        enable_fp_fusion=False,
    )  # fmt: skip
    return index_k


def _whole_blocks(channels: int) -> bool:
    """Whether rows of so many channels are cut into blocks of 32, and into tiles, without a rest."""
    return channels >= 32 and channels & (channels - 1) == 0


@triton.jit
def _block_of_rows(codes, scales, x, first, N: tl.constexpr, K: tl.constexpr, FP8: tl.constexpr):
    """Rows first to first+31 of a matrix [M, N] times a vector: f32 pairs [16]. `first` is a multiple of 32."""
    pair = tl.arange(0, 16)
    sum_even = tl.zeros([16, K], tl.float32)
    sum_odd = tl.zeros([16, K], tl.float32)
    for k in tl.static_range((N + K - 1) // K):
        column = k * K + tl.arange(0, K)
        inside = (pair >= 0)[:, None] & (column < N)[None, :]
        v = tl.load(x + column, mask=column < N, other=0.0).to(tl.float32)
        place = codes + (first + 2 * pair).to(tl.int64)[:, None] * N + column[None, :]
        if FP8:
            block = scales + first // 32 * ((N + 31) // 32) + column // 32
            v *= e8m0_value(tl.load(block, mask=column < N, other=0))
            sum_even += e4m3_value(tl.load(place, mask=inside, other=0)) * v[None, :]
            sum_odd += e4m3_value(tl.load(place + N, mask=inside, other=0)) * v[None, :]
        else:
            sum_even += tl.load(place, mask=inside, other=0.0).to(tl.float32) * v[None, :]
            sum_odd += tl.load(place + N, mask=inside, other=0.0).to(tl.float32) * v[None, :]
    return tl.sum(sum_even, 1), tl.sum(sum_odd, 1)


@triton.jit
def make_queries(
    latent, codes, scales, x, weights_proj, frequency, positions, query, weight, tokens, factor,
    H: tl.constexpr, C: tl.constexpr, N: tl.constexpr, D: tl.constexpr, R: tl.constexpr, MODE: tl.constexpr,
    K: tl.constexpr, KW: tl.constexpr, FP8: tl.constexpr, PROJECT: tl.constexpr,
):  # fmt: skip
    """Grid (rows, H * C / 32 + H with PROJECT, else H * C / 32): 32 channels of a query, or one head weight.

    latent [rows, N] is projected by wq_b (codes [H * C, N]); without PROJECT it is the projected rows [rows, H * C],
    and head weights are left out. query [rows, H, C]; weight [rows, H] = bf16(weights_proj x) * factor.
    """
    row = tl.program_id(0)
    block = tl.program_id(1)
    KIND: tl.constexpr = query.dtype.element_ty
    if block < H * C // 32:
        pair = tl.arange(0, 16)
        if PROJECT:
            even, odd = _block_of_rows(codes, scales, latent + row * N, block * 32, N, K, FP8)
            even = even.to(KIND).to(tl.float32)
            odd = odd.to(KIND).to(tl.float32)
        else:
            own = latent + row.to(tl.int64) * (H * C) + block * 32
            even = tl.load(own + 2 * pair).to(tl.float32)
            odd = tl.load(own + 2 * pair + 1).to(tl.float32)
        position = tl.load(positions + row // tokens) + row % tokens
        even, odd = rope_pairs(even, odd, position, frequency, block * 32 % C + 2 * pair, C, R, KIND)
        out = query + row.to(tl.int64) * (H * C) + block * 32
        if MODE > 0:
            even, odd, scale, _ = fp4_pairs(even[None, :], odd[None, :], False)
            even = tl.reshape(even * scale, [16])
            odd = tl.reshape(odd * scale, [16])
        tl.store(out + 2 * pair, even.to(KIND))
        tl.store(out + 2 * pair + 1, odd.to(KIND))
    else:
        head = block - H * C // 32
        value = rows16(weights_proj, x + row * D, head, H, D, D, 1, 1, KW, 8)
        value = value.to(KIND).to(tl.float32) * factor
        tl.store(weight + row * H + head + tl.arange(0, 1)[:, None] + tl.arange(0, 1)[None, :], value.to(KIND))


def index_query(
    step: Step,
    x: Tensor,
    query_latent: Tensor,
    rope: Tensor,
    wq_b: Tensor | Packed,
    weights_proj: Tensor,
    *,
    heads: int,
    rope_dim: int,
    activation_quant: str,
    kv_cache: str,
) -> tuple[Tensor, Tensor]:
    """`reference.index_query` in one launch at decode. wq_b [IH * IC, q_lora_rank] bf16, or as stored."""
    batch, tokens, dim = x.shape
    codes, scales, known = _as_stored(wq_b)
    width, channels = codes.shape[1], codes.shape[0] // heads
    if x.dtype != torch.bfloat16 or activation_quant != "none" or not _whole_blocks(channels) or not known:
        return reference.index_query(
            step, x, query_latent, rope, dense(wq_b, x.dtype), weights_proj, heads=heads, rope_dim=rope_dim,
            activation_quant=activation_quant, kv_cache=kv_cache,
        )  # fmt: skip
    count, factor = batch * tokens, channels**-0.5 * heads**-0.5
    query = torch.empty(batch, tokens, heads, channels, dtype=x.dtype, device=x.device)
    project = count <= QUERY_ROWS
    if project:
        latent, weight = query_latent.contiguous(), torch.empty(batch, tokens, heads, dtype=x.dtype, device=x.device)
    else:
        latent = matmul(query_latent.flatten(0, 1), wq_b, x.dtype)
        weight = matmul(x.flatten(0, 1), weights_proj, x.dtype).view(batch, tokens, heads) * factor
    blocks = heads * channels // 32
    make_queries[(count, blocks + heads if project else blocks)](
        latent, codes, scales, x.contiguous(), weights_proj, rope, step.positions, query, weight, tokens, factor,
        H=heads, C=channels, N=width, D=dim, R=rope_dim, MODE=MODES[kv_cache], K=256, KW=1024,
        FP8=codes.dtype == torch.uint8, PROJECT=project, num_warps=8 if project else 1, enable_fp_fusion=False,
    )  # fmt: skip
    return query, weight


def _as_stored(weight: Tensor | Packed) -> tuple[Tensor, Tensor, bool]:
    """The codes and scales of a matrix as bytes, or a plain one twice; and whether the kernels read its encoding."""
    if isinstance(weight, Packed):
        return weight.codes.view(torch.uint8), weight.scale.view(torch.uint8), weight.encoding == "fp8_32x32"
    return weight, weight, True


def index_score(
    step: Step,
    index_query: Tensor,
    index_weight: Tensor,
    index_k: Tensor,
    *,
    candidates: Tensor | None = None,
    ratio: int,
    block_size: int,
) -> Tensor:
    """`reference.index_score` in one launch: f32 [B, T, N], -inf where a group is hidden; N = context // ratio."""
    batch, tokens, _, channels = index_query.shape
    count = step.context // ratio
    if index_query.dtype != torch.bfloat16 or not _whole_blocks(channels):
        return reference.index_score(
            step, index_query, index_weight, index_k, candidates=candidates, ratio=ratio, block_size=block_size
        )
    score = torch.empty(batch, tokens, count, dtype=torch.float32, device=index_query.device)
    if count:
        shape = shape_of_tiles(index_query, index_k, tokens)
        grid = (triton.cdiv(count, shape["BN"]), triton.cdiv(tokens, shape["BT"]), batch)
        score_tiles[grid](
            index_query, index_weight, index_k, score if candidates is None else candidates, step.slots, step.positions,
            score, index_k.shape[1], 0, tokens, tokens, count, 1 if candidates is None else candidates.shape[2],
            RATIO=ratio, BLOCK_SIZE=block_size, MASKED=candidates is not None, KEYS=False, **shape,
        )  # fmt: skip
    return score
