"""The attention sublayer at decode: four launches for its input, four for its output."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dsv41c.kernels.collectives import Mailboxes
from dsv41c.kernels.reference.encodings import Packed
from dsv41c.kernels.step import Step
from dsv41c.kernels.triton import attention
from dsv41c.kernels.triton.decode_input import SublayerInput
from dsv41c.kernels.triton.exchange import exchange
from dsv41c.kernels.triton.launch import assembly, language_type, power, scales, tile8, vector_block, words
from dsv41c.kernels.triton.target import AMD_SHARED, shared_memory

_HEADS = 16  # heads of a program, the fewest that a matrix product takes


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
    """pre, post, comb, normed, query, query_latent, window_rows of one token a row."""
    batch, dim = streams.shape[0], streams.shape[3]
    mix = (mix_fn, mix_scale, mix_base, attrs)
    given = SublayerInput(streams, pre, norm_weight, attrs["norm_eps"], mix=mix)
    low, channels = query_wq_a.codes.shape[0], window_rows_wkv.codes.shape[0]
    block, device = vector_block(batch), streams.device
    tile = tile8(dim, low, channels, tokens=block)
    raw = torch.empty(batch, low + channels, dtype=torch.float32, device=device)
    attention.input_rows[(low + channels) // tile.rows, -(-batch // block)](
        words(query_wq_a.codes),
        scales(query_wq_a),
        words(window_rows_wkv.codes),
        scales(window_rows_wkv),
        given.vectors8,
        raw,
        batch,
        QL=low,
        C=channels,
        D=dim,
        BM=tile.rows,
        T=block,
        U=tile.units,
        UNROLL=tile.unroll,
        ASM=assembly(device),
        num_warps=tile.warps,
    )
    latent = torch.empty(batch, 1, low, dtype=streams.dtype, device=device)
    planes = torch.empty(batch, low, dtype=torch.float16, device=device) if batch == 1 else latent
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
        PLANES=batch == 1,
        num_warps=4,
    )
    vectors = planes.view(torch.int32) if batch == 1 else latent
    query = _query(step, given, query_wq_b, vectors, query_rope, attrs)
    return given.pre, given.post, given.comb, given.normed, query, latent, rows


def _query(
    step: Step, given: SublayerInput, wq_b: Packed, vectors: Tensor, rope: Tensor, attrs: dict[str, Any]
) -> Tensor:
    """The query [B, 1, H, C] of latents as `rows8` takes them; finishes the mixing coefficients beside it."""
    batch, (rows, low), device = given.normed.shape[0], wq_b.codes.shape, vectors.device
    heads = attrs["query_heads"]
    block = vector_block(batch)
    tile = tile8(low, rows, tokens=block)
    pairs = max(2, tile.rows)  # rope turns pairs of rows
    query = torch.empty(batch, 1, heads, rows // heads, dtype=given.normed.dtype, device=device)
    attention.query_rows[batch + -(-batch // block) * (rows // pairs),](
        words(wq_b.codes),
        scales(wq_b),
        vectors,
        rope,
        step.positions,
        query,
        *given.finishing,
        rows,
        QL=low,
        C=rows // heads,
        R=attrs["query_rope_dim"],
        BM=pairs,
        T=block,
        U=tile.units,
        UNROLL=tile.unroll,
        ASM=assembly(device),
        BATCH=batch,
        D=given.normed.shape[2],
        S=given.pre.shape[2],
        SLICES=given.slices,
        ITERATIONS=given.iterations,
        num_warps=tile.warps,
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
    boxes: Mailboxes | None = None,
    **attrs: Any,
) -> tuple[Tensor, Tensor]:
    """window_kv and streams of one token a row. The ring's row is written behind every read of the ring.

    With mailboxes, weights are a shard's, and its part of the output is summed with the others'.
    """
    batch, device, groups = query.shape[0], query.device, attrs["output_groups"]
    cache = (window_kv, window_rows, compress_kv, topk)
    met = exchange(boxes, streams)
    attended = _attend(step, query, cache, attend_rope, attend_sink, attrs, met)
    asm, block = assembly(device), vector_block(batch)
    width, columns = output_wo_a.codes.shape
    low = torch.empty(batch, width, dtype=attended.dtype, device=device)
    tile = tile8(columns, width // groups, tokens=block)
    attention.low_rank_rows[width // tile.rows, -(-batch // block)](
        words(output_wo_a.codes),
        scales(output_wo_a),
        attended.view(torch.int32) if batch == 1 else attended,
        low,
        batch,
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
        KIND=language_type(query.dtype),
        num_warps=tile.warps,
    )
    target = torch.empty_like(streams)
    count, dim = streams.shape[2:]
    tile = tile8(width, dim, tokens=block, launch="wo_b")
    attention.output_rows[dim // tile.rows, -(-batch // block)](
        words(output_wo_b.codes),
        scales(output_wo_b),
        low.view(torch.int32) if batch == 1 else low,
        streams,
        post,
        comb,
        target,
        batch,
        N=width,
        D=dim,
        S=count,
        BM=tile.rows,
        T=block,
        U=tile.units,
        UNROLL=tile.unroll,
        ASM=asm,
        **met,
        num_warps=tile.warps,
    )
    return window_kv, target


def _attend(
    step: Step,
    query: Tensor,
    cache: tuple[Tensor, Tensor, Tensor | None, Tensor | None],
    rope: Tensor,
    sink: Tensor,
    attrs: dict[str, Any],
    met: dict[str, Any],
) -> Tensor:
    """Attention of one token a row: planes8 for each group of heads, plain rows of several; stores the ring's row."""
    window_kv, window_rows, compress_kv, topk = cache
    batch, _, heads, channels = query.shape
    window, device = attrs["attend_window"], query.device
    selected = topk.shape[2] if topk is not None else 0
    # One session fills a GPU with small splits only; AMD has no room for large ones.
    keys, warps = (64, 8) if batch >= 4 and shared_memory(device) > AMD_SHARED else (32, 4)
    splits = -(-window // keys) + -(-selected // keys)
    packed = window_kv.dtype == torch.uint8
    best = torch.empty(2, batch, splits, heads, dtype=torch.float32, device=device)
    value = torch.empty(batch, splits, heads, channels, dtype=torch.float32, device=device)
    attention.attend_split[splits, -(-heads // _HEADS), batch](
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
        SPLITS=splits,
        W=window,
        C=channels,
        HEADS=_HEADS,
        KEYS=keys,
        PACKED=packed,
        SELECTED=topk is not None,
        num_warps=warps,
    )
    vectors = torch.empty(batch, heads * channels, dtype=torch.float16 if batch == 1 else query.dtype, device=device)
    attention.attend_join[heads + 1, batch](
        best[0],
        best[1],
        value,
        sink,
        rope,
        step.positions,
        step.slots,
        vectors,
        window_rows,
        window_kv,
        met["sequence"],
        heads,
        SPLITS=splits,
        W=window,
        C=channels,
        R=attrs["attend_rope_dim"],
        GROUP=heads // attrs["output_groups"],
        PACKED=packed,
        KIND=language_type(query.dtype),
        SHARDS=met["SHARDS"],
        num_warps=4,
    )
    return vectors
