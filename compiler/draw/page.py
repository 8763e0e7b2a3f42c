"""The viewer: a page in one file, or its picture as SVG. Templates hold the text; here are data and escaping."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from functools import cache
from typing import TYPE_CHECKING, Any

from dsv41c.compiler.draw.layout import (
    GAP,
    HEAD,
    LINE,
    MARGIN,
    MORE,
    NUMBER,
    RADIUS,
    SIGNS,
    Chip,
    Layout,
    gap_after,
    layout,
    path,
)
from dsv41c.compiler.draw.lit import lit
from dsv41c.compiler.draw.marks import bar, colours, compared, ghosts, heads, numbers
from dsv41c.compiler.draw.style import INK, STATES
from dsv41c.compiler.draw.view import IMPLIED, View
from dsv41c.compiler.draw.words import spelled
from dsv41c.compiler.plan.render import environment

if TYPE_CHECKING:
    from jinja2 import Environment

FORMAT = "dsv41c.view/1.0"
KEY = 6.4  # a letter of the lines above a drawing
SCRIPTS = ("graph/draw.js", "graph/marks.js", "graph/panel.js", "graph/main.js", "graph/bar.js")


def html(view: View) -> str:
    """The page: one file that asks for no other. Its policy lets no script run but its own."""
    script = "\n".join(_source(name) for name in SCRIPTS)
    script = f'(() => {{\n"use strict";\n{script}}})();\n'
    variables = {
        **_variables(view, layout(view)),
        "data": in_script(data(view, layout(view))),
        "script": script,
        "script_hash": base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        "page_style": _source("graph/page.css"),
    }
    return _environment().get_template("graph/page.html.j2").render(variables)


def svg(view: View) -> str:
    """The same picture with every row shown, as it stands, without script. The first measure colours the rows."""
    positions = layout(view)
    plain: dict[str, Any] = clean(asdict(view))
    rows_lit, arcs_lit = (None, None) if view.focus is None else lit(view)
    shown = numbers(view.measures[0]) if view.measures else {}
    rows = [
        {
            **item,
            **_placed(view, positions, number),
            "faint": rows_lit is not None and number not in rows_lit,
            "number": clean(shown.get(view.items[number].id)),
        }
        for number, item in enumerate(plain["items"])
    ]
    lines = [
        {
            **arc,
            "d": path(route[:-2] if arc["crossing"] else route, positions.places),
            "end": _end(route, positions),
            "crossing_d": path(route[-3:], positions.places),
            "faint": arcs_lit is not None and number not in arcs_lit,
        }
        for number, (arc, route) in enumerate(zip(plain["arcs"], positions.routes, strict=True))
    ]
    legend = _legend(view)
    above = clean(heads(view))
    told = [f"{difference.kind}: {difference.sentence}" for difference in view.differences]
    ends = [*(entry["end"] for entry in legend), *(2 * MARGIN + KEY * len(line) for line in above)]
    variables = {
        **_variables(view, positions),
        "remarks": clean([*view.remarks, *told]),
        "width": round(max([positions.width, *ends]), 1),
        "legend": legend,
        "rows": rows,
        "lines": lines,
        "ghosts": clean(ghosts(view, positions)),
        "measured": bool(view.measures),
        "heads": above,
        "more": MORE,
        "foot": LINE * (1 + len(above)),
        "line": LINE,
    }
    return _environment().get_template("graph/drawing.svg.j2").render(variables)


def _legend(view: View) -> list[dict[str, Any]]:
    """The kinds of state side by side, with their colours."""
    found, x = [], float(MARGIN)
    for entry in kinds(view):
        end = x + 40 + KEY * len(entry["kind"])
        found.append({**entry, "x": round(x, 1), "end": end})
        x = end
    return found


def _placed(view: View, positions: Layout, number: int) -> dict[str, Any]:
    """Where an item is, and its texts."""
    texts = positions.texts[number]
    return {
        "place": asdict(positions.places[number]),
        "gap": gap_after(view, number),
        "chips": _chips(view, texts.chips),
        "details": clean(list(texts.detail)),
        "badge": texts.badge,
        "badge_right": 8 + (NUMBER if view.measures else 0),
        "text_x": 10 if view.items[number].parent is not None else 26,
    }


def _end(route: Sequence[tuple[float, int, float]], positions: Layout) -> dict[str, float]:
    """Where a route ends, and where it came from: to its right or its left."""
    (before, _, _), (x, item, dy) = route[-2:]
    return {"x": x, "y": positions.places[item].top + dy, "label_x": min(before, x), "way": -1 if x < before else 1}


def _variables(view: View, positions: Layout) -> dict[str, Any]:
    columns = zip(clean(list(view.columns)), positions.columns, strict=True)
    return {
        "name": clean(view.name),
        "remarks": clean(list(view.remarks)),
        "columns": [{"device": device, "x": x, "width": width} for device, (x, width, _) in columns],
        "width": positions.width,
        "height": positions.height,
        "kinds": kinds(view),
        "colours": colours(view),
        "title": clean(view.title),
        "style": _source("graph/drawing.css"),
    }


def kinds(view: View) -> list[dict[str, Any]]:
    """The kinds of state that have arcs, in the order of the palette, with their colours."""
    found = {arc.kind for arc in view.arcs}
    known = {**STATES, **{kind: (INK, "") for kind in sorted(found - STATES.keys())}}
    return [
        {"kind": kind, "colour": colour, "implied": kind in IMPLIED}
        for kind, (colour, _) in known.items()
        if kind in found
    ]


def data(view: View, positions: Layout) -> dict[str, Any]:
    """What the page's script draws from and answers from."""
    plain: dict[str, Any] = clean(asdict(view))
    for number, item in enumerate(plain["items"]):
        item |= _placed(view, positions, number)
    for arc, route in zip(plain["arcs"], positions.routes, strict=True):
        arc["points"] = [list(point) for point in route]
    return {
        "format": FORMAT,
        **plain,
        "kinds": kinds(view),
        "colours": colours(view),
        "compared": clean(compared(view)),
        "ghosts": clean(ghosts(view, positions)),
        "measures": clean([bar(measure) for measure in view.measures]),
        "column_places": [list(column) for column in positions.columns],
        "width": positions.width,
        "height": positions.height,
        "head": HEAD,
        "more": MORE,
        "gap": GAP,
        "margin": MARGIN,
        "radius": RADIUS,
        "signs": SIGNS,
    }


def _chips(view: View, chips: Sequence[Chip]) -> list[dict[str, Any]]:
    known = {state.id: state.kind for state in view.states}
    return [{**clean(asdict(chip)), "kind": known[chip.value]} for chip in chips]


def clean(value: Any) -> Any:
    """Plain data in which no text holds a character that is invisible or turns text around: those are written out."""
    if isinstance(value, str):
        return spelled(value)
    if isinstance(value, dict):
        return {clean(key): clean(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [clean(entry) for entry in value]
    return value


def in_script(value: Any) -> str:
    """JSON that cannot end the script element that it stands in."""
    text = json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _source(name: str) -> str:
    templates = _environment()
    assert templates.loader is not None
    return templates.loader.get_source(templates, name)[0]


@cache
def _environment() -> Environment:
    """That of the plans' templates, with HTML escaping."""
    return environment().overlay(autoescape=True)
