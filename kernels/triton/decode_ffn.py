"""The expert sublayer at decode, and the logits: four launches and two."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from dsv41c.kernels.collectives import Mailboxes
from dsv41c.kernels.reference.encodings import Packed, Stacked
from dsv41c.kernels.step import Step
from dsv41c.kernels.triton import experts
from dsv41c.kernels.triton.decode_input import SublayerInput
from dsv41c.kernels.triton.exchange import exchange
from dsv41c.kernels.triton.launch import (
    assembly,
    counters,
    language_type,
    power,
    scales,
    tile4,
    tile8,
    token_block,
    vector_block,
    words,
)
from dsv41c.kernels.triton.matmul import vendor_product

_HEAD_PRODUCT = 4  # sessions from which on the library's matrix product reads the head faster


class _Chosen(NamedTuple):
    """What the router leaves: weights f32 and ids int64 [B, active], the pairs by expert, the shared hidden rows."""

    weights: Tensor
    ids: Tensor
    order: Tensor
    hidden8: Tensor


def ffn(
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
    shared_expert_w1: Packed,
    shared_expert_w2: Packed,
    shared_expert_w3: Packed,
    *,
    boxes: Mailboxes | None = None,
    **attrs: Any,
) -> tuple[Tensor, Tensor]:
    """pre and streams of one token a row. With mailboxes, weights are a shard's, and its part is summed with theirs."""
    batch, _, count, dim = streams.shape
    mix = (mix_fn, mix_scale, mix_base, attrs)
    given = SublayerInput(streams, pre, norm_weight, attrs["norm_eps"], mix=mix, planes4=True)
    chosen = _route(given, route_gate, route_bias, shared_expert_w1, shared_expert_w3, attrs)
    met = exchange(boxes, streams)
    hidden4, shared = _hidden(given, chosen, experts_w1, experts_w3, shared_expert_w2, attrs, met)
    inter, active = experts_w1.codes.shape[1], attrs["route_active"]
    target = torch.empty_like(streams)
    tile = tile4(active * inter, dim)
    blocks = dim // tile.rows
    experts.down_rows[(blocks, batch) if batch == 1 else (batch, blocks)](
        words(experts_w2.codes),
        scales(experts_w2),
        hidden4.view(torch.int32),
        chosen.ids,
        shared,
        streams,
        given.post,
        given.comb,
        target,
        A=active,
        D=dim,
        INTER=inter,
        S=count,
        BM=tile.rows,
        G=tile.units,
        UNROLL=tile.unroll,
        TOKEN_FIRST=batch > 1,
        ASM=assembly(streams.device),
        **met,
        num_warps=1,
    )
    return given.pre, target


def _hidden(
    given: SublayerInput,
    chosen: _Chosen,
    w1: Stacked,
    w3: Stacked,
    shared_w2: Packed,
    attrs: dict[str, Any],
    met: dict[str, Any],
) -> tuple[Tensor, Tensor]:
    """The inputs of w2 in planes4 [B, active * inter], and the shared expert's output f32 [B, D]."""
    batch, _, dim = given.normed.shape
    inter, active, limit, device = w1.codes.shape[1], attrs["route_active"], attrs["experts_limit"], w1.codes.device
    hidden4 = torch.empty(batch, active * inter, dtype=torch.float16, device=device)
    shared = torch.empty(batch, dim, dtype=torch.float32, device=device)
    block, tile = vector_block(batch), tile4(dim, 1)
    tile_shared = tile8(inter, dim, tokens=block, warps=1)
    experts.hidden_rows[batch + batch * active * inter + -(-batch // block) * (dim // tile_shared.rows),](
        words(w1.codes),
        scales(w1),
        words(w3.codes),
        scales(w3),
        given.planes4.view(torch.int32),
        chosen.weights,
        chosen.ids,
        chosen.order,
        hidden4,
        limit,
        words(shared_w2.codes),
        scales(shared_w2),
        chosen.hidden8.view(torch.int32) if batch == 1 else chosen.hidden8,
        shared,
        *given.finishing,
        met["sequence"],
        BATCH=batch,
        A=active,
        D=dim,
        INTER=inter,
        G=tile.units,
        UNROLL=tile.unroll,
        LIMITED=limit > 0,
        BM=tile_shared.rows,
        T=block,
        U=tile_shared.units,
        UNROLL8=tile_shared.unroll,
        S=given.pre.shape[2],
        SLICES=given.slices,
        ITERATIONS=given.iterations,
        KIND=language_type(given.normed.dtype),
        ASM=assembly(device),
        SHARDS=met["SHARDS"],
        num_warps=1,
    )
    return hidden4, shared


def _route(given: SublayerInput, gate: Tensor, bias: Tensor, w1: Packed, w3: Packed, attrs: dict[str, Any]) -> _Chosen:
    """Choose experts; the shared expert's hidden row comes from the same launch."""
    batch, _, dim = given.normed.shape
    count, active, device, inter = gate.shape[0], attrs["route_active"], gate.device, w1.codes.shape[0]
    chosen = _Chosen(
        torch.empty(batch, active, dtype=torch.float32, device=device),
        torch.empty(batch, active, dtype=torch.int64, device=device),
        torch.empty(batch * active, dtype=torch.int32, device=device),
        torch.empty(batch, inter, dtype=torch.float16 if batch == 1 else given.normed.dtype, device=device),
    )
    block, limit = vector_block(batch), attrs["shared_expert_limit"]
    tile = tile8(dim, inter, tokens=block, launch="route")
    if batch > 1:  # `rows8_pair` halves the warps
        tile = tile._replace(warps=max(2, tile.warps), units=4 * max(2, tile.warps))
    experts.route_rows[-(-batch // block) * (count + inter // tile.rows),](
        gate,
        bias,
        given.normed,
        counters(device),
        torch.empty(batch, count, dtype=torch.float32, device=device),
        chosen.weights,
        chosen.ids,
        chosen.order,
        attrs["route_gate_temp"],
        attrs["route_route_scale"],
        words(w1.codes),
        scales(w1),
        words(w3.codes),
        scales(w3),
        given.vectors8,
        chosen.hidden8,
        limit,
        E=count,
        BATCH=batch,
        A=active,
        D=dim,
        K=min(1024 if batch == 1 else 64 * tile.warps, power(dim)),
        INTER=inter,
        BM=tile.rows,
        T=block,
        U=tile.units,
        UNROLL=tile.unroll,
        LIMITED=limit > 0,
        KIND=language_type(given.normed.dtype),
        ASM=assembly(device),
        num_warps=tile.warps,
    )
    return chosen


def logits(step: Step, streams: Tensor, pre: Tensor, norm_weight: Tensor, head_head: Tensor, **attrs: Any) -> Tensor:
    """Logits f32 [B, 1, V] of one token a row."""
    batch, dim = streams.shape[0], streams.shape[3]
    given = SublayerInput(streams, pre, norm_weight, attrs["norm_eps"])
    if batch >= _HEAD_PRODUCT and head_head.dtype == torch.bfloat16:
        return vendor_product(given.normed.flatten(0, 1), head_head, torch.float32, 1)[:, None]
    count, block = head_head.shape[0], token_block(batch)
    result = torch.empty(batch, 1, count, dtype=torch.float32, device=streams.device)
    rows = 4 if block == 1 else 1
    experts.head_rows[-(-count // rows), batch // block](
        head_head,
        given.normed,
        result,
        count,
        D=dim,
        BM=rows,
        T=block,
        K=min(256, power(dim)),
        UNROLL=4,
        num_warps=1,
    )
    return result
