"""What checks of a spec look at: its valid sections, its layer map, and where things were written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from dsv41c.compiler.checks.flow import Flow, flow_of_map
from dsv41c.compiler.checks.ledger import Fact, listed, read
from dsv41c.compiler.layer_map import SHARED_KINDS, LayerMap
from dsv41c.diagnostics import Span

if TYPE_CHECKING:
    from dsv41c.compiler.spec import Loaded
    from dsv41c.compiler.spec.models import Engram, Layers, Model, Placement
    from dsv41c.compiler.spec.salvage import Salvaged

LAYER_LISTS = ("kv_source_layers", "index_source_layers", "engram_layers")


@dataclass(frozen=True)
class View:
    """A loaded spec, section by section; a section that is not valid is None, and its checks have nothing to say.

    Of a layer map that is not valid the sound fields are judged; `unsound` are facts that rest on the others. No check
    here reads a width, so model and layers are enough to judge the layer map, whatever else is wrong.
    """

    loaded: Loaded
    model: Model | None
    layers: Layers | None
    engram: Engram | None
    placement: Placement | None
    unsound: frozenset[Fact] = frozenset()

    @staticmethod
    def of(loaded: Loaded) -> View:
        """The view of a loaded spec."""
        from dsv41c.compiler.spec.models import Engram, Layers, Model, Placement

        model, layers = loaded.sections.get("model"), loaded.sections.get("layers")
        engram, placement = loaded.sections.get("engram"), loaded.sections.get("placement")
        unsound: frozenset[Fact] = frozenset()
        if layers is None and loaded.salvaged is not None:
            layers, unsound = loaded.salvaged.layers, _unsound(loaded.salvaged)
        return View(
            loaded,
            model if isinstance(model, Model) else None,
            layers if isinstance(layers, Layers) else None,
            engram if isinstance(engram, Engram) else None,
            placement if isinstance(placement, Placement) else None,
            unsound,
        )

    @cached_property
    def layer_map(self) -> LayerMap | None:
        """The layer map, where model and layers are valid and agree on the number of layers."""
        if self.model is None or self.layers is None or len(self.layers.compress_ratios) < self.model.n_layers:
            return None
        return LayerMap.of(self.model, self.layers)

    @cached_property
    def flow(self) -> Flow | None:
        """Who produces and who reads the shared states."""
        return None if self.layer_map is None else flow_of_map(self.layer_map, self.loaded.spans)

    def place(self, *path: str | int) -> Span:
        """Where a value was written; of a section or a list its first line only, so that findings stay small."""
        span = self.loaded.spans.value(path)
        return span if span.end_line in (0, span.line) else Span(span.file, span.line, span.column)

    def entries(self, name: str) -> Iterator[tuple[int, int]]:
        """(index, layer) of a list of the layer map."""
        if self.layers is not None:
            yield from enumerate(getattr(self.layers, name))


def _unsound(salvaged: Salvaged) -> frozenset[Fact]:
    """The facts that rest on what was left out of a layer map."""
    lists = frozenset(listed(name) for name in salvaged.unsound)
    return lists | {read(kind, layer) for layer in salvaged.unsound_reads for kind in SHARED_KINDS}
