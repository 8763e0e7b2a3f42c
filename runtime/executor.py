"""The loop: the stages of a plan in order, and of each the regions, calls of generated functions on values by id."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from dsv41c.diagnostics import UserFault
from dsv41c.kernels.step import Step
from dsv41c.runtime.calls import calls_of
from dsv41c.runtime.faults import ops as faults
from dsv41c.runtime.faults.finite import Finite, nan_of_region
from dsv41c.runtime.faults.forms import Forms, Sizes
from dsv41c.runtime.faults.told import How, StepError, Where, raise_told
from dsv41c.runtime.guard import Guard
from dsv41c.runtime.manifest import Manifest, OpEntry, RegionEntry, weight_identifier
from dsv41c.runtime.recording import Recording, RecordingKernels, ops_by_region
from dsv41c.runtime.stages.busy import Busy
from dsv41c.runtime.stages.crossing import Crossing, Rows
from dsv41c.runtime.stages.layout import Layout, Stage
from dsv41c.runtime.stages.transport import LocalTransport, Transport
from dsv41c.runtime.stages.weights import at_place
from dsv41c.runtime.state import Pools
from dsv41c.runtime.tail import Tail, last_rows

_MOST_BEGUN = 64  # steps that are remembered while nobody waits for them


class LoadedPlan(Protocol):
    """What the runtime needs of a plan: its manifest, and the function of each region by id."""

    @property
    def manifest(self) -> Manifest:
        """What the plan says."""
        ...

    @property
    def functions(self) -> Mapping[str, Callable[..., Any]]:
        """`function(kernels, weights, step, *reads) -> writes` by region id."""
        ...


class RegionWeights:
    """The weights and constants of one region by the names its code uses; cannot be changed."""

    __slots__ = ("_by_name",)

    def __init__(self, by_name: Mapping[str, object]) -> None:
        object.__setattr__(self, "_by_name", dict(by_name))

    def __getattr__(self, name: str) -> Any:
        try:
            return object.__getattribute__(self, "_by_name")[name]
        except KeyError:
            raise AttributeError(f"this region has no weight `{name}`") from None

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"weights cannot be changed: `{name}`")

    def __iter__(self) -> Iterator[str]:
        return iter(object.__getattribute__(self, "_by_name"))

    def replaced(self, name: str, value: object) -> RegionWeights:
        """The same with another value in one place."""
        return RegionWeights({**object.__getattribute__(self, "_by_name"), name: value})


def region_weights(ops: list[OpEntry], weights: Mapping[str, object]) -> RegionWeights:
    """What the ops of a region name, looked up once."""
    ids = {weight_identifier(weight): weight for op in ops for weight in op.weights.values()}
    return RegionWeights({name: weights[weight] for name, weight in ids.items()})


@dataclass(frozen=True, slots=True)
class Calls:
    """How regions are called: with which kernels and weights, and who hears of what they do.

    `before` hears of each op, `sink` gets what each op wrote, `guard` keeps the ledger, `finite` looks at all that
    calls make. `state_checks` looks at the form of what each region wrote and where it left session state,
    `number_checks` for NaN in it, which brings numbers to the host. `tail`: the rows that regions compute, None for
    all. `rows`: whose they are, where that is known.
    """

    kernels: object
    weights: Mapping[str, RegionWeights]
    sink: Callable[[dict[str, Any]], None] | None = None
    before: Callable[[OpEntry], None] | None = None
    guard: Guard | None = None
    finite: Finite | None = None
    state_checks: bool = False
    number_checks: bool = False
    tail: Tail | None = None
    rows: Rows | None = None


def on_device_of(tensor: Tensor) -> AbstractContextManager[object]:
    """Makes a tensor's GPU the current one, which is where kernels are launched."""
    return torch.cuda.device(tensor.device) if tensor.device.type == "cuda" else nullcontext()


