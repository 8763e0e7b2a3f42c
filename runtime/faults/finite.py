"""`--check-finite`: every value is looked at when it is made, and the first that is not finite ends the step.

Calls of fused kinds run as they are. Where one gives what is not finite, it is run again op by op, on what it was
given, to name the op inside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from dsv41c.kernels.catalog import COLLECTIVES
from dsv41c.kernels.fusion import CALLS, FUSED
from dsv41c.kernels.reference.fused import compose
from dsv41c.kernels.step import Step
from dsv41c.runtime.calls import RegionCall
from dsv41c.runtime.faults import ops as faults
from dsv41c.runtime.faults.forms import Forms, Sizes, form
from dsv41c.runtime.faults.numbers import Spot, of_state, of_step_value, reads_of, unfit_elements, writes_of
from dsv41c.runtime.faults.told import Facts, Found, StepError, session
from dsv41c.runtime.manifest import Manifest, OpEntry, RegionEntry
from dsv41c.runtime.stages.layout import Boundary
from dsv41c.runtime.state import Pools, row_axis
from dsv41c.runtime.tail import Tail
from dsv41c.runtime.touches import Given, Touch
from dsv41c.words import shortlist

if TYPE_CHECKING:
    from dsv41c.runtime.stages.crossing import Rows

Kernel = Callable[..., Any]
Check = Callable[[RegionCall, Kernel], Kernel]
_GROUPS = ("compress_kv", "index_k")  # state with a row a group
_HELP = (
    "where all inputs are finite the op made it: too large numbers, or its kernel, which `--compare reference` holds "
    "to plain ones; else look at the inputs that are named"
)


class Finite:
    """Looks at the values of one step. With several shards a step goes on to where all have met, and is ended there."""

    def __init__(self, manifest: Manifest, forms: Forms, rows: Rows) -> None:
        self.forms = forms
        self.rows = rows
        self._writers = {value: op for op in manifest.ops for value in op.writes.values()}
        self._keeps = manifest.target.tensor_parallel > 1
        self._first: StepError | None = None

    def alone(self) -> Finite:
        """The same, but the first value ends what is run."""
        same = copy(self)
        same._keeps = False
        return same

    def of(self, region: RegionEntry, step: Step, tail: Tail | None, kernels: object) -> Check:
        """How a region's calls are checked."""
        tokens = self.rows.tokens if tail is None else tail.computed(region.id)
        return _Region(self, region, step, tokens, kernels).check

    def arrived(self, boundary: Boundary, values: Mapping[str, Tensor], pools: Pools, region: RegionEntry) -> None:
        """Look at what has come from another stage, step values by id and rows of mirrors, where a region begins."""
        for value, tensor in values.items():
            first = [position + self.rows.tokens - tensor.shape[1] for position in self.rows.positions]
            spot = of_step_value(self.forms.entries[value], tensor, len(self.rows.slots), first)
            if spot is not None:
                self._crossed(value, tensor, spot, region)
        for value in (move.arrives_as for move in boundary.mirrors):
            ratio, pool = self.forms.ratio(value), pools.tensors[pools.storage_of[value]]
            slots, numbers = self.rows.appended(ratio)
            places = torch.tensor([slots, numbers], dtype=torch.int64, device=pool.device)
            rows = places[1][:, None]
            touch = Touch(rows, rows, torch.ones_like(rows, dtype=torch.bool))
            spot = of_state(self.forms.entries[value].kind, pool, places[0], touch, len(slots), ratio)
            if spot is not None:
                whose = [self.rows.slots.index(slots[row]) for row in (spot.row, *spot.rows)]
                self._crossed(value, pool, replace(spot, row=whose[0], rows=tuple(dict.fromkeys(whose))), region)

    def _crossed(self, value: str, tensor: Tensor, spot: Spot, region: RegionEntry) -> None:
        inputs = "what was sent is looked at where it was made"
        self.report(not_finite(value, tensor, spot, region, self._writers[value], self.rows, inputs))

    def report(self, found: StepError) -> None:
        """End the step, or remember why it has to end."""
        if not self._keeps:
            raise found
        self._first = self._first or found

    def end(self) -> None:
        """A stage has computed all it has."""
        if self._first is not None:
            raise self._first


