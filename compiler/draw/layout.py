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
LABEL = 32  # letters of a label that are shown
BESIDE = 24  # letters of a detail beside the label; the rest goes below
BELOW = 40
LANE = 13
GAP = 9  # between two rows
OP_GAP = 4
LINE = 22  # a row, or a line of one
MORE = 14  # a line of detail, or of chips
INDENT = 30  # of an op in its layer
MARGIN = 16
HEAD = 46  # the columns' titles
BAND_TITLE = 24
BAND_LINE = 16  # a value that crosses
SPINE = {"streams": 12, "pre": 20}
PORTS = {"compress_kv": 5, "index_k": 9, "topk": 13, "candidates": 17}
RADIUS = 5
BADGE = 6.5  # a letter of a badge
NUMBER = 66  # the number of a measure
SIGNS = {"added": "+", "removed": "−", "moved": "→", "re-sourced": "⇄", "changed": "±"}

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
    """A value that a row makes, drawn in it: its text without layer, and its place from the row's upper left."""

    value: str
    text: str
    x: float
    y: float
    width: float


@dataclass(frozen=True, slots=True)
class Texts:
    """What stands in a row: the lines of its detail (the first beside the label), its chips, and how it changed."""

    detail: tuple[str, ...]
    chips: tuple[Chip, ...]
    badge: str


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
            # Within a layer the coefficients of attention are there before the last ones have been read.
            return self.x[column] + SPINE[kind] + (5 if kind == "pre" and ".attn" in value else 0)
        return self.right(column) + 18 + LANE * self.lanes[column, value]


@dataclass(frozen=True, slots=True)
class Layout:
    """Places of the items, points of the arcs, the columns, and the size of the whole."""

    places: tuple[Place, ...]
    routes: tuple[tuple[Point, ...], ...]
    columns: tuple[tuple[float, float, float], ...]  # x, width with lanes, width of the rows
    texts: tuple[Texts, ...]  # of each item
    width: float
    height: float


def layout(view: View) -> Layout:
    """The positions of a view; the same view gives the same."""
    texts = tuple(_texts(item) for item in view.items)
    columns = _columns(view, texts)
    places, height = _places(view, columns, texts)
    rank = _crossing_order(view, columns)
    routes = tuple(_route(view, arc, columns, rank, places) for arc in view.arcs)
    width = max((x + width for x, width in zip(columns.x, columns.width, strict=True)), default=0.0) + MARGIN
    return Layout(places, routes, tuple(zip(columns.x, columns.width, columns.box, strict=True)), texts, width, height)


def _texts(item: Item) -> Texts:
    if not item.row:
        return Texts((item.detail,), (), "")
    beside, below = _split(item.detail, BESIDE), list[str]()
    rest = item.detail[len(beside) :].strip(" ")
    while rest:
        below.append(_split(rest, BELOW))
        rest = rest[len(below[-1]) :].strip(" ")
    badge = ", ".join(f"{SIGNS[change]} {change}" for change in item.changes)
    if item.parent is None:
        left, y = 6.0, float(LINE - 1 + MORE * len(below))
    else:
        left, y = 14 + DETAIL * len(item.label), 4.0
    return Texts((beside, *below), tuple(_chips(item, left, y)), badge)


def _split(text: str, most: int) -> str:
    """As much of a text as fits, up to the end of an item of the list that it is."""
    if len(text) <= most:
        return text
    end = text.rfind(", ", 0, most)
    return text[: end + 1] if end > 0 else text


def _chips(item: Item, x: float, y: float) -> Iterator[Chip]:
    for value in item.makes:
        text = split_stage(value)[0].partition("@")[0]
        width = round(10 + LETTER * len(text), 1)
        yield Chip(value, text, round(x, 1), y, width)
        x += width + 4


def _columns(view: View, texts: tuple[Texts, ...]) -> Columns:
    lanes = _lanes(view)
    number = NUMBER if view.measures else 0
    xs, boxes, widths = [], [], []
    x = float(MARGIN)
    for column in range(len(view.columns)):
        box = float(BOX)
        for item, own in zip(view.items, texts, strict=True):
            if item.column == column and item.row:
                label = view.folds[item.fold].label if item.fold is not None else ""
                box = max(box, _width(item, own, max(label, item.label, key=len)) + number)
        count = 1 + max((lane for (c, _), lane in lanes.items() if c == column), default=-1)
        xs.append(x)
        boxes.append(round(box, 1))
        widths.append(round(box, 1) + 20 + LANE * count)
        x += widths[-1] + 26
    return Columns(tuple(xs), tuple(boxes), tuple(widths), lanes)


