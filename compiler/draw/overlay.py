"""Numbers of layers from outside, to colour rows by: `--overlay FILE`.

The file is JSON, `dsv41c.overlay/1.0`:

    {"format": "dsv41c.overlay/1.0",
     "title": "a decode step at batch 1",
     "measures": [{"name": "time", "unit": "us", "layers": {"0": 81.5, "1": 97.2, "embed": 3, "head": 60}}]}

`layers` has finite numbers by layer, and by `embed` and `head`, what is before and behind the layers; a layer without a
number is drawn without. `title` may be missing, `unit` too. Results of our own are read as well: of
`dsv41c run PLAN ... --compare reference --json` the largest distance from the reference in each layer, and how many
values left their bounds; of `dsv41c bench PLAN --json` the bytes that a step moves in each layer, of the first cell,
and how many kernels it launches where they were counted.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from dsv41c.compiler.draw.view import Measure
from dsv41c.compiler.source import Document, Node, Poison, parse, shown, shown_key, to_data
from dsv41c.diagnostics import Diagnostic, Span, UserFault, ordered
from dsv41c.words import layers, ranges

FORMAT = "dsv41c.overlay/1.0"
RUN = "dsv41c.run/1."
BENCH = "dsv41c.bench/1."
ENDS = ("embed", "head")
_PARTS = ("total", "weights", "experts", "table_rows", "window", "selected", "index_keys", "scores", "tails", "written")
MOST_MEASURES = 32
_STRANGE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u2028-\u202e\u2066-\u2069\ufeff\ufffe\uffff]")
_REPLACED = re.compile(r"(?<!\\)\\u[dD][89a-fA-F][0-9a-fA-F]{2}")  # halves of characters
_HOW = f"write `format: {FORMAT}` and `measures`, or give what `dsv41c run --compare reference --json` printed"


@dataclass(frozen=True, slots=True)
class Overlay:
    """What a file says: a title, and measures with numbers by row."""

    title: str
    measures: tuple[Measure, ...]


def read_overlay(text: str, file: str, rows: Collection[str]) -> Overlay:
    """The overlay that a text holds, for a graph of these rows (`layers.0`, `embed`).

    Raises `UserFault` with DSV156 (not of the format) and DSV157 (a layer that the graph lacks), every finding of it.
    """
    document = parse(_as_read(text, file), file)
    reader = _Reader(document, rows)
    overlay = reader.overlay()
    if reader.faults:
        raise UserFault(ordered(dict.fromkeys(reader.faults)))
    return overlay


def _as_read(text: str, file: str) -> str:
    """A JSON text as our reader of texts takes it, which knows places but is stricter in what characters it allows.

    Results hold generated text, so anything may stand in a string. What cannot be read is replaced, place by place.
    """
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        place = Span(file, error.lineno, error.colno, error.lineno, error.colno + 1)
        message = f"the overlay is not valid JSON: {error.msg[:1].lower()}{error.msg[1:]}"
        help_text = "check that it is whole, then commas, quotes and brackets"
        raise UserFault([Diagnostic("DSV156", message, place, help=help_text)]) from None
    except (ValueError, RecursionError):  # a number or a depth that Python refuses; ours says which, and where
        pass
    return _REPLACED.sub("\\\\ufffd", _STRANGE.sub(" ", text))


class _Reader:
    """Reads one file and gathers what is wrong with it."""

    def __init__(self, document: Document, rows: Collection[str]) -> None:
        self.root, self.rows = document.root, rows
        self.faults: list[Diagnostic] = [*document.diagnostics]
        self.strange: dict[int, Span] = {}  # layers that the graph lacks

    def overlay(self) -> Overlay:
        """What the file says, as far as it is right."""
        form = self.root.get("format")
        name = form.value if form is not None and isinstance(form.value, str) else ""
        if name.startswith(RUN):
            found = self._run()
        elif name.startswith(BENCH):
            found = self._bench()
        elif name == FORMAT:
            found = self._own()
        else:
            what = f"the overlay's format is {shown(to_data(form))}" if form else "the overlay names no format"
            self._fault(what, form or self.root, _HOW)
            return Overlay("", ())
        if not self.faults and not any(measure.numbers for measure in found.measures) and not self.strange:
            self._fault("the overlay has no numbers", self.root, _HOW)
        self._tell_strange()
        return found

    def _fault(self, what: str, node: Node, help_text: str, *, at_key: bool = False) -> None:
        span = node.key if at_key and node.key is not None else node.span
        self.faults.append(Diagnostic("DSV156", what, span, help=help_text))

    def _own(self) -> Overlay:
        known = {"format", "title", "measures"}
        self._keys(self.root, known, "the overlay")
        measures = self.root.get("measures")
        if measures is None or not isinstance(measures.value, tuple) or not measures.value:
            where = measures or self.root
            self._fault("the overlay has no list of measures", where, "add `measures`, a list with at least one")
            return Overlay("", ())
        if len(measures.value) > MOST_MEASURES:
            self._fault(f"{len(measures.value)} measures", measures, f"keep {MOST_MEASURES} of them at most")
            return Overlay("", ())
        found = [self._measure(node) for node in measures.value]
        names = [measure.name for measure in found]
        for at, (node, name) in enumerate(zip(measures.value, names, strict=True)):
            if name and name in names[:at]:
                self._fault(f"several measures are called {shown(name)}", node, "give each a name of its own")
        return Overlay(self._text(self.root, "title", "the overlay", needed=False), tuple(found))

    def _measure(self, node: Node) -> Measure:
        if not isinstance(node.value, Mapping):
            self._fault(f"a measure is {shown(to_data(node))}", node, "write a map with `name`, `unit` and `layers`")
            return Measure("", "", ())
        self._keys(node, {"name", "unit", "layers"}, "a measure")
        name = self._text(node, "name", "a measure", needed=True)
        unit = self._text(node, "unit", "a measure", needed=False)
        found = node.get("layers")
        if found is None or not isinstance(found.value, Mapping):
            self._fault("a measure has no numbers by layer", found or node, 'add `layers`, such as {"0": 1.5}')
            return Measure(name, unit, ())
        numbers = [(key, self._number(key, child), child) for key, child in found.value.items()]
        return Measure(name, unit, tuple(self._rows(numbers)))

    def _keys(self, node: Node, known: set[str], what: str) -> None:
        for key, child in node.value.items() if isinstance(node.value, Mapping) else ():
            if key not in known:
                help_text = f"keys are {', '.join(f'`{name}`' for name in sorted(known))}"
                self._fault(f"{what} has the unknown key `{shown_key(key)}`", child, help_text, at_key=True)

    def _text(self, node: Node, key: str, what: str, *, needed: bool) -> str:
        child = node.get(key)
        if child is not None and isinstance(child.value, str) and (child.value or not needed):
            return child.value
        if child is not None and isinstance(child.value, Poison):  # told already
            return ""
        if child is not None or needed:
            found = f"{shown(to_data(child))}" if child is not None else "missing"
            self._fault(f"`{key}` of {what} is {found}", child or node, f"write `{key}` as text")
        return ""

    def _number(self, key: str, node: Node) -> float | None:
        value = node.value
        if isinstance(value, int | float) and not isinstance(value, bool):
            try:
                number = float(value)
            except OverflowError:
                number = math.inf
            if math.isfinite(number):
                return number
        if isinstance(value, Poison):  # told already
            return None
        help_text = "write a finite number, or leave the layer out where there is none"
        self._fault(f"the number of `{shown_key(key)}` is {shown(to_data(node))}", node, help_text)
        return None

    def _rows(self, numbers: Iterable[tuple[str, float | None, Node]]) -> Iterator[tuple[str, float]]:
        """Numbers by the graph's own rows. A graph without an end, such as one of a selection, leaves that one out."""
        seen: set[str] = set()
        for key, number, node in numbers:
            row = key if key in ENDS else f"layers.{int(key)}" if _is_layer(key) else ""
            if not row:
                help_text = "name layers by their numbers, and what is around them `embed` and `head`"
                self._fault(f"`{shown_key(key)}` is not a layer", node, help_text, at_key=True)
            elif row in seen:
                self._fault(f"`{row}` has two numbers", node, "leave one of them out", at_key=True)
            elif row not in self.rows:
                if row not in ENDS:
                    self.strange.setdefault(int(key), node.key or node.span)
            elif number is not None:
                yield row, number
            seen.add(row)

    def _tell_strange(self) -> None:
        """One finding for all layers that the graph lacks: most likely the numbers are another model's."""
        if not self.strange:
            return
        own = ranges(int(row.split(".")[1]) for row in self.rows if row.startswith("layers."))
        message = f"the overlay has numbers of {layers(self.strange)}, which the graph lacks"
        help_text = "give numbers of this model, or draw the model that they are of"
        facts = (("layers of the graph", own),)
        place = next(iter(self.strange.values()))
        self.faults.append(Diagnostic("DSV157", message, place, facts=facts, help=help_text))

    # --- results of our own -------------------------------------------------------------------------------------------

    def _run(self) -> Overlay:
        comparison = self.root.get("comparison")
        found = comparison.get("layers") if comparison is not None else None
        if found is None or not isinstance(found.value, Mapping):
            help_text = "run it with `--compare reference --json`"
            self._fault("this result of `run` has no comparison by layer", comparison or self.root, help_text)
            return Overlay("", ())
        entries = list(found.value.items())
        measures = (
            Measure("largest distance from the reference", "", self._column(entries, "distance")),
            Measure("values outside their bounds", "", self._column(entries, "outside")),
        )
        return Overlay("Compared with the reference", measures)

    def _bench(self) -> Overlay:
        cells = self.root.get("cells")
        cell = cells.value[0] if cells is not None and isinstance(cells.value, tuple) and cells.value else None
        found = cell.get("layers") if cell is not None else None
        if cell is None or found is None or not isinstance(found.value, tuple):
            help_text = "give the result as `bench --json` printed it"
            self._fault("this result of `bench` has no bytes by layer", self.root, help_text)
            return Overlay("", ())
        numbered = [(entry, entry.get("layer")) for entry in found.value]
        entries = [(str(number.value), entry) for entry, number in numbered if number and number.value is not None]
        parts = [key for key in _PARTS if any(entry.get(key) is not None for _, entry in entries)]
        measures = [Measure(f"{part.replace('_', ' ')}, moved", "B", self._column(entries, part)) for part in parts]
        launches = cell.get("launches")
        counts = launches.get("parts") if launches is not None else None
        if counts is not None and isinstance(counts.value, Mapping):
            rows = [(row, node) for row, node in counts.value.items() if row in self.rows]
            numbers = [(row, self._number(row, node)) for row, node in rows]
            measures.append(Measure("kernels launched", "", tuple((row, n) for row, n in numbers if n is not None)))
        return Overlay("A decode step, as `bench` counted it", tuple(measures))

    def _column(self, entries: Sequence[tuple[str, Node]], key: str) -> tuple[tuple[str, float], ...]:
        """One number of each entry; null is none, as of a distance that cannot be measured."""
        found = []
        for name, entry in entries:
            node = entry.get(key)
            if node is None:
                what = f"`{shown_key(name)}` has no `{key}`"
                self._fault(what, entry, "give the result as it was printed")
            else:
                found.append((name, None if node.value is None else self._number(name, node), entry))
        return tuple(self._rows(found))


def _is_layer(key: str) -> bool:
    return key.isascii() and key.isdecimal() and len(key) <= 9
