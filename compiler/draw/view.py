"""What the viewer shows, as data: rows (layers or ops), states (values and their copies), arcs (who reads what).

Rows and the boundaries between stages are `items`, in the order in which they are drawn from top to bottom.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from dsv41c.compiler.draw.picture import Level

IMPLIED = ("streams", "pre")  # they go from each layer to the next
Kind = Literal["added", "removed", "moved", "re-sourced", "changed"]


@dataclass(frozen=True, slots=True)
class Facts:
    """What the passes know beyond the graph: `bytes` of a value, region and kernel of an op; empty for a bare graph."""

    bytes: Mapping[str, int] = field(default_factory=dict)
    regions: Mapping[str, str] = field(default_factory=dict)
    kernels: Mapping[str, str] = field(default_factory=dict)
    crossings: Mapping[str, float] = field(default_factory=dict)  # arrived value -> bytes a token
    growth: Mapping[str, float] = field(default_factory=dict)  # session state -> bytes that a token adds
    texts: Mapping[str, str] = field(default_factory=dict)  # file, by the name that places have -> its text


@dataclass(frozen=True, slots=True)
class State:
    """A value. `origin` is the value that it is a copy of, else itself; rows and readers count copies as one.

    Of two graphs in one picture, `changes` says how it differs, and `was` pairs what differs with what it was before.
    """

    id: str
    kind: str
    origin: str
    scope: str
    shape: tuple[int | str, ...]
    dtype: str
    device: str
    sentence: str
    row: str | None
    producer: str | None
    readers: tuple[str, ...]
    rows: tuple[str, ...]
    read_by: str
    region: str | None
    kernel: str | None
    bytes_per_token: float | None
    bytes_per_session: int | None
    crossing_bytes: float | None
    span: str
    changes: tuple[Kind, ...] = ()
    was: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Item:
    """A row (a layer, an op, the entry, the exit), or with `row` false the boundary in front of a stage.

    `makes` are values that other rows read, and what a layer is the source of; `fold` numbers the run of equal layers,
    or the layer with its ops, that it is in, if any; an op of a layer has that as its `parent`. `changes` and `was` as
    those of a state; `from_column` is where a moved row was.
    """

    id: str
    label: str
    detail: str
    row: bool
    stage: int
    column: int
    device: str
    makes: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    regions: tuple[str, ...] = ()
    kernels: tuple[str, ...] = ()
    span: str = ""
    fold: int | None = None
    parent: str | None = None
    changes: tuple[Kind, ...] = ()
    was: tuple[tuple[str, str], ...] = ()
    from_column: int | None = None


@dataclass(frozen=True, slots=True)
class Arc:
    """A read: a value from one item to another, by position. A `crossing` goes to a boundary, as copy `arrives`."""

    value: str
    origin: str
    kind: str
    source: int
    target: int
    crossing: bool
    implied: bool
    arrives: str
    change: Kind | None = None


@dataclass(frozen=True, slots=True)
class Fold:
    """Consecutive equal layers, or a layer and its ops, by their items' positions."""

    label: str
    first: int
    last: int
    closed: bool


@dataclass(frozen=True, slots=True)
class Change:
    """A difference, in words, with the rows and states to jump to. `before` is None of what was added, `after` of what
    was removed."""

    kind: Kind
    what: str
    field: str
    before: str | None
    after: str | None
    sentence: str
    rows: tuple[str, ...] = ()
    states: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Measure:
    """Numbers to colour rows by: pairs of a row and a finite number."""

    name: str
    unit: str
    numbers: tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True)
class View:
    """Everything that the page holds, before it has positions.

    `focus` is the row or state that it opens with. Of two graphs, `after` and `before` are what each is called.
    """

    name: str
    level: Level
    columns: tuple[str, ...]
    items: tuple[Item, ...]
    states: tuple[State, ...]
    arcs: tuple[Arc, ...]
    folds: tuple[Fold, ...]
    remarks: tuple[str, ...]
    lines: tuple[tuple[str, str], ...]  # `FILE:LINE` of the places above, with the text that is there
    focus: tuple[Literal["row", "state"], str] | None = None
    after: str = ""
    before: str | None = None
    differences: tuple[Change, ...] = ()
    title: str = ""  # of the measures
    measures: tuple[Measure, ...] = ()


def boundary(stage: int) -> str:
    """The id of the item in front of a stage."""
    return f"boundary.{stage}"