class Executor:
    """Runs the regions of a plan by calling them.

    `weights` holds every weight and constant by id, or `PlacedWeights`; `pools` the session state. `checks` looks at
    what regions write, `check_finite` at all that their calls make. `local`: the places of this process, all without
    it; `transport` carries what crosses between stages.

    What fails inside a step is told as `UserFault` (DSV840 to DSV845). `begun`: the rows of steps that were asked for
    and have not ended; devices may tell of an error of any of them.
    """

    def __init__(
        self,
        plan: LoadedPlan,
        kernels: object,
        weights: Mapping[str, object],
        pools: Pools,
        *,
        checks: bool = False,
        check_finite: bool = False,
        transport: Transport | None = None,
        local: Container[int] | None = None,
    ) -> None:
        self.manifest = plan.manifest
        self.kernels = kernels
        self.pools = pools
        self.checks = checks
        self.check_finite = check_finite
        self.forms = Forms(plan.manifest, pools.slots)
        self.begun: deque[Rows] = deque(maxlen=_MOST_BEGUN)
        self.functions = plan.functions
        self.regions = tuple(plan.manifest.regions)
        self.ops = ops_by_region(plan.manifest)
        by_id = {op.id: op for op in plan.manifest.ops}
        self.calls = {region.id: calls_of(region, by_id) for region in self.regions}
        self.layout = Layout.of(plan.manifest)
        self.stages = tuple(stage for stage in self.layout.stages if local is None or stage.place in local)
        self.weights = {
            region.id: region_weights(self.ops[region.id], at_place(weights, stage.place))
            for stage in self.stages
            for region in self.regions[stage.regions.start : stage.regions.stop]
        }
        crossed = [stage.boundary for stage in self.layout.stages if stage.boundary is not None]
        self.crossings = {boundary.to: Crossing(plan.manifest, boundary) for boundary in crossed}
        self.transport: Transport = transport or LocalTransport({})
        self.last_use = {value: index for index, region in enumerate(self.regions) for value in region.reads}
        self._sent_on = self._last_sent()
        self.busy: Busy | None = None

    def _last_sent(self) -> dict[int, list[str]]:
        """By stage, the step values that nobody wants any more once it has sent them on."""
        found: dict[int, list[str]] = {}
        for number, crossing in self.crossings.items():
            end = self.layout.stages[number - 1].regions.stop
            sent = [move.value for move in crossing.boundary.chunk]
            found[number - 1] = [value for value in sent if self.last_use.get(value, -1) < end]
            for value in found[number - 1]:
                self.last_use.pop(value, None)
        return found

    def run(self, ids: Tensor, step: Step, record: Recording | None = None, *, tail: Tail | None = None) -> Tensor:
        """One step of a plan on one device: ids int64 [B, T] at the places of `step`; logits f32 [B, T, V].

        Updates the pools in place. With a `tail`, for one session, regions compute only its rows. Logits are then those
        of the prompt's last token: f32 [B, 1, V] of the last step, [B, 0, V] of the others.
        """
        logits = self.run_stages(ids, {0: step}, None, record, tail=tail)
        assert logits is not None, "every stage is here"
        return logits

    def run_stages(
        self,
        ids: Tensor,
        steps: Mapping[int, Step],
        rows: Rows | None,
        record: Recording | None = None,
        *,
        tail: Tail | None = None,
        weights: Mapping[str, RegionWeights] | None = None,
    ) -> Tensor | None:
        """One step of the stages that are here: `steps` by place, `rows` where the plan has several stages.

        `weights`: those of this step by region, the executor's own without. The logits as `run` gives them; None where
        the last stage is elsewhere.
        """
        weights = self.weights if weights is None else weights
        values: dict[str, Tensor] = {"ids": ids, **self.pools.environment()}
        sink = None if record is None else lambda written: record.keep(written, self.pools.storage_of)
        ledger = self.pools.ledger
        guard = Guard(ledger, rows) if ledger is not None and rows is not None else None
        finite = Finite(self.manifest, self.forms, rows) if self.check_finite and rows is not None else None
        calls = Calls(self.kernels, weights, sink, None, guard, finite, self.checks, self.checks, tail, rows)

        def work(stage: Stage) -> None:
            try:
                self._stage(stage, values, steps[stage.place], rows, calls, record)
            except Exception as error:
                raise_told(error, self.where("eager", stage, stage.regions, rows))

        self.transport.run(self.stages, rows, work)
        if self.stages[-1] is not self.layout.stages[-1]:
            return None
        nothing = (ids.shape[0], 0, self.manifest.model.vocab_size)
        return values["logits"] if "logits" in values else torch.zeros(nothing, device=ids.device)

    def _stage(
        self,
        stage: Stage,
        values: dict[str, Tensor],
        step: Step,
        rows: Rows | None,
        calls: Calls,
        record: Recording | None,
    ) -> None:
        """The work of a stage: take over, compute, send on."""
        self.arrive(stage, values, rows)
        if stage.boundary is not None:
            arrived = {move.arrives_as: values.get(move.arrives_as) for move in stage.boundary.chunk}
            there = {value: tensor for value, tensor in arrived.items() if tensor is not None}
            if record is not None:
                record.keep(there, self.pools.storage_of)
            if calls.finite is not None:
                calls.finite.arrived(stage.boundary, there, self.pools, self.regions[stage.regions.start])
        with self.at_work(stage), on_device_of(step.slots):
            self.run_regions(stage.regions, values, step, calls)
        if calls.finite is not None:
            calls.finite.end()
        self.leave(stage, values, rows)

    def where(self, how: How, stage: Stage, part: range, rows: Rows | None) -> Where:
        """A piece of work of a stage, and what was asked of this process's devices since they were known to be well."""
        asked, begun = range(self.stages[0].regions.start, part.stop), tuple(self.begun)
        if self.checks:  # every region, or captured range of them, was waited for
            asked, begun = range(part.start, part.stop) if how != "eager" else range(0), ()
        regions, unknown = (self.regions[each.start : each.stop] for each in (part, asked))
        return Where(how, stage, self.layout.devices[stage.place], regions, rows, unknown, begun)

    def at_work(self, stage: Stage) -> AbstractContextManager[None]:
        """Around the work of a stage: what `busy` measures, where it is set."""
        return nullcontext() if self.busy is None else self.busy.at(stage)

    def arrive(self, stage: Stage, values: dict[str, Tensor], rows: Rows | None) -> None:
        """Take over what the stage before has sent; nothing for the first one."""
        if stage.boundary is not None:
            assert rows is not None, "steps over several stages say whose rows they have"
            self.transport.arrive(self.crossings[stage.index], values, self.pools, rows)

    def leave(self, stage: Stage, values: dict[str, Tensor], rows: Rows | None, *, drop: bool = True) -> None:
        """Send on what the next stage reads; nothing for the last one. `drop`: let go of what nobody else wants."""
        if stage.index + 1 in self.crossings:
            assert rows is not None, "steps over several stages say whose rows they have"
            self.transport.leave(self.crossings[stage.index + 1], values, self.pools, rows)
            for value in self._sent_on[stage.index] if drop else ():
                values.pop(value, None)

    def run_regions(self, regions: range, values: dict[str, Tensor], step: Step, calls: Calls) -> None:
        """Run some regions, in order, on values by id; adds what they write, drops what nobody reads any more."""
        for index in regions:
            region = self.regions[index]
            if calls.tail is None:
                self._call(region, values, step, calls)
            elif rows := calls.tail.computed(region.id):
                known = {value: self._last(value, values[value], rows) for value in region.reads}
                self._call(region, known, calls.tail.step(step, region.id), calls)
                values.update({value: known[value] for value in region.writes})
            for value in region.reads:
                if self.last_use.get(value) == index and value not in self.pools.storage_of:
                    values.pop(value, None)  # step values are large; free them as soon as nobody reads them

    def _call(self, region: RegionEntry, values: dict[str, Tensor], step: Step, calls: Calls) -> None:
        kernels, reads = calls.kernels, [values[value] for value in region.reads]
        watching: RecordingKernels | None = None
        if any(each is not None for each in (calls.sink, calls.before, calls.guard, calls.finite)):
            check = None if calls.finite is None else calls.finite.of(region, step, calls.tail, calls.kernels)
            single = (calls.sink, calls.before, calls.guard, check)
            kernels = watching = RecordingKernels(kernels, region.id, self.calls[region.id], *single)
        try:
            result = self.functions[region.id](kernels, calls.weights[region.id], step, *reads)
        except (UserFault, StepError):
            raise
        except Exception as error:
            current = None if watching is None else watching.current
            sizes = self._sizes(region, values, step)
            found = faults.raised(error, region, self.calls[region.id], current, self.forms, sizes)
            raise found if calls.finite is None else found.made_here() from error
        written = result if isinstance(result, tuple) else (result,)
        fresh = dict(zip(region.writes, written, strict=True))
        if calls.state_checks:
            self._check_state(region, fresh, self._sizes(region, values, step))
        if calls.tail is not None:  # the first rows of a region that attends lack rows before them
            fresh = {value: self._last(value, tensor, calls.tail.read(value)) for value, tensor in fresh.items()}
        if calls.number_checks:
            self.check_numbers(region, fresh, calls.rows)
        values.update(fresh)

    def _sizes(self, region: RegionEntry, values: Mapping[str, Tensor], step: Step) -> Sizes:
        given = [values[value] for value in region.reads if value not in self.pools.storage_of]
        return Sizes.of(given, step.slots.shape[0], step.context)

    def _last(self, value: str, tensor: Tensor, rows: int) -> Tensor:
        """The last rows of a step value; session state as it is."""
        return tensor if value in self.pools.storage_of else last_rows(tensor, rows)

    def _check_state(self, region: RegionEntry, written: Mapping[str, Tensor], sizes: Sizes) -> None:
        """What a region writes has the form that the plan says; session state has to be updated in place."""
        for value in self.forms.unfit(written, sizes):
            raise faults.wrong_form(value, written[value], region, self._maker(region, value), self.forms, sizes)
        for value, tensor in written.items():
            storage = self.pools.storage_of.get(value)
            if storage is not None and tensor.data_ptr() != self.pools.tensors[storage].data_ptr():
                raise faults.moved_state(value, region, self._maker(region, value))

    def check_numbers(self, region: RegionEntry, written: Mapping[str, Tensor], rows: Rows | None) -> None:
        """No step value may hold NaN."""
        for value, tensor in written.items():
            if value not in self.pools.storage_of and tensor.is_floating_point() and tensor.isnan().any():
                raise nan_of_region(value, tensor, region, self._maker(region, value), rows)

    def _maker(self, region: RegionEntry, value: str) -> OpEntry:
        return next(op for op in self.ops[region.id] if value in op.writes.values())
