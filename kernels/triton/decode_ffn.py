"""The expert sublayer at decode, and the logits: four launches and two."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from dsv41c.kernels.reference.encodings import Packed, Stacked
from dsv41c.kernels.step import Step
from dsv41c.kernels.triton import experts
from dsv41c.kernels.triton.decode_input import SLICE, Mixing, NormedInput
from dsv41c.kernels.triton.launch import (
    assembly,
    counters,
    language_type,
    power,
    tile4,
    tile8,
    token_block,
    words,
)


class _Chosen(NamedTuple):
    """What the router's launch leaves: weights f32 and ids int64 [B, active], pairs by expert, the shared hidden row."""

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
    **attrs: Any,
) -> tuple[Tensor, Tensor]:
    """pre and streams of one token a row."""
    batch, _, count, dim = streams.shape
    given = NormedInput(streams, pre, norm_weight, attrs["norm_eps"], planes4=True)
    mixing = Mixing(streams, mix_fn, mix_scale, mix_base, attrs)
    chosen = _route(given, mixing, route_gate, route_bias, shared_expert_w1, shared_expert_w3, attrs)
    device, asm = streams.device, assembly(streams.device)
    inter, active, limit = experts_w1.codes.shape[1], attrs["route_active"], attrs["experts_limit"]
    hidden4 = torch.empty(batch, active * inter, dtype=torch.float16, device=device)
    tile = tile4(dim, inter)
    experts.hidden_rows[1 + inter // tile.rows, batch * active](
        words(experts_w1.codes),
        experts_w1.scale,
        words(experts_w3.codes),
        experts_w3.scale,
        given.planes4.view(torch.int32),
        chosen.weights,
        chosen.ids,
        chosen.order,
        hidden4,
        limit,
        *mixing.finishing,
        A=active,
        D=dim,
        INTER=inter,
        BM=tile.rows,
        G=tile.units,
        UNROLL=tile.unroll,
        ORDERED=batch > 1,
        LIMITED=limit > 0,
        S=count,
        SLICES=mixing.slices,
        ITERATIONS=mixing.iterations,
        KIND=language_type(streams.dtype),
        ASM=asm,
        num_warps=1,
    )
    target = torch.empty_like(streams)
    tile = tile4(active * inter, dim)
    blocks = dim // tile.rows
    experts.down_rows[(blocks, batch) if batch == 1 else (batch, blocks)](
        words(experts_w2.codes),
        experts_w2.scale,
        words(shared_expert_w2.codes),
        shared_expert_w2.scale,
        hidden4.view(torch.int32),
        chosen.hidden8.view(torch.int32),
        chosen.ids,
        streams,
        mixing.post,
        mixing.comb,
        target,
        A=active,
        D=dim,
        INTER=inter,
        S=count,
        BM=tile.rows,
        G=tile.units,
        UNROLL=tile.unroll,
        TOKEN_FIRST=batch > 1,
        ASM=asm,
        num_warps=1,
    )
    return mixing.pre, target


def _route(
    given: NormedInput, mixing: Mixing, gate: Tensor, bias: Tensor, w1: Packed, w3: Packed, attrs: dict[str, Any]
) -> _Chosen:
    """Choose experts; the mixing sums and the shared expert's hidden row come from the same launch."""
    batch, _, dim = given.normed.shape
    count, active, device, inter = gate.shape[0], attrs["route_active"], gate.device, w1.codes.shape[0]
    chosen = _Chosen(
        torch.empty(batch, active, dtype=torch.float32, device=device),
        torch.empty(batch, active, dtype=torch.int64, device=device),
        torch.empty(batch * active, dtype=torch.int32, device=device),
        torch.empty(batch, inter, dtype=torch.float16, device=device),
    )
    block, limit = token_block(batch), attrs["shared_expert_limit"]
    tile = tile8(dim, 1, tokens=block)
    experts.route_rows[count + inter + mixing.slices, batch](
        gate,
        bias,
        given.normed,
        counters(device),
        torch.empty(batch, count, dtype=torch.float32, device=device),
        chosen.weights,
        chosen.ids,
        chosen.order,
        *mixing.summing,
        attrs["route_gate_temp"],
        attrs["route_route_scale"],
        words(w1.codes),
        w1.scale,
        words(w3.codes),
        w3.scale,
        given.planes8.view(torch.int32),
        chosen.hidden8,
        limit,
        E=count,
        BATCH=batch,
        A=active,
        D=dim,
        S=mixing.pre.shape[2],
        SLICE=SLICE,
        SLICES=mixing.slices,
        K=min(512, power(dim)),
        INTER=inter,
        T=block,
        U=tile.units,
        UNROLL=tile.unroll,
        LIMITED=limit > 0,
        KIND=language_type(given.normed.dtype),
        ASM=assembly(device),
        num_warps=1,
    )
    return chosen


def logits(step: Step, streams: Tensor, pre: Tensor, norm_weight: Tensor, head_head: Tensor, **attrs: Any) -> Tensor:
    """Logits f32 [B, 1, V] of one token a row."""
    batch, dim = streams.shape[0], streams.shape[3]
    given = NormedInput(streams, pre, norm_weight, attrs["norm_eps"], planes8=False)
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
