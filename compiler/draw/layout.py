"""Positions of a view: rows from top to bottom, a column a device, beside each column a lane for every shared value.

A point is (x, item, dy): dy below the top of an item, so that folding rows only moves items.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from dsv41c.compiler.draw.view import IMPLIED, Arc, Item, View
from dsv41c.compiler.ir import split_stage

BOX = 168  # least width of a row
LETTER = 5.8  # of a chip
DETAIL = 6.6  # a letter of the line above
LANE = 13
GAP = 9  # between two rows
LINE = 22  # a row, or a line of one
MARGIN = 16
HEAD = 46  # the columns' titles
BAND_TITLE = 24
BAND_LINE = 16  # a value that crosses
SPINE = {"streams": 12, "pre": 20}
PORTS = {"compress_kv": 5, "index_k": 9, "topk": 13, "candidates": 17}
RADIUS = 5

Point = tuple[float, int, float]


@dataclass(frozen=True, slots=True)
class Place:
    """An item's box: `x`, `width` and `height`, and its `top` where nothing is folded."""

    x: float
    top: float
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class Chip:
    """A value that a row makes, drawn in it: its text without layer, and its place from the row's left."""

    value: str
    text: str
    x: float
    width: float


@dataclass(frozen=True, slots=True)
class Columns:
    """Of each column its x, the width of its rows, and its whole width; `lanes` of (column, value)."""

    x: tuple[float, ...]
    box: tuple[float, ...]
    width: tuple[float, ...]
    lanes: Mapping[tuple[int, str], int]

    def right(self, column: int) -> float:
        """Where the rows of a column end."""
        return self.x[column] + self.box[column]

    def lane(self, column: int, value: str, kind: str) -> float:
        """The x at which a value goes down a column."""
        if kind in IMPLIED:
            return self.x[column] + SPINE[kind]
        return self.right(column) + 18 + LANE * self.lanes[column, value]


@dataclass(frozen=True, slots=True)
class Layout:
    """Places of the items, points of the arcs, x of the columns, and the size of the whole."""

    places: tuple[Place, ...]
    routes: tuple[tuple[Point, ...], ...]
    columns: tuple[tuple[float, float], ...]  # x and width, lanes included
    chips: tuple[tuple[Chip, ...], ...]  # of each item
    width: float
    height: float


def layout(view: View) -> Layout:
    """The positions of a view; the same view gives the same."""
    chips = tuple(tuple(_chips(item)) for item in view.items)
    columns = _columns(view, chips)
    places, height = _places(view, columns)
    rank = _crossing_order(view, columns)
    routes = tuple(_route(view, arc, columns, rank) for arc in view.arcs)
    width = max((x + width for x, width in zip(columns.x, columns.width, strict=True)), default=0.0) + MARGIN
    return Layout(places, routes, tuple(zip(columns.x, columns.width, strict=True)), chips, width, height)


def _chips(item: Item) -> Iterator[Chip]:
    x = 6.0
    for value in item.makes:
        text = split_stage(value)[0].partition("@")[0]
        width = round(10 + LETTER * len(text), 1)
        yield Chip(value, text, x, width)
        x += width + 4


def _columns(view: View, chips: tuple[tuple[Chip, ...], ...]) -> Columns:
    lanes = _lanes(view)
    xs, boxes, widths = [], [], []
    x = float(MARGIN)
    for column in range(len(view.columns)):
        box = float(BOX)
        for item, own in zip(view.items, chips, strict=True):
            if item.column == column and item.row:
                text = 34 + DETAIL * (min(len(item.label), 24) + min(len(item.detail), 24))
                box = max(box, text, own[-1].x + own[-1].width + 6 if own else 0)
        count = 1 + max((lane for (c, _), lane in lanes.items() if c == column), default=-1)
        xs.append(x)
        boxes.append(round(box, 1))
        widths.append(round(box, 1) + 20 + LANE * count)
        x += widths[-1] + 26
    return Columns(tuple(xs), tuple(boxes), tuple(widths), lanes)


def path(points: Iterable[Point], places: tuple[Place, ...]) -> str:
    """The `d` of an SVG path along a route, its corners rounded; `templates/graph/draw.js` does the same."""
    xy = [(x, places[item].top + dy) for x, item, dy in points]
    out = f"M{xy[0][0]:g} {xy[0][1]:g}"
    for (ax, ay), (bx, by), (cx, cy) in zip(xy, xy[1:], xy[2:], strict=False):
        before, after = abs(bx - ax) + abs(by - ay), abs(cx - bx) + abs(cy - by)
        r = min(RADIUS, before / 2, after / 2)
        px, py = bx - r * _sign(bx - ax), by - r * _sign(by - ay)
        qx, qy = bx + r * _sign(cx - bx), by + r * _sign(cy - by)
        out += f"L{px:g} {py:g}Q{bx:g} {by:g} {qx:g} {qy:g}"
    return f"{out}L{xy[-1][0]:g} {xy[-1][1]:g}"


