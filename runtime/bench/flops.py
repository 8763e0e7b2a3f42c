"""Floating-point operations of a prompt, from the manifest alone: what the compute floor of a prefill is made of.

A multiplication and an addition count two. Counted are matrix products: of weights, of queries with keys, of weights
with values, and of the small matrices that mix the streams. Of a prompt only the last token has logits.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from dsv41c.runtime.manifest import Manifest, OpEntry
from dsv41c.runtime.tail import TailKind, computed_rows

# Matrices that are looked up or multiplied element by element.
_NO_PRODUCT = ("embed", "engram_table", "engram_q_weight", "engram_k_weight")


def prefill_flops(manifest: Manifest, tokens: int, *, tail: TailKind) -> float:
    """Operations of a prompt of so many tokens, fed to an empty session for the last token's logits.

    `tail`: which rows at its end regions compute, as for `Engine`.
    """
    ops = {op.id: op for op in manifest.ops}
    counter = _Counter(manifest)
    total = 0.0
    computed = computed_rows(manifest, tail)
    for region in manifest.regions:
        last = computed[region.id]
        rows = tokens if last is None else min(tokens, last)
        total += sum(counter.of(ops[op], tokens - rows, tokens) for op in region.ops)
    return total


def sum_of_visible(ratio: int, most: int, first: int, end: int) -> int:
    """Sum over positions p from `first` to `end` (exclusive) of min((p + 1) // ratio, most)."""
    return _sum_to(ratio, most, end) - _sum_to(ratio, most, first)


def _sum_to(ratio: int, most: int, count: int) -> int:
    """Sum of min(q // ratio, most) for q from 1 to `count`."""
    if count // ratio >= most:  # from most * ratio on, every q adds `most`
        whole = most * ratio
        return _sum_to(ratio, most + 1, whole - 1) + most * (count - whole + 1) if most else 0
    full = count // ratio
    return ratio * full * (full - 1) // 2 + full * (count - full * ratio + 1)


class _Counter:
    def __init__(self, manifest: Manifest) -> None:
        self.weights = {entry.id: entry for entry in manifest.weights}
        self.values = {value.id: value for value in manifest.values}
        self.producers = {value: op for op in manifest.ops for value in op.writes.values()}
        self.active = {op.layer: int(op.attrs["active"]) for op in manifest.ops if op.kind == "route"}
        self.streams, self.dim = manifest.model.streams, manifest.model.dim

    def of(self, op: OpEntry, first: int, end: int) -> float:
        """Operations of an op on the rows of positions `first` to `end` (exclusive)."""
        rows: float = end - first
        if op.kind == "head":
            rows = min(rows, 1)
        if op.kind == "index_keys":  # a key for each group
            rows /= int(op.attrs["ratio"])
        products = rows * self._weights(op)
        if op.kind == "collapse":
            return products + 2 * rows * self.streams * self.dim
        if op.kind == "expand":
            return products + 2 * rows * self.streams * self.dim * (self.streams + 1)
        if op.kind in ("attend", "index_score"):
            return products + self._keys(op, first, end)
        return products

    def _weights(self, op: OpEntry) -> float:
        """Operations of a row with the op's matrices."""
        found = 0.0
        for weight in op.weights.values():
            entry = self.weights.get(weight)
            if entry is not None and len(entry.shape) == 2 and entry.role not in _NO_PRODUCT:
                found += 2.0 * prod(entry.shape) * (self.active[op.layer] if entry.count > 1 else 1)
        return found

    def _keys(self, op: OpEntry, first: int, end: int) -> float:
        ratio = int(op.attrs["ratio"])
        if op.kind == "attend":
            heads, channels = self._sizes(op.reads["query"])
            keys = sum_of_visible(1, int(op.attrs["window"]), first, end)
            if "topk" in op.reads:
                keys += sum_of_visible(ratio, int(self.producers[op.reads["topk"]].attrs["k"]), first, end)
            return 4.0 * heads * channels * keys
        heads, channels = self._sizes(op.reads["index_query"])
        most = end
        if "candidates" in op.reads:
            attrs: Mapping[str, int | float | str] = self.producers[op.reads["candidates"]].attrs
            most = int(attrs["blocks"]) * int(attrs["block_size"])
        return 2.0 * heads * channels * sum_of_visible(ratio, most, first, end)

    def _sizes(self, query: str) -> tuple[int, int]:
        """Heads and channels of a query [B, T, heads, channels]."""
        heads, channels = self.values[query].shape[-2:]
        return int(heads), int(channels)
