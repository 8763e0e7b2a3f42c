"""Pictures of a graph as text, DOT, mermaid, JSON, SVG or a page of its own. The same graph gives the same bytes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from dsv41c.compiler.draw import as_json, differences, dot, mermaid, page, text
from dsv41c.compiler.draw.around import Focus
from dsv41c.compiler.draw.build_view import view
from dsv41c.compiler.draw.compare import Side
from dsv41c.compiler.draw.folds import opened
from dsv41c.compiler.draw.merge import merged
from dsv41c.compiler.draw.overlay import Overlay
from dsv41c.compiler.draw.picture import Level, Picture, picture
from dsv41c.compiler.draw.view import Facts, View
from dsv41c.compiler.draw.words import answers
from dsv41c.compiler.ir import Graph
from dsv41c.compiler.select import Selection


@dataclass(frozen=True, slots=True)
class Drawing:
    """A graph, perhaps a selection of it, at a level (None: that of the format), less the hidden kinds.

    `asked` is the selection that remarks answer, where that is another one than what is drawn. `other` is a drawing to
    compare with, at the same level, `called` what each of the two is called in words.
    """

    graph: Graph
    selection: Selection | None = None
    devices: tuple[str, ...] = ()
    level: Level | None = None
    hidden: Collection[str] = ()
    facts: Facts = field(default_factory=Facts)
    asked: Selection | None = None
    focus: Focus | None = None
    other: Drawing | None = None
    overlay: Overlay | None = None
    called: str = ""

    @property
    def remarks(self) -> tuple[str, ...]:
        """The selection's answer in words."""
        asked = self.asked or self.selection
        return () if asked is None else answers(self.graph, asked, self.devices)

    def picture(self, level: Level, *more: str) -> Picture:
        """Its nodes and arrows at a level, with more remarks in front."""
        drawn = picture(self.graph, level, self.selection, self.devices, self.hidden, (*more, *self.remarks))
        return drawn if self.focus is None else replace(drawn, focus=self.focus[1])

    def view(self) -> View:
        """What the viewer shows of it, in comparison where there is another drawing."""
        level = self.level or "layer"
        seen = view(self.graph, self.devices, self.facts, self.selection, self.hidden, self.remarks, level)
        if self.other is not None:
            before = replace(self.other, level=level).view()
            seen = merged(Side(self.other.graph, before, self.other.called), Side(self.graph, seen, self.called))
        if self.overlay is not None:
            seen = replace(seen, title=self.overlay.title, measures=self.overlay.measures)
        return seen if self.focus is None else opened(seen, self.focus)


def _text(drawing: Drawing) -> str:
    if drawing.other is not None:
        return differences.text(drawing.view())
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
    if drawing.other is not None:
        return differences.as_json(drawing.view())
    return as_json.draw(drawing.picture(drawing.level or "op"), drawing.graph, drawing.selection)


def _html(drawing: Drawing) -> str:
    return page.html(drawing.view())


def _svg(drawing: Drawing) -> str:
    return page.svg(drawing.view())


FORMATS: Mapping[str, Callable[[Drawing], str]] = MappingProxyType(
    {"text": _text, "dot": _dot, "mermaid": _mermaid, "json": _json, "html": _html, "svg": _svg}
)


def draw(drawing: Drawing, form: str) -> str:
    """The drawing in one of `FORMATS`."""
    return FORMATS[form](drawing)
