"""Pictures of a graph as text, DOT, mermaid, JSON, SVG or a page of its own. The same graph gives the same bytes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from dsv41c.compiler.draw import as_json, dot, mermaid, page, text
from dsv41c.compiler.draw.picture import Level, Picture, picture
from dsv41c.compiler.draw.view import Facts, view
from dsv41c.compiler.draw.words import answers
from dsv41c.compiler.ir import Graph
from dsv41c.compiler.select import Selection


@dataclass(frozen=True, slots=True)
class Drawing:
    """A graph, perhaps a selection of it, at a level (None: that of the format), less the hidden kinds."""

    graph: Graph
    selection: Selection | None = None
    devices: tuple[str, ...] = ()
    level: Level | None = None
    hidden: Collection[str] = ()
    facts: Facts = field(default_factory=Facts)

    @property
    def remarks(self) -> tuple[str, ...]:
        """The selection's answer in words."""
        return () if self.selection is None else answers(self.graph, self.selection, self.devices)

    def picture(self, level: Level, *more: str) -> Picture:
        """Its nodes and arrows at a level, with more remarks in front."""
        return picture(self.graph, level, self.selection, self.devices, self.hidden, (*more, *self.remarks))


def _text(drawing: Drawing) -> str:
    if drawing.level == "layer":
        return text.draw_layers(drawing.picture("layer"))
    return text.draw_ops(drawing.graph, drawing.selection, drawing.remarks)


def _dot(drawing: Drawing) -> str:
    return dot.draw(drawing.picture(drawing.level or "layer"))


def _mermaid(drawing: Drawing) -> str:
    if drawing.level == "op":
        ops = drawing.picture("op")
        if len(ops.arrows) <= mermaid.MAX_ARROWS:
            return mermaid.draw(ops)
        hint = (
            f"{len(ops.arrows)} arrows at op level are more than mermaid shows readably: "
            "drawn by layer instead; use --format dot, or --select less"
        )
        return mermaid.draw(drawing.picture("layer", hint))
    return mermaid.draw(drawing.picture("layer"))


def _json(drawing: Drawing) -> str:
    return as_json.draw(drawing.picture(drawing.level or "op"), drawing.graph, drawing.selection)


def _page(drawing: Drawing, form: str) -> str:
    seen = view(drawing.graph, drawing.devices, drawing.facts, drawing.selection, drawing.hidden, drawing.remarks)
    return page.html(seen) if form == "html" else page.svg(seen)


def _html(drawing: Drawing) -> str:
    return _page(drawing, "html")


def _svg(drawing: Drawing) -> str:
    return _page(drawing, "svg")


FORMATS: Mapping[str, Callable[[Drawing], str]] = MappingProxyType(
    {"text": _text, "dot": _dot, "mermaid": _mermaid, "json": _json, "html": _html, "svg": _svg}
)


def draw(drawing: Drawing, form: str) -> str:
    """The drawing in one of `FORMATS`."""
    return FORMATS[form](drawing)
