"""The indexer: keys of groups, queries of tokens, and the score that says which groups a token should attend to."""

from __future__ import annotations

import torch
from torch import Tensor

from dsv41c.kernels.reference.encodings import Packed
from dsv41c.kernels.reference.fake_quant import fake_fp4
from dsv41c.kernels.reference.groups import append_groups, group_numbers, visible_groups
from dsv41c.kernels.reference.linear import linear
from dsv41c.kernels.reference.norm import norm
from dsv41c.kernels.reference.rope import apply_rope
from dsv41c.kernels.reference.rows import stored, unpack
from dsv41c.kernels.step import Step

_SCORE_ELEMENTS = 1 << 24  # dot products held at once: 64 MiB of f32


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
    """Append the keys fp4(rope(norm(wk latent))) of this call's groups to index_k, in place; returns it.

    latent [B, G, C], before its own rope; index_k [slots, capacity, IC], or u8 [slots, capacity, bytes]; wk [IC, C];
    k_norm f32 [IC].
    """
    keys = norm(linear(latent, wk), k_norm, eps=eps)
    keys = apply_rope(keys, group_numbers(step, latent.shape[1], ratio) * ratio, rope, rope_dim)
    return append_groups(step, index_k, stored("index_k", keys, kv_cache), ratio)


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
    """Indexer queries [B, T, IH, IC] = fp4(rope(wq_b latent)) and head weights [B, T, IH], in x's dtype.

    x [B, T, D]; query_latent [B, T, q_lora_rank]; wq_b [IH * IC, q_lora_rank]; weights_proj [IH, D]. Head weights
    carry the factor IC^-0.5 * IH^-0.5.
    """
    queries = torch.unflatten(linear(query_latent, wq_b, activation_quant), -1, (heads, -1))
    queries = apply_rope(queries, step.token_positions(x.shape[1]), rope, rope_dim)
    weights = linear(x, weights_proj) * (queries.shape[-1] ** -0.5 * heads**-0.5)
    return queries if kv_cache == "none" else fake_fp4(queries), weights


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
    """sum over heads of weight * relu(query . key), for every group; f32 [B, T, N], N = context // ratio.

    index_query [B, T, IH, IC]; index_weight [B, T, IH]; index_k [slots, capacity, IC], or u8 [slots, capacity, bytes];
    candidates bool [B, T, ceil(N / block_size)]. -inf where a group is not visible to the query or its block is no
    candidate. With bf16 queries, the dots, their weighted values and the sum are rounded to bf16, as the release does.
    """
    batch, tokens, heads, _ = index_query.shape
    count = step.context // ratio
    if count == 0:
        return torch.empty(batch, tokens, 0, dtype=torch.float32, device=index_query.device)
    keys = unpack("index_k", index_k[:, :count][step.slots]).to(torch.float32)
    block = max(1, _SCORE_ELEMENTS // (batch * heads * count))
    parts = []
    for start in range(0, tokens, block):
        part = slice(start, start + block)
        dots = torch.einsum("bthc,bnc->bthn", index_query[:, part].to(torch.float32), keys).to(index_query.dtype)
        parts.append((dots.relu_() * index_weight[:, part, :, None]).sum(2).to(torch.float32))
    score = torch.cat(parts, dim=1)
    number = torch.arange(count, device=score.device)
    hidden = number >= visible_groups(step, tokens, ratio)[..., None]
    if candidates is not None:
        hidden = hidden | ~candidates[..., number // block_size]
    return score.masked_fill_(hidden, float("-inf"))
