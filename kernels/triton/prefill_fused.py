"""The fused kinds over many rows: batched kernels, a launch for each step of the way. Any B and T; bf16 only.

Signatures are those of `kernels.fusion`. Weights may be packed `fp8_32x32` or floats, experts `Stacked` of `fp4_32`.
With `meet`, which makes of every shard's part f32 [n, D] their sum in bf16, weights are those of one shard.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from dsv41c.kernels.reference.encodings import Packed, Stacked
from dsv41c.kernels.reference.window import window_store
from dsv41c.kernels.step import Step
from dsv41c.kernels.triton.attend_rows import attend_rows
from dsv41c.kernels.triton.epilogues import norm_rows, rope_rows, route_rows, window_rows_rows
from dsv41c.kernels.triton.grouped import add_pairs, expert_pairs, shared_hidden
from dsv41c.kernels.triton.matmul import grouped_output, matmul
from dsv41c.kernels.triton.mix_rows import collapse_norm_rows, expand_rows, mix_rows

Meet = Callable[[Tensor], Tensor]


def attention_input_rows(
    step: Step,
    streams: Tensor,
    pre: Tensor,
    mix_fn: Tensor,
    mix_scale: Tensor,
    mix_base: Tensor,
    norm_weight: Tensor,
    query_rope: Tensor,
    query_wq_a: Packed | Tensor,
    query_q_norm: Tensor,
    query_wq_b: Packed | Tensor,
    window_rows_rope: Tensor,
    window_rows_wkv: Packed | Tensor,
    window_rows_kv_norm: Tensor,
    *,
    mix_iterations: int,
    mix_eps: float,
    mix_norm_eps: float,
    norm_eps: float,
    query_heads: int,
    query_rope_dim: int,
    query_eps: float,
    query_activation_quant: str,
    window_rows_rope_dim: int,
    window_rows_eps: float,
    window_rows_activation_quant: str,
    window_rows_kv_cache: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """pre, post, comb f32, normed [B, T, D], query [B, T, H, C], query_latent [B, T, rank], window_rows [B, T, C]."""
    assert query_activation_quant == window_rows_activation_quant == "none", "inputs of linear layers stay as they are"
    batch, tokens = streams.shape[:2]
    next_pre, post, comb = mix_rows(streams, mix_fn, mix_scale, mix_base, mix_iterations, mix_eps, mix_norm_eps)
    normed, _ = collapse_norm_rows(streams, pre, norm_weight, norm_eps)
    flat = normed.flatten(0, 1)
    latent = norm_rows(matmul(flat, query_wq_a, flat.dtype), query_q_norm, query_eps)
    query = matmul(latent, query_wq_b, flat.dtype).view(batch, tokens, query_heads, -1)
    query = rope_rows(step, query, query_rope, query_rope_dim)
    rows = window_rows_rows(
        step,
        matmul(flat, window_rows_wkv, flat.dtype).view(batch, tokens, -1),
        window_rows_rope,
        window_rows_kv_norm,
        rope_dim=window_rows_rope_dim,
        eps=window_rows_eps,
        kv_cache=window_rows_kv_cache,
    )
    return next_pre, post, comb, normed, query, latent.view(batch, tokens, -1), rows


def attention_output_rows(
    step: Step,
    query: Tensor,
    window_kv: Tensor,
    window_rows: Tensor,
    streams: Tensor,
    post: Tensor,
    comb: Tensor,
    attend_rope: Tensor,
    attend_sink: Tensor,
    output_wo_a: Packed | Tensor,
    output_wo_b: Packed | Tensor,
    *,
    compress_kv: Tensor | None = None,
    topk: Tensor | None = None,
    attend_window: int,
    attend_ratio: int,
    attend_rope_dim: int,
    window_store_window: int,
    output_groups: int,
    output_activation_quant: str,
    meet: Meet | None = None,
) -> tuple[Tensor, Tensor]:
    """window_kv, written in place behind the attention, and streams [B, T, S, D]."""
    assert output_activation_quant == "none", "inputs of linear layers stay as they are"
    attended = attend_rows(
        step,
        query,
        window_kv,
        window_rows,
        attend_rope,
        attend_sink,
        compress_kv=compress_kv,
        topk=topk,
        window=attend_window,
        ratio=attend_ratio,
        rope_dim=attend_rope_dim,
    )
    window_kv = window_store(step, window_rows, window_kv, window=window_store_window)
    kind = query.dtype if meet is None else torch.float32
    out = grouped_output(attended.flatten(0, 1), output_wo_a, output_wo_b, output_groups, kind)
    return window_kv, expand_rows(out if meet is None else meet(out), streams, post, comb)


def ffn_rows(
    step: Step,
    streams: Tensor,
    pre: Tensor,
    mix_fn: Tensor,
    mix_scale: Tensor,
    mix_base: Tensor,
    norm_weight: Tensor,
    route_gate: Tensor,
    route_bias: Tensor,
    experts_w1: Stacked,
    experts_w2: Stacked,
    experts_w3: Stacked,
    shared_expert_w1: Packed | Tensor,
    shared_expert_w2: Packed | Tensor,
    shared_expert_w3: Packed | Tensor,
    *,
    mix_iterations: int,
    mix_eps: float,
    mix_norm_eps: float,
    norm_eps: float,
    route_active: int,
    route_score_func: str,
    route_gate_temp: float,
    route_route_scale: float,
    experts_limit: float,
    experts_activation_quant: str,
    shared_expert_limit: float,
    shared_expert_activation_quant: str,
    meet: Meet | None = None,
) -> tuple[Tensor, Tensor]:
    """pre f32 [B, T, S] and streams [B, T, S, D]."""
    assert experts_activation_quant == shared_expert_activation_quant == "none", "inputs stay as they are"
    next_pre, post, comb = mix_rows(streams, mix_fn, mix_scale, mix_base, mix_iterations, mix_eps, mix_norm_eps)
    normed, halves = collapse_norm_rows(streams, pre, norm_weight, norm_eps, halves=True)
    flat = normed.flatten(0, 1)
    weights, ids = route_rows(
        matmul(flat, route_gate, torch.float32),
        route_bias,
        active=route_active,
        score_func=route_score_func,
        gate_temp=route_gate_temp,
        route_scale=route_route_scale,
    )
    parts = expert_pairs(halves.flatten(0, 1), weights, ids, experts_w1, experts_w2, experts_w3, experts_limit)
    hidden = shared_hidden(flat, shared_expert_w1, shared_expert_w3, shared_expert_limit)
    if meet is None:
        out = add_pairs(parts, ids, matmul(hidden, shared_expert_w2, flat.dtype))
    else:
        out = meet(add_pairs(parts, ids, None).add_(matmul(hidden, shared_expert_w2, torch.float32)))
    return next_pre, expand_rows(out, streams, post, comb)


def logits_rows(
    step: Step, streams: Tensor, pre: Tensor, norm_weight: Tensor, head_head: Tensor, *, norm_eps: float
) -> Tensor:
    """Logits f32 [B, T, V] of streams bf16 [B, T, S, D] and the carried pre f32 [B, T, S]; head [V, D] bf16 or f32."""
    normed, _ = collapse_norm_rows(streams, pre, norm_weight, norm_eps)
    logits = matmul(normed.flatten(0, 1), head_head, torch.float32)
    return logits.view(*streams.shape[:2], -1)
