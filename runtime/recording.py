"""Watching a plan at work: kernels that keep what they return, so that compiled code needs no extra outputs.

Generated code calls kernels in the order of its region's calls, so the i-th call is the i-th of these. A call that
covers several ops hides values between them; while somebody watches, it runs the single ops instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from torch import Tensor

from dsv41c.diagnostics import Diagnostic, UserFault
from dsv41c.kernels.catalog import OPS
from dsv41c.kernels.fusion import FUSED
from dsv41c.kernels.reference.fused import compose
from dsv41c.runtime.calls import RegionCall
from dsv41c.runtime.manifest import Manifest, OpEntry


def by_port(op: OpEntry, result: object) -> dict[str, Any]:
    """What a kernel returned, by value id: one write comes bare, several as a tuple in the catalogue's port order."""
    ports = [port.name for port in OPS[op.kind].writes if port.name in op.writes]
    parts = (result,) if len(ports) == 1 else result
    if not isinstance(parts, tuple) or len(parts) != len(ports):
        raise ValueError(f"the kernel of `{op.id}` should return {len(ports)} values: {', '.join(ports)}")
    return {op.writes[port]: part for port, part in zip(ports, parts, strict=True)}


@dataclass(slots=True)
class Recording:
    """The step values of one step by id, in the order they were written. `only`: the ids to keep, None for all.

    Session state is not kept: it is in the pools, and later steps change it.
    """

    only: frozenset[str] | None = None
    values: dict[str, Tensor] = field(default_factory=dict)

    def keep(self, written: Mapping[str, Tensor], session_values: Iterable[str]) -> None:
        """Keep what is asked for."""
        skipped = frozenset(session_values)
        for value, tensor in written.items():
            if value not in skipped and (self.only is None or value in self.only):
                self.values[value] = tensor


@dataclass(slots=True)
class Trace:
    """Recordings of several steps, in order. `only` as in `Recording`."""

    only: frozenset[str] | None = None
    steps: list[Recording] = field(default_factory=list)

    def begin(self) -> Recording:
        """The recording of the next step."""
        self.steps.append(Recording(self.only))
        return self.steps[-1]


class RecordingKernels:
    """Kernels of one region's call that record; a call out of the order of the region's calls is a coded error.

    `before` hears of each op before its kernel runs, `sink` gets what it wrote, by value id. `guard` gives the kernel
    to call instead of an op's own. Of a fused kind no kernel is called: its ops are, one by one, so that every value is
    seen. `check` gives the kernel to call instead of a call's own; where only that is asked for, fused ones are called
    as they are. `current`: the op that was begun last, None where that is a call of a fused kind.
    """

    def __init__(
        self,
        kernels: object,
        region: str,
        calls: Sequence[RegionCall],
        sink: Callable[[dict[str, Any]], None] | None,
        before: Callable[[OpEntry], None] | None = None,
        guard: Callable[[OpEntry, Callable[..., Any]], Callable[..., Any]] | None = None,
        check: Callable[[RegionCall, Callable[..., Any]], Callable[..., Any]] | None = None,
    ) -> None:
        self._kernels = kernels
        self._region = region
        self._calls = calls
        self._sink = sink
        self._before = before
        self._guard = guard
        self._check = check
        self._parted = check is None or any(each is not None for each in (sink, before, guard))
        self._next = 0
        self.current: OpEntry | None = None

    def __getattr__(self, kind: str) -> Callable[..., Any]:
        if kind in FUSED:
            part = self._composed if self._parted else self._whole
            return lambda *args, **kwargs: part(self._take(kind))(*args, **kwargs)
        getattr(self._kernels, kind)  # an unknown kind is an AttributeError here already
        return lambda *args, **kwargs: self._recorded(self._take(kind).ops[0])(*args, **kwargs)

    def _composed(self, call: RegionCall) -> Callable[..., Any]:
        return compose(FUSED[call.kind], SimpleNamespace(**{op.kind: self._recorded(op) for op in call.ops}))

    def _whole(self, call: RegionCall) -> Callable[..., Any]:
        assert self._check is not None, "fused kinds are called whole where only a check is asked for"
        self.current = None
        return self._check(call, getattr(self._kernels, call.kind))

    def _recorded(self, op: OpEntry) -> Callable[..., Any]:
        kernel = getattr(self._kernels, op.kind)
        if self._guard is not None:
            kernel = self._guard(op, kernel)
        if self._check is not None:
            kernel = self._check(RegionCall(op.kind, (op,)), kernel)

        def recorded(*args: Any, **kwargs: Any) -> Any:
            self.current = op
            if self._before is not None:
                self._before(op)
            result = kernel(*args, **kwargs)
            if self._sink is not None:
                self._sink(by_port(op, result))
            return result

        return recorded

    def _take(self, kind: str) -> RegionCall:
        call = self._calls[self._next] if self._next < len(self._calls) else None
        if call is None or call.kind != kind:
            raise UserFault([_out_of_step(self._region, kind, call)])
        self._next += 1
        return call


def _out_of_step(region: str, kind: str, call: RegionCall | None) -> Diagnostic:
    expected = "the manifest has no further op there"
    if call is not None:
        expected = f"the manifest has `{call.kind}` (`{call.ops[0].id}`) next"
    return Diagnostic(
        "DSV869",
        f"the code of region `{region}` calls kernel `{kind}` where {expected}",
        help="compile the plan again; states of edited code cannot be recorded",
    )


def ops_by_region(manifest: Manifest) -> dict[str, list[OpEntry]]:
    """The ops of each region, in order."""
    ops = {op.id: op for op in manifest.ops}
    return {region.id: [ops[op] for op in region.ops] for region in manifest.regions}