def _sign(number: float) -> int:
    return (number > 0) - (number < 0)


def _places(view: View, columns: Columns) -> tuple[tuple[Place, ...], float]:
    places: list[Place] = []
    top = float(HEAD)
    for position, item in enumerate(view.items):
        if item.row:
            place = Place(columns.x[item.column], top, columns.box[item.column], LINE + (16 if item.makes else 0))
        else:
            sources = {view.items[arc.source].column for arc in view.arcs if arc.crossing and arc.target == position}
            left = min(columns.x[column] for column in (item.column, *sources))
            right = max(columns.x[column] + columns.width[column] for column in (item.column, *sources))
            place = Place(left, top, right - left, BAND_TITLE + BAND_LINE * len(item.reads))
        places.append(place)
        top += place.height + GAP
    return tuple(places), top - GAP + MARGIN


def _lanes(view: View) -> dict[tuple[int, str], int]:
    """A lane for each value in its column: the first one free from where it is made to where it is last read."""
    spans: dict[tuple[int, str], list[int]] = {}
    for arc in view.arcs:
        if not arc.implied:
            column = view.items[arc.source].column
            spans.setdefault((column, arc.value), [arc.source, arc.source])[1] = arc.target
            spans[column, arc.value][1] = max(spans[column, arc.value][1], arc.target)
            if arc.arrives:
                arrival = (view.items[arc.target].column, arc.arrives)
                spans.setdefault(arrival, [arc.target, arc.target])
    for arc in view.arcs:
        if not arc.implied:
            span = spans[view.items[arc.source].column, arc.value]
            span[1] = max(span[1], arc.target)
    lanes: dict[tuple[int, str], int] = {}
    busy: dict[int, list[int]] = {}
    for key, (first, last) in sorted(spans.items(), key=lambda entry: (entry[1][0], entry[0])):
        ends = busy.setdefault(key[0], [])
        lane = next((lane for lane, end in enumerate(ends) if end < first), len(ends))
        ends[lane : lane + 1] = [last]
        lanes[key] = lane
    return lanes


def _crossing_order(view: View, columns: Columns) -> dict[str, int]:
    """The line of each arriving value in its boundary: what comes from the right goes on top, so that few cross."""
    arrivals: dict[int, list[tuple[float, str]]] = {}
    for arc in view.arcs:
        if arc.crossing:
            x = columns.lane(view.items[arc.source].column, arc.value, arc.kind)
            arrivals.setdefault(arc.target, []).append((-x, arc.arrives))
    return {value: line for found in arrivals.values() for line, (_, value) in enumerate(sorted(found))}


def _port(view: View, item: int, kind: str, *, out: bool) -> float:
    """How far below its row's top a value of a kind goes in or out: values that it makes have a line of their own."""
    return PORTS.get(kind, 11) + (16.0 if out and view.items[item].makes else 0.0)


def _route(view: View, arc: Arc, columns: Columns, rank: dict[str, int]) -> tuple[Point, ...]:
    source, target = view.items[arc.source], view.items[arc.target]
    x = columns.lane(view.items[arc.source].column, arc.value, arc.kind)
    right = columns.right(source.column)
    if source.row and arc.implied:
        begin: list[Point] = [(x, arc.source, LINE + (16.0 if source.makes else 0.0))]
    elif source.row:
        y = _port(view, arc.source, arc.kind, out=True)
        begin = [(right, arc.source, y), (x, arc.source, y)]
    else:
        begin = [(x, arc.source, _line(rank[arc.value]))]
    if arc.crossing:
        there = columns.lane(target.column, arc.arrives, arc.kind)
        y = _line(rank[arc.arrives])
        return (*begin, (x, arc.target, 0.0), (x, arc.target, y), (there, arc.target, y))
    if arc.implied:
        return (*begin, (x, arc.target, 0.0))
    y = _port(view, arc.target, arc.kind, out=False)
    return (*begin, (x, arc.target, y), (right, arc.target, y))


def _line(rank: int) -> float:
    return float(BAND_TITLE + BAND_LINE * rank + 9)
