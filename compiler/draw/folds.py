"""What folds into one row of a view: runs of equal layers, or by op each layer with its ops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

from dsv41c.compiler.draw.around import Focus
from dsv41c.compiler.draw.picture import Level
from dsv41c.compiler.draw.view import Arc, Fold, Item, View
from dsv41c.words import layers

FEW_ITEMS = 16  # no need to fold these
FEW_LAYERS = 3  # whose ops are all shown at first


def folded(items: tuple[Item, ...], arcs: Sequence[Arc], level: Level) -> tuple[tuple[Item, ...], tuple[Fold, ...]]:
    """The items with their folds marked, and the folds."""
    runs = _layers(items) if level == "op" else _equal(items, arcs)
    many = len(runs) > FEW_LAYERS if level == "op" else len(items) > FEW_ITEMS
    marked = list(items)
    folds = list[Fold]()
    for first, last in runs:
        for position in range(first, last + 1):
            marked[position] = replace(items[position], fold=len(folds))
        numbers = {int(item.id.split(".")[1]) for item in items[first : last + 1]}
        folds.append(Fold(layers(numbers), first, last, many))
    return tuple(marked), tuple(folds)


def _layers(items: Sequence[Item]) -> list[tuple[int, int]]:
    """Each layer's row with those of its ops behind it."""
    runs = []
    for name, group in groupby(range(len(items)), lambda position: items[position].parent or items[position].id):
        positions = list(group)
        if len(positions) > 1 and items[positions[0]].id == name:
            runs.append((positions[0], positions[-1]))
    return runs


def _equal(items: Sequence[Item], arcs: Sequence[Arc]) -> list[tuple[int, int]]:
    """Runs of layers of one stage that are alike in kind, make nothing, read the same and changed alike."""
    feeding: dict[int, set[tuple[str, str | None]]] = {}
    for arc in arcs:
        if not arc.implied:
            feeding.setdefault(arc.target, set()).add((arc.value, arc.change))

    def likeness(position: int) -> tuple[object, ...]:
        item = items[position]
        own = position if item.makes or not item.row or not item.id.startswith("layers.") else -1
        changed = item.changes, item.was, item.from_column
        return own, item.stage, item.column, item.detail, changed, frozenset(feeding.get(position, ()))

    runs = [list(group) for _, group in groupby(range(len(items)), likeness)]
    return [(run[0], run[-1]) for run in runs if len(run) > 1]


def opened(view: View, focus: Focus) -> View:
    """The view with a focus; what that is folded away in is open at first."""
    sort, name = focus
    rows = {name} if sort == "row" else {state.row for state in view.states if state.id == name}
    inside = {item.fold for item in view.items if item.id in rows}
    folds = tuple(replace(fold, closed=fold.closed and at not in inside) for at, fold in enumerate(view.folds))
    return replace(view, focus=focus, folds=folds)
