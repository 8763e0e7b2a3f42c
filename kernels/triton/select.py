"""Selections by score: single ops, and the fused kinds that score and select at once and follow the real length.

At decode a session's visible groups are cut into chunks, a program each: one launch scores them and counts the upper 8
bits of their keys, one counts the lower 8 bits of those in the bin that holds the limit, one writes the selection. What
programs tell each other is counts by chunk, added up in a fixed order; nothing has to be cleared in between.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from dsv41c.kernels.reference import index, select
from dsv41c.kernels.step import Step
from dsv41c.kernels.triton.radix import fill, find_bin, item_keys, select_rows, take
from dsv41c.kernels.triton.score import HIDDEN16, chunk_of, score_chunk, score_tiles, shape_of_tiles
from dsv41c.kernels.triton.target import shared_memory

_LEAST = 256  # groups in a chunk, at least
_CHUNKS = 128  # chunks of a session, at most
_PROGRAMS = 256  # programs of all sessions from which on there are fewer chunks each
_FEWEST_CHUNKS = 8
_SCRATCH_ELEMENTS = 1 << 27  # keys held at once for calls of many tokens: 256 MiB


@triton.jit
def score_and_count(
    query, weight, keys, candidates, slots, positions, scores, counts, capacity, count, blocks,
    H: tl.constexpr, HP: tl.constexpr, C: tl.constexpr, WIDTH: tl.constexpr, RATIO: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, MASKED: tl.constexpr, PACKED: tl.constexpr, SOURCE: tl.constexpr, BN: tl.constexpr,
    LEAST: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Grid (chunks, B): keys int16 of a chunk to scores [B, count], and how many have which upper 8 bits.

    counts int32 [2, B, chunks, 256]: of groups, and with SOURCE of blocks. Others as in `score_tiles`.
    """
    session = tl.program_id(1)
    score_chunk(
        query, weight, keys, candidates, slots, positions, scores, capacity, count, blocks,
        H, HP, C, WIDTH, RATIO, BLOCK_SIZE, MASKED, PACKED, BN, LEAST, STAGES,
    )  # fmt: skip
    groups, size = chunk_of(positions, session, count, RATIO, LEAST)
    if tl.program_id(0) * size < groups:
        tl.debug_barrier()  # the keys that other threads stored
        scores += session.to(tl.int64) * count
        out = counts + (session * tl.num_programs(0) + tl.program_id(0)) * 256
        _count_upper(scores, out, groups, groups, size, False, BLOCK_SIZE, LEAST)
        if SOURCE:
            out += tl.num_programs(1) * tl.num_programs(0) * 256
            _count_upper(scores, out, tl.cdiv(groups, BLOCK_SIZE), groups, size // BLOCK_SIZE, True, BLOCK_SIZE, LEAST)


@triton.jit
def _count_upper(
    scores, out, items, groups, size, BLOCKS: tl.constexpr, BLOCK_SIZE: tl.constexpr, LEAST: tl.constexpr
):  # fmt: skip
    """Store how many items of this program's chunk of `size` have which upper 8 bits, int32 [256]."""
    begin = tl.program_id(0) * size
    end = tl.minimum(begin + size, items)
    found = tl.zeros([256], tl.int32)
    for start in range(begin, end, LEAST):
        key = item_keys(scores, start + tl.arange(0, LEAST), end, groups, BLOCKS, BLOCK_SIZE, False)
        found += tl.histogram(key >> 8 & 255, 256, mask=key >= 0)
    tl.store(out + tl.arange(0, 256), found)


@triton.jit
def _add_up(counts, active, chunk):
    """Counts int32 [chunks, 256] added up over the active chunks, and over those before one."""
    bins = tl.arange(0, 256)
    total = tl.zeros([256], tl.int32)
    before = tl.zeros([256], tl.int32)
    for start in range(0, active, 16):
        part = start + tl.arange(0, 16)
        tile = tl.load(counts + part[:, None] * 256 + bins[None, :], mask=(part < active)[:, None], other=0)
        total += tl.sum(tile, 0)
        before += tl.sum(tl.where((part < chunk)[:, None], tile, 0), 0)
    return total, before


@triton.jit
def count_lower(
    scores, positions, counts, lower, above, count, wanted, wanted_blocks,
    RATIO: tl.constexpr, BLOCK_SIZE: tl.constexpr, LEAST: tl.constexpr,
):  # fmt: skip
    """Grid (chunks, B, 1 or 2): how many keys of the bin of the limit have which lower 8 bits.

    lower int32 [2, B, chunks, 256]; above int32 [2, B, chunks, 2]: how many keys of the chunk are above that bin, and
    which bin it is.
    """
    chunk = tl.program_id(0)
    session = tl.program_id(1)
    groups, size = chunk_of(positions, session, count, RATIO, LEAST)
    if chunk * size < groups:
        first = (tl.program_id(2) * tl.num_programs(1) + session) * tl.num_programs(0)
        number = wanted if tl.program_id(2) == 0 else wanted_blocks
        total, _ = _add_up(counts + first * 256, tl.cdiv(groups, size), chunk)
        found, _ = find_bin(total, number)
        bins = tl.arange(0, 256)
        own = tl.load(counts + (first + chunk) * 256 + bins)
        tl.store(above + (first + chunk) * 2, tl.sum(tl.where(bins > found, own, 0), 0))
        tl.store(above + (first + chunk) * 2 + 1, found)
        scores += session.to(tl.int64) * count
        lower += (first + chunk) * 256
        if tl.program_id(2) == 0:
            _count_lower(scores, lower, groups, groups, size, found, False, BLOCK_SIZE, LEAST)
        else:
            items = tl.cdiv(groups, BLOCK_SIZE)
            _count_lower(scores, lower, items, groups, size // BLOCK_SIZE, found, True, BLOCK_SIZE, LEAST)


@triton.jit
def _count_lower(
    scores, out, items, groups, size, found, BLOCKS: tl.constexpr, BLOCK_SIZE: tl.constexpr, LEAST: tl.constexpr
):  # fmt: skip
    """Store how many items of this program's chunk with `found` as upper 8 bits have which lower ones, int32 [256]."""
    begin = tl.program_id(0) * size
    end = tl.minimum(begin + size, items)
    counted = tl.zeros([256], tl.int32)
    for start in range(begin, end, LEAST):
        key = item_keys(scores, start + tl.arange(0, LEAST), end, groups, BLOCKS, BLOCK_SIZE, False)
        counted += tl.histogram(key & 255, 256, mask=key >> 8 == found)
    tl.store(out + tl.arange(0, 256), counted)


@triton.jit
def write_selection(
    scores, positions, lower, above, topk, kept, count, wanted, wanted_blocks, width, blocks,
    RATIO: tl.constexpr, BLOCK_SIZE: tl.constexpr, LEAST: tl.constexpr, CHUNKS: tl.constexpr,
):  # fmt: skip
    """Grid (CHUNKS, B, 1 or 2): what the chunk adds to topk int64 [B, width], then to kept uint8 [B, blocks]."""
    chunk = tl.program_id(0)
    session = tl.program_id(1)
    groups, size = chunk_of(positions, session, count, RATIO, LEAST)
    first = (tl.program_id(2) * tl.num_programs(1) + session) * CHUNKS
    number = wanted if tl.program_id(2) == 0 else wanted_blocks
    topk += session.to(tl.int64) * width
    kept += session.to(tl.int64) * blocks
    scores += session.to(tl.int64) * count
    if chunk * size < tl.maximum(groups, 1):
        active = tl.cdiv(groups, size)
        total, before = _add_up(lower + first * 256, active, chunk)
        part = tl.arange(0, CHUNKS)
        upper = tl.load(above + (first + part) * 2, mask=part < active, other=0)
        found = tl.load(above + first * 2 + 1, mask=active > 0, other=0)
        low, more = find_bin(total, number - tl.sum(upper, 0))
        rest = number - tl.sum(upper, 0) - more
        limit = found * 256 + low
        rest = tl.where(limit > HIDDEN16, rest, 0)
        limit = tl.maximum(limit, HIDDEN16)
        bins = tl.arange(0, 256)
        ahead = tl.sum(tl.where(part < chunk, upper, 0), 0) + tl.sum(tl.where(bins > (limit & 255), before, 0), 0)
        ties = tl.sum(tl.where(bins == (limit & 255), before, 0), 0)
        if tl.program_id(2) == 0:
            _write(scores, topk, groups, groups, size, limit, rest, ahead, ties, False, BLOCK_SIZE, LEAST)
            if chunk == 0:
                all_ties = tl.sum(tl.where(bins == (limit & 255), total, 0), 0)
                taken = tl.sum(upper, 0) + tl.sum(tl.where(bins > (limit & 255), total, 0), 0)
                fill(topk, taken + tl.minimum(rest, all_ties), width, -1, LEAST)
        else:
            items = tl.cdiv(groups, BLOCK_SIZE)
            size = size // BLOCK_SIZE
            _write(scores, kept, items, groups, size, limit, rest, ahead, ties, True, BLOCK_SIZE, LEAST)
    if tl.program_id(2) == 1:
        behind = tl.cdiv(groups, BLOCK_SIZE)
        share = tl.cdiv(blocks - behind, CHUNKS)
        fill(kept, behind + chunk * share, tl.minimum(behind + (chunk + 1) * share, blocks), 0, LEAST)


@triton.jit
def _write(
    scores, out, items, groups, size, limit, rest, ahead, ties,
    BLOCKS: tl.constexpr, BLOCK_SIZE: tl.constexpr, LEAST: tl.constexpr,
):  # fmt: skip
    """Write the selected items of this program's chunk of `size`; `ahead` and `ties` count those of chunks before."""
    begin = tl.program_id(0) * size
    end = tl.minimum(begin + size, items)
    for start in range(begin, end, LEAST):
        item = start + tl.arange(0, LEAST)
        key = item_keys(scores, item, end, groups, BLOCKS, BLOCK_SIZE, False)
        taken, place, ahead, ties = take(key, limit, rest, ahead, ties)
        if BLOCKS:
            tl.store(out + item, taken.to(tl.uint8), mask=item < end)
        else:
            tl.store(out + place, item.to(tl.int64), mask=taken)


def select_topk(index_score: Tensor, *, k: int) -> Tensor:
    """`reference.select_topk` of f32 scores [B, T, N] in one launch, a program a row."""
    batch, tokens, count = index_score.shape
    if index_score.dtype != torch.float32:
        return select.select_topk(index_score, k=k)
    topk = torch.empty(batch, tokens, min(k, count), dtype=torch.int64, device=index_score.device)
    if topk.numel():
        _rows(None, index_score.contiguous(), topk, 0, k, 1)
    return topk


def select_candidates(step: Step, index_score: Tensor, *, ratio: int, block_size: int, blocks: int) -> Tensor:
    """`reference.select_candidates` of f32 scores [B, T, N] in one launch, a program a row."""
    batch, tokens, count = index_score.shape
    if index_score.dtype != torch.float32:
        return select.select_candidates(step, index_score, ratio=ratio, block_size=block_size, blocks=blocks)
    shape = (batch, tokens, triton.cdiv(count, block_size))
    kept = torch.empty(shape, dtype=torch.bool, device=index_score.device)
    if kept.numel():
        _rows(step, index_score.contiguous(), kept, 0, blocks, ratio, block_size)
    return kept


def _rows(step: Step | None, scores: Tensor, out: Tensor, start: int, wanted: int, ratio: int, size: int = 0) -> None:
    """Select in every row of scores [B, rows, N], those of the tokens from `start` on of out [B, T, width]."""
    batch, rows, count = scores.shape
    items = triton.cdiv(count, size) if size else count
    tile = min(4096 // triton.next_power_of_2(size or 1), max(16, triton.next_power_of_2(items)), 2048)
    select_rows[(rows, batch)](
        scores, scores if step is None else step.positions, out.view(torch.uint8) if size else out, start,
        out.shape[1], rows, count, wanted, out.shape[2], RATIO=ratio, STEPPED=step is not None, BLOCKS=size > 0,
        SIZE=max(size, 1), WIDE=scores.dtype == torch.float32, BLOCK=tile, num_warps=4,
    )  # fmt: skip


def index_select(
    step: Step,
    index_query: Tensor,
    index_weight: Tensor,
    index_k: Tensor,
    candidates: Tensor | None = None,
    **attrs: Any,
) -> Tensor:
    """The fused kind: topk int64 [B, T, min(k, N)], in three launches at decode. Attributes as in `kernels.fusion`."""
    return _select(step, index_query, index_weight, index_k, candidates, attrs, 0)[0]


def index_candidates(
    step: Step, index_query: Tensor, index_weight: Tensor, index_k: Tensor, **attrs: Any
) -> tuple[Tensor, Tensor]:
    """The fused kind: candidates bool [B, T, ceil(N / block_size)], then topk, in three launches at decode."""
    topk, kept = _select(step, index_query, index_weight, index_k, None, attrs, attrs["select_candidates_blocks"])
    return kept, topk


def _select(
    step: Step,
    index_query: Tensor,
    index_weight: Tensor,
    index_k: Tensor,
    candidates: Tensor | None,
    attrs: dict[str, Any],
    blocks: int,
) -> tuple[Tensor, Tensor]:
    """topk, and where `blocks` are wanted the kept ones (else topk again)."""
    ratio, size, k = attrs["index_score_ratio"], attrs["index_score_block_size"], attrs["select_topk_k"]
    batch, tokens, _, channels = index_query.shape
    count, device = step.context // ratio, index_query.device
    if index_query.dtype != torch.bfloat16 or channels < 32 or channels & (channels - 1):
        block = {"ratio": ratio, "block_size": size}
        score = index.index_score(step, index_query, index_weight, index_k, candidates=candidates, **block)
        kept = select.select_candidates(step, score, **block, blocks=blocks) if blocks else None
        topk = select.select_topk(score, k=k)
        return topk, topk if kept is None else kept
    topk = torch.empty(batch, tokens, min(k, count), dtype=torch.int64, device=device)
    shape = (batch, tokens, triton.cdiv(count, size))
    kept = torch.empty(shape, dtype=torch.bool, device=device) if blocks else topk
    if count == 0:
        return topk, kept
    scored = (index_query, index_weight, index_k, candidates)
    if tokens == 1 and _LEAST % size == 0:
        _chunks(step, scored, topk, kept, ratio, size, k, blocks)
        return topk, kept
    rows = max(1, min(tokens, _SCRATCH_ELEMENTS // (batch * count)))
    scores = torch.empty(batch * rows * count, dtype=torch.int16, device=device)
    for start in range(0, tokens, rows):
        part = scores[: batch * min(rows, tokens - start) * count].view(batch, -1, count)
        _tiles(step, scored, part, start, ratio, size)
        _rows(step, part, topk, start, k, ratio)
        if blocks:
            _rows(step, part, kept, start, blocks, ratio, size)
    return topk, kept


_Scored = tuple[Tensor, Tensor, Tensor, Tensor | None]


def _tiles(step: Step, scored: _Scored, scores: Tensor, start: int, ratio: int, size: int) -> None:
    """Keys of the tokens from `start` on to scores int16 [B, rows, N]."""
    query, weight, keys, candidates = scored
    batch, rows, count = scores.shape
    shape = shape_of_tiles(query, keys, rows)
    score_tiles[(triton.cdiv(count, shape["BN"]), triton.cdiv(rows, shape["BT"]), batch)](
        query, weight, keys, scores if candidates is None else candidates, step.slots, step.positions, scores,
        keys.shape[1], start, query.shape[1], rows, count, 1 if candidates is None else candidates.shape[2],
        RATIO=ratio, BLOCK_SIZE=size, MASKED=candidates is not None, KEYS=True, **shape,
    )  # fmt: skip


def _chunks(
    step: Step, scored: _Scored, topk: Tensor, kept: Tensor, ratio: int, size: int, k: int, blocks: int
) -> None:
    """The three launches of a decode step."""
    query, weight, keys, candidates = scored
    batch, count, device = query.shape[0], step.context // ratio, query.device
    most = max(_FEWEST_CHUNKS, min(_CHUNKS, _PROGRAMS // batch))
    chunks = min(triton.next_power_of_2(triton.cdiv(count, _LEAST)), 1 << (most.bit_length() - 1))
    parts = 2 if blocks else 1
    scores = torch.empty(batch, count, dtype=torch.int16, device=device)
    counts = torch.empty(2, parts, batch, chunks, 256, dtype=torch.int32, device=device)
    above = torch.empty(parts, batch, chunks, 2, dtype=torch.int32, device=device)
    shape, roomy = shape_of_tiles(query, keys, 1), shared_memory(device) > 128 * 1024
    shape = {name: value for name, value in shape.items() if name != "BT"} | {"BN": 64}
    score_and_count[(chunks, batch)](
        query, weight, keys, scores if candidates is None else candidates, step.slots, step.positions, scores,
        counts[0], keys.shape[1], count, 1 if candidates is None else candidates.shape[2], RATIO=ratio,
        BLOCK_SIZE=size, MASKED=candidates is not None, SOURCE=blocks > 0, LEAST=_LEAST, STAGES=4 if roomy else 2,
        **shape,
    )  # fmt: skip
    shared = {"RATIO": ratio, "BLOCK_SIZE": size, "LEAST": _LEAST}
    grid = (chunks, batch, parts)
    count_lower[grid](scores, step.positions, counts[0], counts[1], above, count, k, blocks, **shared)
    write_selection[grid](
        scores, step.positions, counts[1], above, topk, kept.view(torch.uint8) if blocks else topk, count, k, blocks,
        topk.shape[2], kept.shape[2], CHUNKS=chunks, **shared,
    )  # fmt: skip
