"""What the passes hand on: the graph of a spec, and what was worked out about it so far."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from dsv41c.compiler.build import Positions
from dsv41c.compiler.ir import Graph, Op
from dsv41c.compiler.layer_map import LayerMap
from dsv41c.compiler.shapes import Shapes
from dsv41c.diagnostics import Span

if TYPE_CHECKING:
    from dsv41c.compiler.spec.models import Spec


@dataclass(frozen=True, slots=True)
class Transfer:
    """A value that crosses to the next stage: read as `value`, written as `arrives_as` by the op `op`.

    `bytes_per_token` counts one session's token; of session state it is a row's share (half a row a token at ratio 2).
    """

    op: str
    value: str
    arrives_as: str
    kind: str
    how: Literal["chunk", "mirror"]
    from_stage: int
    to_stage: int
    bytes_per_token: float


@dataclass(frozen=True, slots=True)
class Lifetime:
    """Positions in the order of ops: written at `first` (-1: it was there before), last read at `last`."""

    first: int
    last: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Call:
    """A kernel call: an op of the graph, or one of a fused kind that stands for the ops it covers, by id."""

    op: Op
    covers: tuple[str, ...]

    @property
    def fused(self) -> bool:
        """Whether it is of a fused kind."""
        return self.op.id != self.covers[0]


@dataclass(frozen=True, slots=True)
class Region:
    """A unit of capture: one function. `reads` come from outside, `writes` leave; temporaries are neither.

    `calls` are what the function calls, in order; they cover the `ops`. `tail_rows` are the rows at the end of a prompt
    that it has to compute for the last logits, None for every row.
    """

    id: str
    function: str
    stage: int
    ops: tuple[str, ...]
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    span: Span
    calls: tuple[Call, ...] = ()
    tail_rows: int | None = None


@dataclass(frozen=True)
class Program:
    """A graph between two passes. `transfers`, `lifetimes` and `regions` are empty until their pass has run.

    `native` says whether native kernels run the plan; `fuse` finds out.
    """

    spec: Spec
    positions: Positions
    graph: Graph
    transfers: tuple[Transfer, ...] = ()
    lifetimes: Mapping[str, Lifetime] = field(default_factory=dict)
    regions: tuple[Region, ...] = ()
    native: bool = False

    @cached_property
    def shapes(self) -> Shapes:
        """Shapes and byte counts of the spec's values."""
        return Shapes(self.spec)

    @cached_property
    def layer_map(self) -> LayerMap:
        """Who produces what."""
        return LayerMap.of(self.spec.model, self.spec.layers)

    @property
    def devices(self) -> tuple[str, ...]:
        """The device of each stage."""
        return tuple(self.spec.placement.devices)

    @property
    def family(self) -> str:
        """The device family of the plan: that of its first device. The checks refuse a mixture."""
        return self.devices[0].partition(":")[0]

    def __str__(self) -> str:
        """The graph's text, then what the passes found, as comments that the graph's parser skips."""
        lines = [str(self.graph).rstrip("\n")]
        lines += [
            f"# transfer {t.value} {t.from_stage} -> {t.to_stage} as {t.arrives_as} ({t.how})" for t in self.transfers
        ]
        lines += [
            f"# live {value} {life.first} to {life.last}, {life.bytes} bytes" for value, life in self.lifetimes.items()
        ]
        lines += [
            f"# region {r.id} @{r.stage}: ({', '.join(r.reads)}) -> ({', '.join(r.writes)})" for r in self.regions
        ]
        fused = [call for region in self.regions for call in region.calls if call.fused]
        lines += [f"# call {call.op.id} ({call.op.kind}) covers {', '.join(call.covers)}" for call in fused]
        lines += [f"# tail {r.id} {r.tail_rows} rows" for r in self.regions if r.tail_rows is not None]
        return "\n".join(lines) + "\n"
