"""Two views in one picture: that of a graph, with what another graph had and it has not drawn as ghosts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from dsv41c.compiler.draw.compare import ORDER, Side, changes, form, sources
from dsv41c.compiler.draw.folds import folded
from dsv41c.compiler.draw.view import IMPLIED, Arc, Change, Item, Kind, State, View


def merged(before: Side, after: Side) -> View:
    """The view of `after`, with every difference to `before` marked and told."""
    found = changes(before, after)
    columns = tuple(dict.fromkeys((*after.view.columns, *before.view.columns)))
    items = tuple(_items(before, after, columns, _kinds(found)))
    at = {item.id: position for position, item in enumerate(items)}
    arcs = (*_arcs_after(before, after, items, at), *_arcs_before(before, after, at))
    items, folds = folded(items, arcs, after.view.level)
    lines = dict(after.view.lines)
    for place, text in before.view.lines:
        lines.setdefault(place, text)
    return replace(
        after.view,
        columns=columns,
        items=items,
        states=tuple(_states(before, after, found)),
        arcs=arcs,
        folds=folds,
        lines=tuple(lines.items()),
        after=after.called,
        before=before.called,
        differences=found,
    )


def _kinds(found: Sequence[Change]) -> Mapping[str, tuple[Kind, ...]]:
    """The kinds of change of each row; a row with another state is a changed one."""
    kinds: dict[str, set[Kind]] = {}
    for change in found:
        for row in change.rows:
            kinds.setdefault(row, set()).add("changed" if change.field == "state" else change.kind)
    return {row: tuple(kind for kind in ORDER if kind in own) for row, own in kinds.items()}


# --- rows -------------------------------------------------------------------------------------------------------------


def _items(
    before: Side, after: Side, columns: tuple[str, ...], kinds: Mapping[str, tuple[Kind, ...]]
) -> Iterator[Item]:
    """The items of `after`; a row that is no more follows the one that it followed."""
    was, now = before.rows, after.rows
    behind: dict[str | None, list[Item]] = {}
    anchor: str | None = None
    for row, item in was.items():
        if row in now:
            anchor = row
        else:
            column = columns.index(item.device)
            marks: tuple[Kind, ...] = ("removed",) if item.parent is None or item.parent in now else ()
            behind.setdefault(anchor, []).append(replace(item, column=column, fold=None, changes=marks))
    yield from behind.get(None, ())
    for item in after.view.items:
        if item.id in was:
            yield _changed(was[item.id], item, columns, kinds.get(item.id, ()))
        else:
            yield replace(item, fold=None, changes=kinds.get(item.id, ()))
        yield from behind.get(item.id, ())


def _changed(old: Item, item: Item, columns: tuple[str, ...], kinds: tuple[Kind, ...]) -> Item:
    pairs = [
        ("device", old.device, item.device),
        ("what", old.detail, item.detail),
        ("capture region", ", ".join(old.regions), ", ".join(item.regions)),
        ("kernels", ", ".join(name for name in old.kernels if name not in item.kernels), ""),
    ]
    was = tuple((name, one or "none") for name, one, other in pairs if one != other)
    moved = columns.index(old.device) if old.device != item.device else None
    return replace(item, fold=None, changes=kinds, was=was, from_column=moved)


# --- states -----------------------------------------------------------------------------------------------------------


def _states(before: Side, after: Side, found: Sequence[Change]) -> Iterator[State]:
    was = {state.id: state for state in before.view.states}
    known = {state.id for state in after.view.states}
    for state in after.view.states:
        if state.id in was:
            yield _changed_state(was[state.id], state)
        else:
            yield replace(state, changes=("added",) if state.id == state.origin else ())
    for state in before.view.states:
        if state.id not in known and state.id == state.origin:  # copies went with the devices that they were on
            yield replace(state, changes=("removed",))


def _changed_state(old: State, state: State) -> State:
    pairs = [
        ("shape", form(old), form(state)),
        ("read by", old.read_by, state.read_by),
        ("device", old.device, state.device),
        ("bytes", _bytes(old.bytes_per_token, "per token"), _bytes(state.bytes_per_token, "per token")),
        ("state", _bytes(old.bytes_per_session, "per session"), _bytes(state.bytes_per_session, "per session")),
        ("capture region", old.region or "", state.region or ""),
        ("kernel", old.kernel or "", state.kernel or ""),
    ]
    was = tuple((name, one or "none") for name, one, other in pairs if one != other)
    differing = {name for name, _ in was}
    moved: tuple[Kind, ...] = ("moved",) if "device" in differing else ()
    changed: tuple[Kind, ...] = ("changed",) if "shape" in differing or "read by" in differing else ()
    return replace(state, changes=(*moved, *changed), was=was)


def _bytes(number: float | None, per: str) -> str:
    return "" if number is None else f"{number:,.10g} B {per}"


# --- arcs -------------------------------------------------------------------------------------------------------------


def _arcs_after(before: Side, after: Side, items: Sequence[Item], at: Mapping[str, int]) -> Iterator[Arc]:
    was, known, rows = sources(before), before.states, before.rows
    for arc in after.view.arcs:
        source, target = after.view.items[arc.source].id, after.view.items[arc.target].id
        change: Kind | None = None
        if arc.crossing:
            change = "added" if arc.origin not in known and arc.kind not in IMPLIED else None
        elif target not in rows:
            change = "added"
        elif arc.origin not in was.get(target, {}).get(arc.kind, ()):
            change = "re-sourced" if was.get(target, {}).get(arc.kind) else "added"
        yield replace(arc, source=at[source], target=at[target], change=change)


def _arcs_before(before: Side, after: Side, at: Mapping[str, int]) -> Iterator[Arc]:
    """Reads that are no more, straight from the row that made the value."""
    now, made = sources(after), before.states
    for arc in before.view.arcs:
        row = before.view.items[arc.target].id
        if not arc.crossing and arc.origin in made and arc.origin not in now.get(row, {}).get(arc.kind, ()):
            source = made[arc.origin].row
            if source is not None and source != row:
                origin = arc.origin
                yield Arc(origin, origin, arc.kind, at[source], at[row], False, arc.implied, "", "removed")
