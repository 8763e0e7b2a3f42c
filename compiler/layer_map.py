"""The layer map: which layer produces which shared state, and where a reader finds it.

A read resolves to the latest producer at or before the reader, unless the spec says otherwise (`layers.reads`). Only
entries that could produce count here: in range and on a layer with a compressed branch. What is wrong with the lists
themselves is for the checks to say.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dsv41c.compiler.spec.models import Layers, Model

SHARED_KINDS = ("compress_kv", "index_k", "topk", "candidates")


@dataclass(frozen=True)
class LayerMap:
    """Compress ratios, source layers and explicit reads of a model with `len(ratios)` layers."""

    ratios: tuple[int, ...]
    kv_source_layers: tuple[int, ...]
    index_source_layers: tuple[int, ...]
    candidate_source_layer: int | None
    engram_layers: tuple[int, ...]
    reads: Mapping[int, Mapping[str, int]] = field(default_factory=dict)

    @staticmethod
    def of(model: Model, layers: Layers) -> LayerMap:
        """The layer map of a spec's sections."""
        return LayerMap(
            layers.compress_ratios[: model.n_layers],
            layers.kv_source_layers,
            layers.index_source_layers,
            layers.candidate_source_layer,
            layers.engram_layers,
            {layer: {str(kind): source for kind, source in named.items()} for layer, named in layers.reads.items()},
        )

    @cached_property
    def producers(self) -> Mapping[str, tuple[int, ...]]:
        """The layers that produce each shared kind, ascending.

        Keys derive from the compressor's latent, so a layer owns index keys only if it is in both lists.
        """
        kv = self._compressed(self.kv_source_layers)
        index = self._compressed(self.index_source_layers)
        selecting = set(index)
        candidate = [] if self.candidate_source_layer is None else [self.candidate_source_layer]
        return {
            "compress_kv": kv,
            "index_k": tuple(layer for layer in kv if layer in selecting),
            "topk": index,
            "candidates": tuple(layer for layer in candidate if layer in selecting),
        }

    @cached_property
    def engrams(self) -> tuple[int, ...]:
        """Engram layers in range, in the order of the spec's list (the order of hash ids), each once."""
        return tuple(dict.fromkeys(layer for layer in self.engram_layers if 0 <= layer < len(self.ratios)))

    def _compressed(self, layers: Iterable[int]) -> tuple[int, ...]:
        return tuple(sorted({n for n in layers if 0 <= n < len(self.ratios) and self.ratios[n] > 0}))

    def produces(self, kind: str, layer: int) -> bool:
        """Whether a layer produces a shared kind."""
        producers = self.producers[kind]
        return producers[bisect_right(producers, layer) - 1] == layer if producers else False

    def explicit(self, kind: str, layer: int) -> int | None:
        """The producer that `layers.reads` names for a layer, if any."""
        return self.reads.get(layer, {}).get(kind)

    def source(self, kind: str, layer: int) -> int | None:
        """The layer whose `kind` a layer reads: the one `layers.reads` names, else the latest at or before it."""
        named = self.explicit(kind, layer)
        if named is not None:
            return named
        producers = self.producers[kind]
        position = bisect_right(producers, layer)
        return producers[position - 1] if position else None

    def reads_candidates(self, layer: int) -> bool:
        """Whether an index source masks its scores: every one after the candidate source does; the source does not."""
        if self.explicit("candidates", layer) is not None:
            return True
        candidates = self.producers["candidates"]
        return bool(candidates) and layer > candidates[0] and self.produces("topk", layer)