def _width(item: Item, texts: Texts, label: str) -> float:
    """The width that a row needs for its texts, without numbers."""
    badge = BADGE * len(texts.badge) + 14 if texts.badge else 0.0
    chips = texts.chips[-1].x + texts.chips[-1].width + 6 if texts.chips else 0.0
    if item.parent is not None:
        return INDENT + badge + max(chips, 34 + DETAIL * len(item.label))
    first = 34 + DETAIL * (min(len(label), LABEL) + len(texts.detail[0])) + badge
    return max(first, chips, *(34 + DETAIL * len(line) for line in texts.detail[1:]))


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


def _places(view: View, columns: Columns, texts: tuple[Texts, ...]) -> tuple[tuple[Place, ...], float]:
    places: list[Place] = []
    top, gap = float(HEAD), float(GAP)
    for position, item in enumerate(view.items):
        if item.row:
            indent = INDENT if item.parent is not None else 0
            lines = len(texts[position].detail) - 1 + (bool(texts[position].chips) and item.parent is None)
            x, width = columns.x[item.column] + indent, columns.box[item.column] - indent
            place = Place(x, top, width, LINE + MORE * lines + 2 * (lines > 0))
        else:
            sources = {view.items[arc.source].column for arc in view.arcs if arc.crossing and arc.target == position}
            left = min(columns.x[column] for column in (item.column, *sources))
            right = max(columns.x[column] + columns.width[column] for column in (item.column, *sources))
            place = Place(left, top, right - left, BAND_TITLE + BAND_LINE * len(item.reads))
        places.append(place)
        gap = gap_after(view, position)
        top += place.height + gap
    return tuple(places), top - gap + MARGIN


def gap_after(view: View, position: int) -> float:
    """The space between an item and the next one."""
    following = view.items[position + 1] if position + 1 < len(view.items) else None
    return OP_GAP if following is not None and following.parent is not None else GAP


def _lanes(view: View) -> dict[tuple[int, str], int]:
    """A lane for each value in its column: the first one free from where it is made to where it is last read."""
    spans: dict[tuple[int, str], list[int]] = {}
    for arc in view.arcs:
        if not arc.implied:
            first, last = sorted((arc.source, arc.target))
            span = spans.setdefault((view.items[arc.source].column, arc.value), [first, last])
            span[:] = min(span[0], first), max(span[1], last)
            if arc.arrives:
                arrival = (view.items[arc.target].column, arc.arrives)
                spans.setdefault(arrival, [arc.target, arc.target])
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


def _route(
    view: View, arc: Arc, columns: Columns, rank: dict[str, int], places: tuple[Place, ...]
) -> tuple[Point, ...]:
    source, target = view.items[arc.source], view.items[arc.target]
    x = columns.lane(source.column, arc.value, arc.kind)
    begin = _begin(view, arc, columns, places) if source.row else [(x, arc.source, _line(rank[arc.value]))]
    if arc.crossing:
        there = columns.lane(target.column, arc.arrives, arc.kind)
        y = _line(rank[arc.arrives])
        return (*begin, (x, arc.target, 0.0), (x, arc.target, y), (there, arc.target, y))
    by_op = view.level == "op"
    if arc.implied and not by_op and source.column == target.column:
        return (*begin, (x, arc.target, 0.0))
    y = PORTS.get(arc.kind, 7 if by_op else 11)
    if source.column != target.column:  # a read that is no more, of another place than where the reader is now
        edge = columns.x[target.column] if target.column > source.column else columns.right(target.column)
    elif arc.implied:
        edge = places[arc.target].x
    else:
        edge = columns.right(source.column)
    return (*begin, (x, arc.target, y), (edge, arc.target, y))


def _begin(view: View, arc: Arc, columns: Columns, places: tuple[Place, ...]) -> list[Point]:
    """From a row to the lane of a value: implied ones from below it, or by op from its left; others from its right."""
    column = view.items[arc.source].column
    x = columns.lane(column, arc.value, arc.kind)
    place = places[arc.source]
    if view.level == "op":
        y = PORTS.get(arc.kind, 11) + 4.0
        return [(place.x if arc.implied else columns.right(column), arc.source, y), (x, arc.source, y)]
    if arc.implied:
        return [(x, arc.source, place.height)]
    y = PORTS.get(arc.kind, 11) + place.height - LINE
    return [(columns.right(column), arc.source, y), (x, arc.source, y)]


def _line(rank: int) -> float:
    return float(BAND_TITLE + BAND_LINE * rank + 9)
