"""From a graph to the view of it, by layer or by op."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from dsv41c.compiler.draw.folds import folded
from dsv41c.compiler.draw.picture import Level, details_of, group_of, layer_span, shown_groups
from dsv41c.compiler.draw.view import IMPLIED, Arc, Facts, Item, State, View, boundary
from dsv41c.compiler.draw.words import value_sentence
from dsv41c.compiler.ir import Graph, Op, Value
from dsv41c.compiler.layer_map import SHARED_KINDS
from dsv41c.compiler.select import Selection, original, readers
from dsv41c.kernels.catalog import CARRIERS
from dsv41c.words import layers

MOST = 200  # characters of a line of the spec


def view(
    graph: Graph,
    devices: Sequence[str],
    facts: Facts,
    selection: Selection | None = None,
    hidden: Collection[str] = (),
    remarks: Sequence[str] = (),
    level: Level = "layer",
) -> View:
    """The view of a graph or of a selection of it; reads of values of the `hidden` kinds are left out."""
    return _Builder(graph, devices, facts, selection, frozenset(hidden), level).view(tuple(remarks))


class _Builder:
    """Puts a view together. A group is what one row stands for: an op, or the ops of a layer."""

    def __init__(
        self,
        graph: Graph,
        devices: Sequence[str],
        facts: Facts,
        selection: Selection | None,
        hidden: frozenset[str],
        level: Level,
    ) -> None:
        self.graph, self.devices, self.facts, self.hidden, self.level = graph, tuple(devices), facts, hidden, level
        self.columns = tuple(dict.fromkeys(self.devices))
        self.groups: dict[str, list[Op]] = {}
        for op in graph.ops:
            if op.kind not in CARRIERS:
                self.groups.setdefault(self._group(op), []).append(op)
        if level == "op" and selection is not None:
            values = {original(graph, value) for value in selection.shown_values}
            makers = {op.id for value in values for op in graph.producers.get(value, ())}
            self.shown = (selection.shown_ops | makers) & self.groups.keys()
        else:
            self.shown = frozenset(shown_groups(graph, selection, self.groups))
        wanted = set() if selection is None else {original(graph, value) for value in selection.shown_values}
        self.wanted = wanted or None
        self.origins = {value: original(graph, value) for value in graph.values}

    def _group(self, op: Op) -> str:
        return op.id if self.level == "op" else group_of(op)

    def view(self, remarks: tuple[str, ...]) -> View:
        """The whole of it."""
        read = self._read_values()
        items = self._items(read)
        at = {item.id: position for position, item in enumerate(items)}
        arcs = tuple(self._arcs(read, items, at))
        items, folds = folded(items, arcs, self.level)
        states = tuple(self._state(value) for value in self.graph.values.values() if self._kept(value, read))
        lines = tuple(_lines(self.facts.texts, [*(item.span for item in items), *(state.span for state in states)]))
        return View(self.graph.name, self.level, self.columns, items, states, arcs, folds, remarks, lines)

    def _read_values(self) -> set[str]:
        """Values that go from one row to another, and the copies on their way."""
        found: set[str] = set()
        for name in self.shown:
            for op in self.groups[name]:
                for value in op.read_ids:
                    if self._passes(value, name):
                        found.add(value)
                        while (producer := self.graph.producer(value)) and producer.kind in CARRIERS:
                            value = producer.read_ids[0]
                            found.add(value)
        return found

    def _passes(self, value: str, reader: str) -> bool:
        origin = self.origins.get(value, value)
        if origin not in self.graph.values or self.graph.values[origin].kind in self.hidden:
            return False
        if self.wanted is not None and origin not in self.wanted:
            return False
        source = self._row_of(origin)
        return source is not None and source in self.shown and (source != reader or value != origin)

    def _row_of(self, value: str) -> str | None:
        """The row that makes a value in the first place; token ids come in where they are embedded."""
        producer = self.graph.producer(value)
        if producer is not None:
            return self._group(producer)
        return "embed" if value == "ids" else None

    def _kept(self, value: Value, read: Collection[str]) -> bool:
        return value.id in read or value.kind != "temporary" or value.id == "logits"

    # --- rows and boundaries ------------------------------------------------------------------------------------------

    def _items(self, read: Collection[str]) -> tuple[Item, ...]:
        arriving = {self.graph.values[v].stage for v in read if self.origins[v] != v}
        by_stage: dict[int, list[str]] = {stage: [] for stage in sorted(arriving)}
        for name, ops in self.groups.items():
            if name in self.shown:
                by_stage.setdefault(ops[0].stage, []).append(name)
        items: list[Item] = []
        for stage in sorted(by_stage):
            items += [self._boundary(stage, read)] if stage in arriving else []
            items += self._rows(by_stage[stage], read)
        return tuple(items)

    def _rows(self, names: Sequence[str], read: Collection[str]) -> Iterator[Item]:
        """Rows; by op, a layer's own row is in front of those of its ops."""
        layer: int | None = None
        for name in names:
            op = self.groups[name][0]
            if self.level == "op" and op.layer is not None and op.layer != layer:
                layer = op.layer
                ops = [other for other in self.graph.ops if other.layer == layer and other.kind not in CARRIERS]
                yield self._row(f"layers.{layer}", ops, read)
            yield self._row(name, self.groups[name], read)

    def _source(self, value: str) -> bool:
        """Whether a value is one that layers are sources of, even where no other layer reads it."""
        return self.graph.values[value].kind in SHARED_KINDS and self.graph.values[value].kind not in self.hidden

    def _device(self, stage: int) -> str:
        return self.devices[stage] if stage < len(self.devices) else f"stage:{stage}"

    def _column(self, stage: int) -> int:
        return self.columns.index(self._device(stage))

    def _boundary(self, stage: int, read: Collection[str]) -> Item:
        copies = [value for value in self.graph.values if value in read and self.origins[value] != value]
        arrived = tuple(value for value in copies if self.graph.values[value].stage == stage)
        total = sum(self.facts.crossings.get(value, 0.0) for value in arrived)
        label = f"{self._device(stage - 1)} → {self._device(stage)}"
        detail = f"{total:,.10g} B a token" if total else ""
        device = self._device(stage)
        return Item(boundary(stage), label, detail, False, stage, self._column(stage), device, reads=arrived)

    def _row(self, name: str, ops: Sequence[Op], read: Collection[str]) -> Item:
        written = dict.fromkeys(value for op in ops for value in op.write_ids)
        reads = dict.fromkeys(v for op in ops for v in op.read_ids if v not in written)
        makes = [v for v in (*(("ids",) if name == "embed" else ()), *written) if v in read or self._source(v)]
        single = self.level == "op" and name in self.groups  # a row of one op
        if self.level == "op" and not single:
            makes = [v for v in makes if self._source(v)]
        parent = f"layers.{ops[0].layer}" if single and ops[0].layer is not None else None
        stage = ops[0].stage
        return Item(
            name,
            name.removeprefix(f"{parent}.") if parent else name.replace("layers.", "layer "),
            "" if single else details_of(ops),
            True,
            stage,
            self._column(stage),
            self._device(stage),
            tuple(value for value in makes if self.graph.values[value].kind not in IMPLIED),
            tuple(reads),
            tuple(v for v in written if self._kept(self.graph.values[v], read)),
            _known(self.facts.regions, ops),
            _known(self.facts.kernels, ops),
            str(ops[0].span if single else layer_span(ops)),
            parent=parent,
        )

    # --- arcs and states ----------------------------------------------------------------------------------------------

    def _arcs(self, read: Collection[str], items: Sequence[Item], at: Mapping[str, int]) -> Iterator[Arc]:
        for value in self.graph.values:
            if value in read and self.origins[value] != value:
                producer = self.graph.producer(value)
                assert producer is not None
                yield self._arc(producer.read_ids[0], at[boundary(producer.stage)], at, value)
        for position, item in enumerate(items):
            if item.id in self.groups:
                for value in item.reads:
                    if value in read and self._start(value, at) != position:
                        yield self._arc(value, position, at, "")

    def _arc(self, value: str, target: int, at: Mapping[str, int], arrives: str) -> Arc:
        kind, start = self.graph.values[value].kind, self._start(value, at)
        return Arc(value, self.origins[value], kind, start, target, bool(arrives), kind in IMPLIED, arrives)

    def _start(self, value: str, at: Mapping[str, int]) -> int:
        if self.origins[value] != value:
            return at[boundary(self.graph.values[value].stage)]
        row = self._row_of(value)
        assert row is not None
        return at[row]

    def _state(self, value: Value) -> State:
        graph, producer = self.graph, self.graph.producer(value.id)
        reading = [op for op in readers(graph, self.origins[value.id]) if op.kind not in CARRIERS]
        total = self.facts.bytes.get(value.id)
        session = value.scope == "session"
        found = {op.layer for op in reading if op.layer is not None}
        outside = [op.id for op in reading if op.layer is None]
        return State(
            value.id,
            value.kind,
            self.origins[value.id],
            value.scope,
            value.shape,
            value.dtype,
            self._device(value.stage),
            value_sentence(graph, value.id, self.devices),
            self._row_of(self.origins[value.id]),
            producer.id if producer else None,
            tuple(op.id for op in reading),
            tuple(dict.fromkeys(self._group(op) for op in reading)),
            ", ".join([*([layers(found)] if found else []), *outside]),
            self.facts.regions.get(producer.id) if producer else None,
            self.facts.kernels.get(producer.id) if producer else None,
            self.facts.growth.get(value.id) if session else total,
            total if session else None,
            self.facts.crossings.get(value.id),
            str(value.span),
        )


def _known(table: Mapping[str, str], ops: Iterable[Op]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(table[op.id] for op in ops if op.id in table))


def _lines(texts: Mapping[str, str], places: Iterable[str]) -> Iterator[tuple[str, str]]:
    split = {file: text.splitlines() for file, text in texts.items()}
    for line in dict.fromkeys(place.rpartition(":")[0] for place in places):
        file, _, number = line.rpartition(":")
        if file in split and 0 < int(number) <= len(split[file]):
            yield line, split[file][int(number) - 1].strip()[:MOST]
