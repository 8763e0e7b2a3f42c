"""The fused kinds on a GPU: a handful of launches for a few rows, batched kernels for many.

Signatures are those of `kernels.fusion`; meanings those of the ops they cover. A kind falls back on the composition of
reference kernels where weights are not stored as the kernels read them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from dsv41c.kernels.fusion import FUSED
from dsv41c.kernels.reference.encodings import Packed, Stacked
from dsv41c.kernels.reference.fused import compose
from dsv41c.kernels.registry import kernels_for
from dsv41c.kernels.step import Step
from dsv41c.kernels.triton import attention, boundary, experts
from dsv41c.kernels.triton.launch import (
    assembly,
    counters,
    fetches_ahead,
    is_fp4,
    is_fp8,
    power,
    tile8,
    token_block,
    words,
)

MOST_ROWS = 8  # rows of a step from which on batched kernels take over
_SLICE = 64  # channels a program of the boundary takes


class _Boundary:
    """One boundary at decode: launched by the constructor; what it leaves for later launches."""

    def __init__(
        self,
        streams: Tensor,
        pre: Tensor,
        fn: Tensor | None,
        weight: Tensor,
        norm_eps: float,
        *,
        ahead: tuple[Tensor, Tensor] | None = None,
        planes4: bool = False,
    ) -> None:
        """`ahead`: the weights of the launches behind this one, whose first bytes are fetched meanwhile."""
        batch, _, count, dim = streams.shape
        device = streams.device
        self.slices = -(-dim // _SLICE)
        rows = power((2 + count) * count + 2)
        self.sums = torch.empty(batch, self.slices, rows, dtype=torch.float32, device=device)
        collapsed = torch.empty(batch, dim, dtype=torch.float32, device=device)
        self.normed = torch.empty(batch, 1, dim, dtype=streams.dtype, device=device)
        self.planes8 = torch.empty(batch, dim, dtype=torch.float16, device=device)
        self.planes4 = torch.empty(batch, dim, dtype=torch.float16, device=device) if planes4 else self.planes8
        first, second = ahead if ahead is not None else (weight, weight)
        chunks = _chunks(first) + _chunks(second) if ahead is not None and fetches_ahead(device) else 0
        boundary.boundary[self.slices + chunks, batch](
            streams,
            pre,
            pre.stride(0),
            fn if fn is not None else weight,
            weight,
            counters(device),
            self.sums,
            collapsed,
            self.normed,
            self.planes8,
            self.planes4,
            norm_eps,
            first,
            first.nbytes,
            second,
            second.nbytes,
            D=dim,
            S=count,
            SLICE=_SLICE,
            SLICES=self.slices,
            BLOCK=power(dim),
            MIX=fn is not None,
            PLANES8=fn is not None,
            PLANES4=planes4,
            num_warps=8,
        )
        self.pre = torch.empty(batch, 1, count, dtype=torch.float32, device=device)
        self.post = torch.empty_like(self.pre)
        self.comb = torch.empty(batch, 1, count, count, dtype=torch.float32, device=device)


def _chunks(weight: Tensor) -> int:
    """Programs that fetch a whole tensor ahead."""
    return -(-weight.nbytes // boundary.AHEAD.value)


def attention_input(
    step: Step,
    streams: Tensor,
    pre: Tensor,
    mix_fn: Tensor,
    mix_scale: Tensor,
    mix_base: Tensor,
    norm_weight: Tensor,
    query_rope: Tensor,
    query_wq_a: Packed,
    query_q_norm: Tensor,
    query_wq_b: Packed,
    window_rows_rope: Tensor,
    window_rows_wkv: Packed,
    window_rows_kv_norm: Tensor,
    **attrs: Any,
) -> tuple[Tensor, ...]:
    """pre, post, comb, normed, query, query_latent, window_rows: four launches for a few rows."""
    weights = (
        mix_fn, mix_scale, mix_base, norm_weight, query_rope, query_wq_a, query_q_norm, query_wq_b, window_rows_rope,
        window_rows_wkv, window_rows_kv_norm,
    )  # fmt: skip
    batch, tokens, count, dim = streams.shape
    if not is_fp8(query_wq_a, query_wq_b, window_rows_wkv) or tokens > 1 or batch > MOST_ROWS * 4:
        return _other("attention_input", query_wq_a, query_wq_b, window_rows_wkv)(step, streams, pre, *weights, **attrs)
    edge = _Boundary(streams, pre, mix_fn, norm_weight, attrs["norm_eps"], ahead=(query_wq_a.codes, window_rows_wkv.codes))
    low, channels = query_wq_a.codes.shape[0], window_rows_wkv.codes.shape[0]
    block, device, tile = token_block(batch), streams.device, tile8(dim, low, channels)
    raw = torch.empty(batch, low + channels, dtype=torch.float32, device=device)
    shared = {"T": block, "ASM": assembly(device), "num_warps": 1}
    attention.input_rows[block + (low + channels) // tile.rows, batch // block](
        words(query_wq_a.codes),
        query_wq_a.scale,
        words(window_rows_wkv.codes),
        window_rows_wkv.scale,
        edge.planes8.view(torch.int32),
        raw,
        edge.sums,
        mix_scale,
        mix_base,
        edge.pre,
        edge.post,
        edge.comb,
        attrs["mix_norm_eps"],
        attrs["mix_eps"],
        QL=low,
        C=channels,
        D=dim,
        S=count,
        SLICES=edge.slices,
        ITERATIONS=attrs["mix_iterations"],
        BM=tile.rows,
        U=tile.units,
        UNROLL=tile.unroll,
        **shared,
    )
    latent = torch.empty(batch, 1, low, dtype=streams.dtype, device=device)
    planes = torch.empty(batch, low, dtype=torch.float16, device=device)
    rows = torch.empty(batch, 1, channels, dtype=streams.dtype, device=device)
    attention.latents[2, batch](
        raw,
        query_q_norm,
        window_rows_kv_norm,
        query_rope,
        step.positions,
        latent,
        planes,
        rows,
        attrs["query_eps"],
        attrs["window_rows_eps"],
        QL=low,
        C=channels,
        R=attrs["query_rope_dim"],
        QB=power(low),
        FAKE=attrs["window_rows_kv_cache"] != "none",
        num_warps=4,
    )
    query = _query(step, query_wq_b, planes, query_rope, attrs["query_heads"], attrs["query_rope_dim"], streams.dtype)
    return edge.pre, edge.post, edge.comb, edge.normed, query, latent, rows


def _query(
    step: Step, wq_b: Packed, planes: Tensor, rope: Tensor, heads: int, rope_dim: int, dtype: torch.dtype
) -> Tensor:
    """The query [B, 1, H, C] of latents in planes8."""
    batch, low = planes.shape
    rows = wq_b.codes.shape[0]
    tile, block = tile8(low, rows), token_block(batch)
    query = torch.empty(batch, 1, heads, rows // heads, dtype=dtype, device=planes.device)
    attention.query_rows[rows // tile.rows, batch // block](
        words(wq_b.codes),
        wq_b.scale,
        planes.view(torch.int32),
        rope,
        step.positions,
        query,
        rows,
        QL=low,
        C=rows // heads,
        R=rope_dim,
        BM=tile.rows,
        T=block,
        U=tile.units,
        UNROLL=tile.unroll,
        ASM=assembly(planes.device),
        num_warps=1,
    )
    return query


def attention_output(
    step: Step,
    query: Tensor,
    window_kv: Tensor,
    window_rows: Tensor,
    streams: Tensor,
    post: Tensor,
    comb: Tensor,
    attend_rope: Tensor,
    attend_sink: Tensor,
    output_wo_a: Packed,
    output_wo_b: Packed,
    *,
    compress_kv: Tensor | None = None,
    topk: Tensor | None = None,
    **attrs: Any,
) -> tuple[Tensor, Tensor]:
    """window_kv, streams: four launches for a few rows. The ring's row is written behind every read of it."""
    batch, tokens, heads, channels = query.shape
    if not is_fp8(output_wo_a, output_wo_b) or tokens > 1 or batch > MOST_ROWS * 4:
        return _other("attention_output", output_wo_a, output_wo_b)(
            step, query, window_kv, window_rows, streams, post, comb, attend_rope, attend_sink, output_wo_a,
            output_wo_b, compress_kv=compress_kv, topk=topk, **attrs,
        )  # fmt: skip
    groups = attrs["output_groups"]
    planes = _attend(
        step, query, window_kv, window_rows, attend_rope, attend_sink, compress_kv, topk, output_wo_a.codes, attrs
    )
    device, asm, block = query.device, assembly(query.device), token_block(batch)
    width, columns = output_wo_a.codes.shape
    low = torch.empty(batch, width, dtype=torch.float16, device=device)
    tile = tile8(columns, width // groups)
    attention.low_rank_rows[width // tile.rows, batch // block](
        words(output_wo_a.codes),
        output_wo_a.scale,
        planes.view(torch.int32),
        low,
        width,
        groups,
        N=columns,
        RANK=width // groups,
        WIDTH=width,
        BM=tile.rows,
        T=block,
        U=tile.units,
        UNROLL=tile.unroll,
        ASM=asm,
        KIND=_kind(query.dtype),
        num_warps=1,
    )
    target = torch.empty_like(streams)
    count, dim = streams.shape[2:]
    tile = tile8(width, dim)
    attention.output_rows[dim // tile.rows, batch // block](
        words(output_wo_b.codes),
        output_wo_b.scale,
        low.view(torch.int32),
        streams,
        post,
        comb,
        target,
        N=width,
        D=dim,
        S=count,
        BM=tile.rows,
        T=block,
        U=tile.units,
        UNROLL=tile.unroll,
        ASM=asm,
        num_warps=1,
    )
    return window_kv, target


def _attend(
    step: Step,
    query: Tensor,
    window_kv: Tensor,
    window_rows: Tensor,
    rope: Tensor,
    sink: Tensor,
    compress_kv: Tensor | None,
    topk: Tensor | None,
    ahead: Tensor,
    attrs: dict[str, Any],
) -> Tensor:
    """Attention of one token a row, as planes8 for each group of heads; stores the ring's row. Fetches `ahead`."""
    batch, _, heads, channels = query.shape
    window, keys, block = attrs["attend_window"], 32, 16
    selected = topk.shape[2] if topk is not None else 0
    splits = -(-window // keys) + -(-selected // keys)
    packed = window_kv.dtype == torch.uint8
    device = query.device
    best = torch.empty(2, batch, splits, heads, dtype=torch.float32, device=device)
    value = torch.empty(batch, splits, heads, channels, dtype=torch.float32, device=device)
    blocks = -(-heads // block)
    chunks = -(-_chunks(ahead) // blocks) if fetches_ahead(device) else 0
    attention.attend_split[splits + chunks, blocks, batch](
        query,
        window_kv,
        window_rows,
        compress_kv if compress_kv is not None else window_kv,
        topk if topk is not None else step.slots,
        step.slots,
        step.positions,
        best[0],
        best[1],
        value,
        heads,
        compress_kv.shape[1] if compress_kv is not None else 1,
        selected,
        attrs["attend_ratio"],
        channels**-0.5,
        ahead,
        ahead.nbytes,
        SPLITS=splits,
        W=window,
        C=channels,
        HEADS=block,
        KEYS=keys,
        PACKED=packed,
        SELECTED=topk is not None,
        num_warps=4,
    )
    planes = torch.empty(batch, heads * channels, dtype=torch.float16, device=device)
    attention.attend_join[heads + 1, batch](
        best[0],
        best[1],
        value,
        sink,
        rope,
        step.positions,
        step.slots,
        planes,
        window_rows,
        window_kv,
        heads,
        SPLITS=splits,
        W=window,
        C=channels,
        R=attrs["attend_rope_dim"],
        GROUP=heads // attrs["output_groups"],
        PACKED=packed,
        KIND=_kind(query.dtype),
        num_warps=2,
    )
    return planes


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
    """pre, streams: four launches for a few rows."""
    routed, shared = (experts_w1, experts_w2, experts_w3), (shared_expert_w1, shared_expert_w2, shared_expert_w3)
    batch, tokens, count, dim = streams.shape
    if not (is_fp4(*routed) and is_fp8(*shared)) or tokens > 1 or batch > MOST_ROWS * 4:
        weights = (mix_fn, mix_scale, mix_base, norm_weight, route_gate, route_bias, *routed, *shared)
        return _other("ffn", *routed, *shared)(step, streams, pre, *weights, **attrs)
    ahead = (route_gate, shared_expert_w1.codes)
    edge = _Boundary(streams, pre, mix_fn, norm_weight, attrs["norm_eps"], ahead=ahead, planes4=True)
    chosen = _route(edge, route_gate, route_bias, mix_scale, mix_base, shared_expert_w1, shared_expert_w3, attrs)
    device, asm = streams.device, assembly(streams.device)
    inter, active = experts_w1.codes.shape[1], attrs["route_active"]
    hidden4 = torch.empty(batch, active * inter, dtype=torch.float16, device=device)
    limit = attrs["experts_limit"]
    experts.hidden_rows[inter, batch * active](
        words(experts_w1.codes),
        experts_w1.scale,
        words(experts_w3.codes),
        experts_w3.scale,
        edge.planes4.view(torch.int32),
        chosen.weights,
        chosen.ids,
        chosen.order,
        hidden4,
        limit,
        A=active,
        D=dim,
        INTER=inter,
        G=min(32, power(dim // 32)),
        UNROLL=5,
        ORDERED=batch > 1,
        LIMITED=limit > 0,
        KIND=_kind(streams.dtype),
        ASM=asm,
        num_warps=1,
    )
    target = torch.empty_like(streams)
    experts.down_rows[(dim, batch) if batch == 1 else (batch, dim)](
        words(experts_w2.codes),
        experts_w2.scale,
        words(shared_expert_w2.codes),
        shared_expert_w2.scale,
        hidden4.view(torch.int32),
        chosen.hidden8.view(torch.int32),
        chosen.ids,
        streams,
        edge.post,
        edge.comb,
        target,
        A=active,
        D=dim,
        INTER=inter,
        S=count,
        G=min(32, power(active * inter // 32)),
        UNROLL=14,
        TOKEN_FIRST=batch > 1,
        ASM=asm,
        num_warps=1,
    )
    return edge.pre, target


class _Chosen(NamedTuple):
    """What the router's launch leaves: weights f32 and ids int64 [B, active], pairs by expert, the shared hidden row."""

    weights: Tensor
    ids: Tensor
    order: Tensor
    hidden8: Tensor


def _route(
    edge: _Boundary,
    gate: Tensor,
    bias: Tensor,
    mix_scale: Tensor,
    mix_base: Tensor,
    w1: Packed,
    w3: Packed,
    attrs: dict[str, Any],
) -> _Chosen:
    """Choose experts, and finish the mixing and the shared expert's hidden row beside it."""
    batch, _, dim = edge.normed.shape
    count, active, device, inter = gate.shape[0], attrs["route_active"], gate.device, w1.codes.shape[0]
    chosen = _Chosen(
        torch.empty(batch, active, dtype=torch.float32, device=device),
        torch.empty(batch, active, dtype=torch.int64, device=device),
        torch.empty(batch * active, dtype=torch.int32, device=device),
        torch.empty(batch, inter, dtype=torch.float16, device=device),
    )
    tile, limit = tile8(dim, 1), attrs["shared_expert_limit"]
    experts.route_rows[1 + count + inter, batch](
        gate,
        bias,
        edge.normed,
        counters(device),
        torch.empty(batch, count, dtype=torch.float32, device=device),
        chosen.weights,
        chosen.ids,
        chosen.order,
        edge.sums,
        mix_scale,
        mix_base,
        edge.pre,
        edge.post,
        edge.comb,
        attrs["mix_norm_eps"],
        attrs["mix_eps"],
        attrs["route_gate_temp"],
        attrs["route_route_scale"],
        words(w1.codes),
        w1.scale,
        words(w3.codes),
        w3.scale,
        edge.planes8.view(torch.int32),
        chosen.hidden8,
        limit,
        count,
        BATCH=batch,
        A=active,
        EB=power(count),
        D=dim,
        S=edge.pre.shape[2],
        SLICES=edge.slices,
        ITERATIONS=attrs["mix_iterations"],
        K=min(512, power(dim)),
        INTER=inter,
        T=token_block(batch),
        U=tile.units,
        UNROLL=5,
        LIMITED=limit > 0,
        KIND=_kind(edge.normed.dtype),
        ASM=assembly(device),
        num_warps=1,
    )
    return chosen


def logits(step: Step, streams: Tensor, pre: Tensor, norm_weight: Tensor, head_head: Tensor, **attrs: Any) -> Tensor:
    """Logits f32 [B, T, V]: two launches for a few rows."""
    batch, tokens, _, dim = streams.shape
    if tokens > 1 or batch > MOST_ROWS * 4:
        return _other("logits")(step, streams, pre, norm_weight, head_head, **attrs)
    edge = _Boundary(streams, pre, None, norm_weight, attrs["norm_eps"])
    count, block = head_head.shape[0], token_block(batch)
    result = torch.empty(batch, 1, count, dtype=torch.float32, device=streams.device)
    rows = 4 if block == 1 else 1
    experts.head_rows[-(-count // rows), batch // block](
        head_head,
        edge.normed,
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


_KINDS = {"torch.bfloat16": "bfloat16", "torch.float32": "float32"}


def _kind(dtype: torch.dtype) -> Any:
    import triton.language as tl

    return getattr(tl, _KINDS[str(dtype)])


def _other(kind: str, *packed: object) -> Any:
    """The kernel for many rows, or for weights that are stored otherwise."""
    return compose(FUSED[kind], kernels_for("cuda", "static"))


NATIVE = {"attention_input": attention_input, "attention_output": attention_output, "ffn": ffn, "logits": logits}
