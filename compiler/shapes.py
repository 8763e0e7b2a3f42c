"""Shapes and dtypes of values, by the name of the port that writes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsv41c.compiler.engram_hash import columns
from dsv41c.kernels.catalog import DTYPE_BYTES
from dsv41c.kernels.encodings import CACHE_ROWS

if TYPE_CHECKING:
    from dsv41c.compiler.spec.models import Spec

Shape = tuple[int | str, ...]


class Shapes:
    """Shape and dtype of each value of a spec. B sessions, T tokens; `context/r` groups; session state has no B."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.compute = "bf16" if spec.numerics.compute == "bf16" else "f32"
        self._step = self._step_shapes()

    def of(self, name: str, ratio: int) -> tuple[Shape, str]:
        """Shape and dtype of the value at a port; `ratio` is that of its layer."""
        if name in self._step:
            return self._step[name]
        return self._grouped_shape(name, max(ratio, 1))

    def bytes(self, shape: Shape, dtype: str) -> int:
        """Bytes of a value: per token for step values (B = T = 1, the whole context), per session for session state."""
        total = DTYPE_BYTES[dtype]
        for size in shape:
            total *= self._size(size)
        return total

    def _size(self, size: int | str) -> int:
        if isinstance(size, int):
            return size
        if size in ("B", "T", "T/r"):
            return 1
        ratio, _, block = size.removeprefix("context/").partition("/")
        groups = self.spec.runtime.max_context // int(ratio)
        return -(-groups // int(block or 1))

    def _grouped_shape(self, name: str, ratio: int) -> tuple[Shape, str]:
        """State and scores that hold a row for each complete group."""
        spec = self.spec
        rows = spec.runtime.max_context // ratio
        shapes: dict[str, tuple[Shape, str]] = {
            "group_tail": ((2, ratio, spec.attention.head_dim), "f32"),
            "compress_kv": self._cache("compress_kv", rows, spec.attention.head_dim),
            "index_k": self._cache("index_k", rows, spec.indexer.head_dim),
            "index_score": (("B", "T", f"context/{ratio}"), "f32"),
            "candidates": (("B", "T", f"context/{ratio}/{spec.indexer.candidate_block_size}"), "bool"),
        }
        return shapes[name]

    def _cache(self, kind: str, rows: int, channels: int) -> tuple[Shape, str]:
        """A session cache: rows of channels, or of bytes where they are packed."""
        if self.spec.numerics.kv_cache == "packed":
            return (rows, CACHE_ROWS[kind].bytes((channels,))), "u8"
        return (rows, channels), self.compute

    def _step_shapes(self) -> dict[str, tuple[Shape, str]]:
        spec, compute = self.spec, self.compute
        model, attention, indexer, streams = spec.model, spec.attention, spec.indexer, spec.mhc.streams
        hidden: tuple[Shape, str] = (("B", "T", model.dim), compute)
        shapes: dict[str, tuple[Shape, str]] = {
            "ids": (("B", "T"), "i64"),
            "streams": (("B", "T", streams, model.dim), compute),
            "pre": (("B", "T", streams), "f32"),
            "post": (("B", "T", streams), "f32"),
            "comb": (("B", "T", streams, streams), "f32"),
            "collapsed": hidden,
            "normed": hidden,
            "sublayer_out": hidden,
            "routed": (("B", "T", model.dim), "f32"),
            "query": (("B", "T", attention.n_heads, attention.head_dim), compute),
            "attended": (("B", "T", attention.n_heads, attention.head_dim), compute),
            "query_latent": (("B", "T", attention.q_lora_rank), compute),
            "window_rows": (("B", "T", attention.head_dim), compute),
            "window_kv": self._cache("window_kv", attention.window_size, attention.head_dim),
            "latent": (("B", "T/r", attention.head_dim), compute),
            "index_query": (("B", "T", indexer.n_heads, indexer.head_dim), compute),
            "index_weight": (("B", "T", indexer.n_heads), compute),
            "topk": (("B", "T", indexer.topk), "i64"),
            "expert_weights": (("B", "T", spec.moe.n_activated_experts), "f32"),
            "expert_ids": (("B", "T", spec.moe.n_activated_experts), "i64"),
            "logits": (("B", "T", model.vocab_size), "f32"),
        }
        if spec.engram is not None:
            width = columns(spec.engram)
            shapes |= {
                "engram_ids": (("B", "T", len(spec.layers.engram_layers), width), "i64"),
                "engram_rows": (("B", "T", width * spec.engram.head_dim), compute),
                "engram_gate": (("B", "T", streams), "f32"),
                "token_history": ((spec.engram.max_ngram_size - 1,), "i64"),
            }
        return shapes
