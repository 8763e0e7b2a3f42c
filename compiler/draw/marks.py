"""What a picture shows on top: where moved rows were, numbers by colour, and what two graphs differ in."""

from __future__ import annotations

from typing import Any

from dsv41c.compiler.draw.differences import summary
from dsv41c.compiler.draw.layout import Layout
from dsv41c.compiler.draw.style import colour
from dsv41c.compiler.draw.view import Measure, View
from dsv41c.words import size

GHOST = 120.0  # the most that the outline of a moved row takes


def colours(view: View) -> dict[str, str]:
    """The colour of every kind of state in a view."""
    found = dict.fromkeys([*(arc.kind for arc in view.arcs), *(state.kind for state in view.states)])
    return {kind: colour(kind) for kind in found}


def ghosts(view: View, positions: Layout) -> list[dict[str, Any]]:
    """The outline of each moved row where it was, and the line that leads to where it is."""
    found = []
    for number, item in enumerate(view.items):
        if item.from_column is None:
            continue
        x, _, box = positions.columns[item.from_column]
        place = positions.places[number]
        width = min(box, GHOST)
        right = x < place.x
        found.append(
            {
                "item": number,
                "x": x,
                "y": place.top,
                "width": width,
                "height": place.height,
                "begin": x + width if right else x,
                "end": place.x if right else place.x + place.width,
                "label": item.label,
            }
        )
    return found


def compared(view: View) -> dict[str, str] | None:
    """What the picture of two graphs says at its head."""
    if view.before is None:
        return None
    return {"after": view.after, "before": view.before, "summary": summary(view)}


def heads(view: View) -> list[str]:
    """The lines above a picture without script: what it is compared with, and what its colours are."""
    lines = []
    if view.before is not None:
        lines.append(f"{view.after}, compared with {view.before}: {summary(view)}")
    if view.measures:
        shown = bar(view.measures[0])
        what = f"{view.title}: {shown['name']}" if view.title else shown["name"]
        span = f", from {shown['least']} (pale) to {shown['most']} (full)" if shown["least"] else ""
        lines.append(f"{what}{span}; dashed: no number")
    return lines


def quantity(number: float, unit: str) -> str:
    """A number as a person reads it; bytes in the unit that fits."""
    if unit == "B" and number >= 0 and number == round(number):
        return size(round(number))
    return f"{number:.4g} {unit}".rstrip()


def bar(measure: Measure) -> dict[str, Any]:
    """A measure with its colour bar: least and most, as text. Without any number there is none."""
    values = [number for _, number in measure.numbers]
    ends = (quantity(min(values), measure.unit), quantity(max(values), measure.unit)) if values else ("", "")
    return {"name": measure.name, "unit": measure.unit, "least": ends[0], "most": ends[1], "rows": numbers(measure)}


def numbers(measure: Measure) -> dict[str, dict[str, Any]]:
    """Of each row the number as text, and where it is between the least (0) and the most (1)."""
    values = [number for _, number in measure.numbers]
    least = min(values, default=0.0)
    # Halves first: the whole range of floats is wider than a float.
    span = max(values, default=0.0) / 2 - least / 2
    return {
        row: {
            "text": quantity(number, measure.unit),
            "share": round((number / 2 - least / 2) / span if span else 0.0, 4),
        }
        for row, number in measure.numbers
    }