@dataclass(frozen=True, slots=True)
class _Region:
    """The checks of one region's calls: `tokens` of each session, from `step` on."""

    finite: Finite
    region: RegionEntry
    step: Step
    tokens: int
    kernels: object

    def check(self, call: RegionCall, kernel: Kernel) -> Kernel:
        """The kernel of a call, with a look at what it gives."""
        kind = CALLS[call.kind]
        reads, writes = call.reads, call.writes
        required = [port.name for port in kind.reads if not port.optional]

        def checked(*args: Any, **named: Any) -> Any:
            inputs = args[1:] if kind.uses_step else args
            given = {
                **dict(zip(required, inputs, strict=False)),
                **{port: named[port] for port in reads if port in named},
            }
            weights = [*inputs[len(required) :], *(named[name] for name in kind.optional_weights if name in named)]
            before = {port: pool.clone() for port, pool in given.items() if self._is_overwritten(call, reads[port])}
            result = kernel(*args, **named)
            parts = result if isinstance(result, tuple) else (result,)
            made = dict(zip([port.name for port in kind.writes if port.name in writes], parts, strict=True))
            self._wait(made)
            for value, tensor, spot in self._spots(call, {writes[port]: tensor for port, tensor in made.items()}):
                given = {**given, **before}
                found = self._found(call, value, tensor, spot, {reads[port]: given[port] for port in given}, weights)
                if call.fused:
                    again = [before.get(name, each) for name, each in zip(required, inputs, strict=False)]
                    rest = inputs[len(required) :]
                    found = self._inside(call, found, [self.step, *again, *rest], {**named, **_those(before, named)})
                self.finite.report(found)
                break
            return result

        return checked

    def _is_overwritten(self, call: RegionCall, value: str) -> bool:
        """Whether a call writes state that it reads, in place."""
        forms = self.finite.forms
        written = {forms.entries[each].storage or each for each in call.writes.values()}
        entry = forms.entries[value]
        return entry.scope == "session" and (entry.storage or value) in written

    def _wait(self, made: Mapping[str, Any]) -> None:
        """What a device has to say of a call, it says here."""
        for tensor in made.values():
            if isinstance(tensor, Tensor) and tensor.is_cuda:
                torch.cuda.synchronize(tensor.device)
                return

    # --- what was made ----------------------------------------------------------------------------------------------

    def _spots(self, call: RegionCall, made: Mapping[str, Any]) -> Iterator[tuple[str, Tensor, Spot]]:
        """What a call made that is not finite. Raises `StepError` where it has another form than it should."""
        forms, batch = self.finite.forms, self.step.slots.shape[0]
        sizes = Sizes(batch, self.tokens, self.step.context)
        for value in forms.unfit(made, sizes):
            raise faults.wrong_form(value, made[value], self.region, _writer(call, value), forms, sizes)
        for value, tensor in made.items():
            spot = self._spot(_writer(call, value), value, tensor, writes=True)
            if spot is not None:
                yield value, tensor, spot

    def _spot(
        self, op: OpEntry, value: str, tensor: Tensor, *, writes: bool, topk: Tensor | None = None
    ) -> Spot | None:
        """What is not finite of a value that an op reads, or writes."""
        entry, count = self.finite.forms.entries[value], len(self.finite.rows.slots)
        first = self._first()
        ratio = self.finite.forms.ratio(value)
        if entry.scope == "step":
            grouped = ratio if entry.shape[1:2] == ["T/r"] else 0
            return of_step_value(entry, tensor, count, first, grouped, self.tokens)
        ports = op.writes if writes else op.reads
        port = next(name for name, each in ports.items() if each == value)
        given = Given(self.step, self.tokens, tensor.shape[row_axis(entry.kind)], op.attrs.get("ratio"), topk)
        touch = (writes_of if writes else reads_of)(op.kind, port, given)
        if touch is None:
            return None
        groups = entry.kind in _GROUPS
        ended = [(position + self.tokens) // ratio for position in first] if groups else None
        return of_state(entry.kind, tensor, self.step.slots, touch, count, ratio if groups else 1, ended)

    def _first(self) -> list[int]:
        rows = self.finite.rows
        return [position + rows.tokens - self.tokens for position in rows.positions]

    # --- what it was made of ----------------------------------------------------------------------------------------

    def _found(
        self, call: RegionCall, value: str, tensor: Tensor, spot: Spot, given: Mapping[str, Any], weights: list[Any]
    ) -> StepError:
        bad = [f"`{each}`" for each in self._bad_reads(call, given)]
        names = [weight for op in call.ops for weight in op.weights.values()]
        bad += [f"weight `{name}`" for name, each in zip(names, weights, strict=False) if unfit_elements(each)]
        inputs = f"not finite: {shortlist(bad, 4)}" if bad else "all finite"
        if call.kind in COLLECTIVES and not bad:
            inputs = "this process's part is finite, another's is not"
        op = _writer(call, value)
        return not_finite(value, tensor, spot, self.region, op, self.finite.rows, inputs, call)

    def _bad_reads(self, call: RegionCall, given: Mapping[str, Any]) -> Iterator[str]:
        for value, tensor in given.items():
            readers = [op for op in call.ops if value in op.reads.values()]
            topk = next((given[op.reads["topk"]] for op in readers if op.reads.get("topk") in given), None)
            if any(self._spot(op, value, tensor, writes=False, topk=topk) is not None for op in readers):
                yield value

    def _inside(self, call: RegionCall, found: StepError, args: list[Any], named: Mapping[str, Any]) -> StepError:
        """The op inside a fused call, found by running its ops one by one; `found` where these are finite."""
        alone = replace(self, finite=self.finite.alone())
        parts = {op.kind: alone.check(RegionCall(op.kind, (op,)), getattr(self.kernels, op.kind)) for op in call.ops}
        covers = f"the fused call `{call.kind}` covers {', '.join(f'`{op.id}`' for op in call.ops)}"
        try:
            compose(FUSED[call.kind], SimpleNamespace(**parts))(*args, **named)
        except StepError as inner:
            note = f"{covers}; run again op by op, `{inner.found.ops[0].id}` is the first of them to make such a value"
            return StepError(replace(inner.found, notes=(note,)))
        note = f"{covers}; run again op by op, none of them makes such a value: the fused kernel does"
        return StepError(replace(found.found, notes=(note,)))


def not_finite(
    value: str,
    tensor: Tensor,
    spot: Spot,
    region: RegionEntry,
    op: OpEntry,
    rows: Rows | None,
    inputs: str,
    call: RegionCall | None = None,
) -> StepError:
    """The finding (DSV845) for a value with a spot."""
    count = 0 if rows is None else len(rows.slots)
    whose = "a padding row" if rows is None or spot.row >= count else session(rows, spot.row)
    index = str(list(spot.index))
    facts: Facts = (
        ("not finite", spot.counts),
        ("inputs", inputs),
        ("session", whose),
        ("position", str(spot.number)),
        ("index", index),
        ("layer", "none" if op.layer is None else str(op.layer)),
    )
    if rows is not None and count > 1:
        facts = (*facts, ("sessions with such", shortlist([session(rows, row) for row in spot.rows if row < count], 6)))
    maker = f"`{op.id}`" if call is None or not call.fused else f"the fused call `{call.kind}`"
    message = f"{maker} made `{value}` not finite: {spot.value} for {whose} at position {spot.number}"
    more = (("value", value), ("form", form(tensor)), ("op", op.id), ("kind", op.kind), ("region", region.id))
    return StepError(Found("DSV845", message, (op,), region, facts, _HELP, more=more))


def nan_of_region(value: str, tensor: Tensor, region: RegionEntry, op: OpEntry, rows: Rows | None) -> StepError:
    """The finding for NaN in what a region wrote (debug 2), whose calls were not looked at one by one."""
    bad = tensor.isnan()
    index = tuple(int(place) for place in bad.nonzero()[0])
    rows_of = tuple(bad.flatten(1).any(1).nonzero()[:, 0].tolist())
    number = index[1]
    if rows is not None and index[0] < len(rows.slots):
        number += rows.positions[index[0]] + rows.tokens - tensor.shape[1]
    spot = Spot(int(bad.sum()), 0, tensor.numel(), index, float("nan"), index[0], number, rows_of)
    found = not_finite(value, tensor, spot, region, op, rows, "not looked at").found
    return StepError(replace(found, help="`--check-finite` finds the op where it begins"))


def _writer(call: RegionCall, value: str) -> OpEntry:
    return next(op for op in call.ops if value in op.writes.values())


def _those(before: Mapping[str, Any], named: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tensor for name, tensor in before.items() if name in named}
