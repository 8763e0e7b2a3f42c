"""How one view differs from another: what was added, removed, moved, re-sourced or changed, in words and by place."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from dsv41c.compiler.draw.picture import group_of
from dsv41c.compiler.draw.view import IMPLIED, Change, Item, Kind, State, View
from dsv41c.compiler.ir import Graph, Op
from dsv41c.compiler.layer_map import SHARED_KINDS
from dsv41c.compiler.select import original
from dsv41c.kernels.catalog import CARRIERS
from dsv41c.words import joined, layers, shortlist

ORDER: tuple[Kind, ...] = ("added", "removed", "moved", "re-sourced", "changed")
MOST = 6  # names in a sentence
Sources = Mapping[str, Mapping[str, tuple[str, ...]]]  # row -> kind of state -> the values of that kind it reads


@dataclass(frozen=True)
class Side:
    """A graph, its view, and what to call it: the one that is drawn, or the one it is compared with."""

    graph: Graph
    view: View
    called: str

    @cached_property
    def rows(self) -> Mapping[str, Item]:
        """Rows by id."""
        return {item.id: item for item in self.view.items if item.row}

    @cached_property
    def states(self) -> Mapping[str, State]:
        """Values by id, without their copies on other devices."""
        return {state.id: state for state in self.view.states if state.origin == state.id}

    @cached_property
    def ops(self) -> Mapping[str, list[Op]]:
        """The ops of each row."""
        found: dict[str, list[Op]] = {row: [] for row in self.rows}
        for op in self.graph.ops:
            if op.kind not in CARRIERS:
                for row in dict.fromkeys((group_of(op), op.id) if self.view.level == "op" else (group_of(op),)):
                    if row in found:
                        found[row].append(op)
        return found

    def heads(self, row: str) -> bool:
        """Whether a row only stands for others, its ops."""
        return self.view.level == "op" and row not in self.graph.by_id


def changes(before: Side, after: Side) -> tuple[Change, ...]:
    """Every difference, equal ones of several rows as one; the order of `ORDER`, and within it that of the rows."""
    found = [
        *_rows_of_one("added", after, before),
        *_rows_of_one("removed", before, after),
        *_states_of_one("added", after, before),
        *_states_of_one("removed", before, after),
        *_moved(before, after),
        *_read(before, after),
        *_ops(before, after),
        *_shapes(before, after),
        *_kernels(before, after),
    ]
    return tuple(sorted(found, key=lambda change: ORDER.index(change.kind)))


def named(rows: Sequence[str]) -> str:
    """Rows as a person names them: `layers 4-6, 8 and head`."""
    numbers = {int(row.split(".")[1]) for row in rows if row.startswith("layers.") and row.count(".") == 1}
    others = [row for row in rows if not (row.startswith("layers.") and row.count(".") == 1)]
    more = [f"{len(others) - MOST:,} more"] if len(others) > MOST else []
    return joined([*([layers(numbers)] if numbers else []), *others[:MOST], *more], "and")


def _common(before: Side, after: Side) -> list[str]:
    earlier = before.rows
    return [row for row in after.rows if row in earlier]


def _rows_of_one(kind: Kind, side: Side, other: Side) -> Iterator[Change]:
    """Rows that only one side has, by device. What they make comes and goes with them and is not told apart."""
    known = set(other.rows)
    if side.view.level == "op":  # a layer of which the other side draws no op is in its graph all the same
        known |= {f"layers.{op.layer}" for op in other.graph.ops}
    by_device: dict[str, list[str]] = {}
    for row, item in side.rows.items():
        if row not in known and (item.parent is None or item.parent in known):
            by_device.setdefault(item.device, []).append(row)
    for device, rows in by_device.items():
        own, lone = set(rows), kind == "added"
        states = tuple(s.id for s in side.states.values() if s.row in own and s.kind in SHARED_KINDS and s.producer)
        yield Change(
            kind,
            named(rows),
            "device",
            None if lone else device,
            device if lone else None,
            f"{named(rows)} on {device}",
            tuple(rows),
            states,
        )


def _states_of_one(kind: Kind, side: Side, other: Side) -> Iterator[Change]:
    """Values that a row of both sides has on one of them only."""
    known, rows = other.states, set(_common(other, side))
    by_row: dict[str, list[str]] = {}
    for state in side.states.values():
        lone = state.id not in known and state.kind not in IMPLIED and state.producer is not None
        if lone and state.row in rows:
            by_row.setdefault(state.row, []).append(state.id)
    for row, found in by_row.items():
        what = shortlist(found, MOST)
        made = "made by" if kind == "added" else "no longer made by"
        was, now = (None, what) if kind == "added" else (what, None)
        yield Change(kind, what, "state", was, now, f"{what}, {made} {named([row])}", (row,), tuple(found))


def _moved(before: Side, after: Side) -> Iterator[Change]:
    was, now = before.rows, after.rows
    groups: dict[tuple[str, str], list[str]] = {}
    for row in _common(before, after):
        if was[row].device != now[row].device and now[row].parent is None:
            groups.setdefault((was[row].device, now[row].device), []).append(row)
    for (old, new), rows in groups.items():
        yield Change("moved", named(rows), "device", old, new, f"{named(rows)} to {new}, before on {old}", tuple(rows))


# --- who reads what ---------------------------------------------------------------------------------------------------


def sources(side: Side) -> Sources:
    """Of each row the values that it reads, by kind: those of other rows, and its own where layers are sources."""
    return {row: _sources(side, row) for row in side.rows if not side.heads(row)}


def _sources(side: Side, row: str) -> dict[str, tuple[str, ...]]:
    ops = side.ops[row]
    own = {value for op in ops for value in op.write_ids}
    found: dict[str, dict[str, None]] = {}
    for op in ops:
        for value in op.read_ids:
            origin = original(side.graph, value)
            kind = side.graph.values[origin].kind
            if kind in SHARED_KINDS and side.graph.producer(origin) is None:
                continue  # what the session held: it goes with the state of the same layer
            if origin not in own or kind in SHARED_KINDS:
                found.setdefault(kind, {})[origin] = None
    return {kind: tuple(values) for kind, values in found.items()}


def _read(before: Side, after: Side) -> Iterator[Change]:
    was, now = sources(before), sources(after)
    groups: dict[tuple[str, tuple[str, ...], tuple[str, ...]], list[str]] = {}
    for row in (row for row in now if row in was):
        for kind in dict.fromkeys((*was[row], *now[row])):
            old, new = was[row].get(kind, ()), now[row].get(kind, ())
            gone, come = tuple(v for v in old if v not in new), tuple(v for v in new if v not in old)
            if gone or come:
                groups.setdefault((kind, gone, come), []).append(row)
    for (kind, gone, come), rows in groups.items():
        lost, got = shortlist(gone, MOST), shortlist(come, MOST)
        verb = "reads" if len(rows) == 1 else "read"
        sort: Kind = "re-sourced" if gone and come else "changed"
        if gone and come:
            sentence = f"{named(rows)} {verb} {got}, before {lost}"
        else:
            sentence = f"{named(rows)} also {verb} {got}" if come else f"{named(rows)} no longer {verb} {lost}"
        yield Change(sort, named(rows), kind, lost or None, got or None, sentence, tuple(rows), (*come, *gone))


# --- what ops, values and kernels are ---------------------------------------------------------------------------------


def _ops(before: Side, after: Side) -> Iterator[Change]:
    """Ops that a row has on one side only, and attributes of ops that differ."""
    groups: dict[tuple[str, str, str], list[str]] = {}
    for row in _common(before, after):
        if after.heads(row):
            continue
        was, now = ({op.id.removeprefix(f"{row}."): op for op in side.ops[row]} for side in (before, after))
        gone, come = [op for op in was if op not in now], [op for op in now if op not in was]
        if gone or come:
            groups.setdefault(("ops", shortlist(gone, MOST), shortlist(come, MOST)), []).append(row)
        for name in (name for name in now if name in was):
            earlier, later = dict(was[name].attrs), dict(now[name].attrs)
            for attr in dict.fromkeys((*earlier, *later)):
                if earlier.get(attr) != later.get(attr):
                    key = (f"{name}.{attr}", _shown(earlier.get(attr)), _shown(later.get(attr)))
                    groups.setdefault(key, []).append(row)
    for (field, old, new), rows in groups.items():
        if field == "ops":
            parts = [*([f"with {new}"] if new else []), *([f"without {old}"] if old else [])]
            sentence = f"{named(rows)} {' and '.join(parts)}"
        else:
            sentence = f"{named(rows)}: {field} {new}, before {old}"
        yield Change("changed", named(rows), field, old or None, new or None, sentence, tuple(rows))


def _shown(value: object) -> str:
    return "none" if value is None else str(value)


def form(state: State) -> str:
    """Dtype and shape of a value."""
    return f"{state.dtype} [{', '.join(map(str, state.shape))}]"


def _shapes(before: Side, after: Side) -> Iterator[Change]:
    """Values of another dtype or shape, those of one kind together; what a session held has that of what it holds."""
    was = before.states
    groups: dict[tuple[str, str, str], list[State]] = {}
    for state in after.states.values():
        if state.id in was and form(state) != form(was[state.id]) and ".before" not in state.id:
            groups.setdefault((state.kind, form(was[state.id]), form(state)), []).append(state)
    for (_, old, new), found in groups.items():
        rows = tuple(dict.fromkeys(state.row for state in found if state.row is not None))
        what = shortlist([state.id for state in found], MOST)
        ids = tuple(state.id for state in found)
        yield Change("changed", what, "shape", old, new, f"{what}: {new}, before {old}", rows, ids)


def _kernels(before: Side, after: Side) -> Iterator[Change]:
    """Rows that have the same ops, computed by other kernels."""
    was, now = before.rows, after.rows
    groups: dict[tuple[str, str], list[str]] = {}
    for row in _common(before, after):
        old, new = was[row].kernels, now[row].kernels
        same = [op.id for op in before.ops[row]] == [op.id for op in after.ops[row]]
        if old and new and old != new and same and now[row].parent is None:
            groups.setdefault(_apart(old, new), []).append(row)
    for (old_ones, new_ones), rows in groups.items():
        sentence = f"kernels of {named(rows)}: {new_ones}, before {old_ones}"
        yield Change("changed", named(rows), "kernels", old_ones, new_ones, sentence, tuple(rows))


def _apart(old: tuple[str, ...], new: tuple[str, ...]) -> tuple[str, str]:
    """The sorts of kernels where those differ, else the kernels that only one of two rows has."""
    sorts = [tuple(dict.fromkeys(name.partition(".")[0] for name in names)) for names in (old, new)]
    if sorts[0] != sorts[1]:
        return ", ".join(sorts[0]), ", ".join(sorts[1])
    return _without(old, new), _without(new, old)


def _without(some: Iterable[str], others: Iterable[str]) -> str:
    return shortlist([name for name in some if name not in set(others)], MOST) or "none"
