"""Kernels for GPUs, written in Triton. Importing this package imports Triton: the registry does so on demand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dsv41c.kernels.triton import compress, embed, engram, fused, index, select
from dsv41c.kernels.triton.fused import shard_kernels

__all__ = ["NATIVE", "shard_kernels"]

# The native kernels by op kind or fused kind; `kernels.fusion.NATIVE` says which there are to be.
NATIVE: dict[str, Callable[..., Any]] = {
    "embed": embed.embed,
    "engram_ids": engram.engram_ids,
    "engram_rows": engram.engram_rows,
    "engram_gate": engram.engram_gate,
    "compress": compress.compress,
    "index_keys": index.index_keys,
    "index_query": index.index_query,
    "index_score": index.index_score,
    "select_candidates": select.select_candidates,
    "select_topk": select.select_topk,
    "index_candidates": select.index_candidates,
    "index_select": select.index_select,
    **fused.NATIVE,
}
