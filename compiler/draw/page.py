"""The viewer: a page in one file, or its picture as SVG. Templates hold the text; here are data and escaping."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from functools import cache
from typing import TYPE_CHECKING, Any

from dsv41c.compiler.draw.layout import GAP, HEAD, LINE, MARGIN, RADIUS, Chip, Layout, layout, path
from dsv41c.compiler.draw.style import INK, STATES
from dsv41c.compiler.draw.view import IMPLIED, View
from dsv41c.compiler.plan.render import environment

if TYPE_CHECKING:
    from jinja2 import Environment

FORMAT = "dsv41c.view/1.0"
SCRIPTS = ("graph/draw.js", "graph/panel.js", "graph/main.js")
# Control characters, and those that change the direction of the text around them.
_STRANGE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")


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
    """The same picture with every row shown, as it stands, without script."""
    positions = layout(view)
    plain: dict[str, Any] = clean(asdict(view))
    rows = [
        {**item, "place": place, "chips": _chips(view, positions.chips[number])}
        for number, (item, place) in enumerate(zip(plain["items"], positions.places, strict=True))
    ]
    lines = [
        {
            **arc,
            "d": path(route[:-2] if arc["crossing"] else route, positions.places),
            "end": _end(route, positions),
            "crossing_d": path(route[-3:], positions.places),
        }
        for arc, route in zip(plain["arcs"], positions.routes, strict=True)
    ]
    variables = {**_variables(view, positions), "rows": rows, "lines": lines, "line": LINE}
    return _environment().get_template("graph/drawing.svg.j2").render(variables)


def _end(route: Sequence[tuple[float, int, float]], positions: Layout) -> dict[str, float]:
    """Where a route ends, and where it came from: to its right or its left."""
    (before, _, _), (x, item, dy) = route[-2:]
    return {"x": x, "y": positions.places[item].top + dy, "label_x": min(before, x), "way": -1 if x < before else 1}


def _variables(view: View, positions: Layout) -> dict[str, Any]:
    columns = zip(clean(list(view.columns)), positions.columns, strict=True)
    return {
        "name": clean(view.name),
        "remarks": clean(list(view.remarks)),
        "columns": [{"device": device, "x": x, "width": width} for device, (x, width) in columns],
        "width": positions.width,
        "height": positions.height,
        "head": HEAD,
        "kinds": kinds(view),
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
        item["place"] = asdict(positions.places[number])
        item["chips"] = _chips(view, positions.chips[number])
    for arc, route in zip(plain["arcs"], positions.routes, strict=True):
        arc["points"] = [list(point) for point in route]
    return {
        "format": FORMAT,
        **plain,
        "kinds": kinds(view),
        "column_places": [list(column) for column in positions.columns],
        "width": positions.width,
        "height": positions.height,
        "head": HEAD,
        "line": LINE,
        "gap": GAP,
        "margin": MARGIN,
        "radius": RADIUS,
    }


def _chips(view: View, chips: Sequence[Chip]) -> list[dict[str, Any]]:
    known = {state.id: state.kind for state in view.states}
    return [{**clean(asdict(chip)), "kind": known[chip.value]} for chip in chips]


def clean(value: Any) -> Any:
    """Plain data in which no text holds a character that is invisible or turns text around: those are written out."""
    if isinstance(value, str):
        return _STRANGE.sub(lambda found: f"\\u{ord(found[0]):04x}", value)
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
