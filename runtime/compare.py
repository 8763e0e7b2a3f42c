"""Comparing a plan with the reference executor: the first value of a run that leaves its bound.

Each step is compared by itself. The reference starts from the engine's own state before the step, and each region of
it from the engine's own inputs, so an error does not spread: what is reported first is where it was made. A wrong
wiring of compiled code shows as well, because the reference wires by the manifest. What arrives on another stage is
compared with what was sent, and a mirror with the rows of its source.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from dsv41c.diagnostics import Diagnostic, UserFault
from dsv41c.kernels.catalog import CARRIERS
from dsv41c.kernels.step import Step
from dsv41c.runtime.engine import Engine
from dsv41c.runtime.manifest import OpEntry
from dsv41c.runtime.recording import Recording, Trace
from dsv41c.runtime.reference import ReferenceExecutor, unknown_value
from dsv41c.runtime.session import Session
from dsv41c.runtime.stages.layout import Boundary, ratios
from dsv41c.runtime.stages.weights import at_place
from dsv41c.runtime.state import Pools

# Largest difference within one region from equal inputs, over the largest magnitude of the value (at least 1), by the
# plan's compute dtype: a region's f32 values come from its rounded ones. Measured on the golden checkpoint with every
# product in f64 instead: 1.0e-6 and 3.0e-3. Integers, booleans and selections have to be equal.
BOUNDS: Mapping[str, float] = {"f32": 1e-5, "bf16": 2**-7}


@dataclass(frozen=True, slots=True)
class Difference:
    """How far one value is from the reference: the measure of `distance`, and the bound it has to keep.

    `forms` are the dtype and shape it has and those of the reference, where they differ and nothing can be measured.
    """

    value: str
    step: int
    positions: tuple[int, int]
    distance: float
    bound: float
    forms: tuple[str, str] | None = None

    @property
    def inside(self) -> bool:
        """Whether the value keeps its bound; NaN does not."""
        return self.distance <= self.bound


@dataclass(frozen=True, slots=True)
class Layer:
    """What was compared in a layer: the value that is farthest, how many values there were, how many out of bound."""

    farthest: Difference
    values: int
    outside: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """What was compared: the first value outside its bound if any, the largest distance in bound, and the counts.

    `layers` has each layer by its number, and `embed` and `head`; what crosses between stages is in none.
    """

    first: Difference | None
    worst: Difference | None
    values: int
    steps: int
    layers: Mapping[str, Layer] = field(default_factory=dict)

    @property
    def diagnostics(self) -> tuple[Diagnostic, ...]:
        """The finding (DSV866) for a value outside its bound."""
        return () if self.first is None else (_finding(self.first),)


class Comparer:
    """Feeds an engine's session and the reference side by side. `until`: the last value to look at, all without it."""

    def __init__(self, engine: Engine, *, until: str | None = None, kernels: object | None = None) -> None:
        manifest, layout = engine.manifest, engine.layout
        self.engine = engine
        self.places = {place: device.place for place, device in engine.devices.items()}
        self.pools = Pools(manifest, {layout.devices[place]: device for place, device in self.places.items()})
        self.references = {
            place: ReferenceExecutor(manifest, at_place(engine.weights, place), kernels=kernels, pools=self.pools)
            for place in self.places
        }
        self.order = _compared(engine, until)
        self._ratios = ratios(manifest)
        self.first: Difference | None = None
        self.worst: Difference | None = None
        self.values = 0
        self.steps = 0
        self.layers: dict[str, Layer] = {}
        self._layer_of = {value: _layer(op) for op in manifest.ops for value in op.writes.values()}

    def feed(self, session: Session, ids: Sequence[int], trace: Trace | None = None) -> Tensor:
        """Feed tokens as one step, as `Session.feed` does with `all_logits`, and compare it. `trace` is added to."""
        self.pools.copy_from(self.engine.pools, session.slot)
        start, own = session.length, Trace()
        logits = self.engine.feed(session, ids, all_logits=True, chunk=len(ids), trace=own)
        for recording in own.steps:
            width = recording.values["streams@embed"].shape[1]
            self._compare(recording, session.slot, list(ids), start, width)
            start, ids = start + width, ids[width:]
        if trace is not None:
            trace.steps += own.steps
        return logits

    def result(self) -> Comparison:
        """What was found so far."""
        return Comparison(self.first, self.worst, self.values, self.steps, dict(self.layers))

    def _compare(self, recording: Recording, slot: int, ids: list[int], start: int, width: int) -> None:
        """Run the reference region by region from the recording's values, and compare what each op writes."""
        first = self.places[self.engine.layout.stages[0].place]
        known = {"ids": torch.tensor([ids[:width]], device=first), **recording.values}
        for stage in self.engine.layout.stages:
            if stage.boundary is not None:
                self._arrived(stage.boundary, known, slot, start, width)
            place = self.places[stage.place]
            step = Step(torch.tensor([slot], device=place), torch.tensor([start], device=place), start + width)
            for region in self.engine.executor.regions[stage.regions.start : stage.regions.stop]:
                own = {value for op in self.engine.executor.ops[region.id] for value in op.writes.values()}
                looked_at = [value for value in self.order if value in own]
                if not looked_at:  # nor is any behind it
                    break
                feeds = {value: tensor for value, tensor in known.items() if value not in own}
                reference = self.references[stage.place]
                expected = reference.run(step, feeds, first=region.ops[0], until=region.ops[-1])
                for value in looked_at:
                    if value in self.pools.storage_of:  # each is written once a step, so what is there now is it
                        got, wanted = self.engine.pools.rows(value, slot), self.pools.rows(value, slot)
                    else:
                        got, wanted = recording.values[value], expected[value]
                    self._look(value, got, wanted, (start, start + width - 1))
        self.steps += 1

    def _arrived(self, boundary: Boundary, known: Mapping[str, Tensor], slot: int, start: int, width: int) -> None:
        """Compare what a stage got with what was sent. Its mirrors have every complete group of the session."""
        positions = (start, start + width - 1)
        for move in boundary.chunk:
            if move.arrives_as in self.order:
                got = known[move.arrives_as]
                self._look(move.arrives_as, got, known[move.value].to(got.device), positions, exact=True)
        pools = self.engine.pools
        for move in boundary.mirrors:
            groups = (start + width) // self._ratios[move.value]
            if move.arrives_as in self.order:
                got, sent = (pools.rows(value, slot)[:groups] for value in (move.arrives_as, move.value))
                self._look(move.arrives_as, got, sent.to(got.device), positions, exact=True)
            source = pools.tensors[pools.storage_of[move.value]][slot]
            self.pools.tensors[self.pools.storage_of[move.arrives_as]][slot] = source  # what its readers should find

    def _look(
        self, value: str, got: Tensor, expected: Tensor, positions: tuple[int, int], *, exact: bool = False
    ) -> None:
        rounded = expected.is_floating_point() and not exact
        bound = BOUNDS[self.engine.manifest.numerics.compute] if rounded else 0.0
        if value in self.pools.storage_of:  # rows that nobody wrote yet may hold anything, NaN too
            never = got.isnan() & expected.isnan()
            got, expected = got.masked_fill(never, 0), expected.masked_fill(never, 0)
        forms = _form(got), _form(expected)
        differing = forms if forms[0] != forms[1] else None
        difference = Difference(value, self.steps, positions, distance(got, expected), bound, differing)
        self.values += 1
        self._count(difference)
        if not difference.inside:
            self.first = self.first or difference
        elif self.worst is None or difference.distance > self.worst.distance:
            self.worst = difference

    def _count(self, difference: Difference) -> None:
        name = self._layer_of[difference.value]
        if name is None:
            return
        known = self.layers.get(name, Layer(difference, 0, 0))
        # Not `max`: a NaN is farther than anything.
        farther = difference if not difference.distance <= known.farthest.distance else known.farthest
        self.layers[name] = Layer(farther, known.values + 1, known.outside + (not difference.inside))


def distance(got: Tensor, expected: Tensor) -> float:
    """Floats: largest difference over the largest magnitude (at least 1), equal infinities counting as equal.

    Integers and booleans: the share of elements that differ. Another shape or dtype: infinity.
    """
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return float("inf")
    if got.numel() == 0:
        return 0.0
    if not got.is_floating_point():
        return (got != expected).float().mean().item()
    wide, reference = got.double(), expected.double()
    apart = torch.where(wide == reference, 0.0, (wide - reference).abs())
    finite = reference[reference.isfinite()].abs()
    scale = max(1.0, finite.max().item()) if finite.numel() else 1.0
    return torch.nan_to_num(apart, nan=float("inf"), posinf=float("inf")).max().item() / scale


def _layer(op: OpEntry) -> str | None:
    """The layer that an op is of, or the end of the model; None for what carries values between stages."""
    if op.kind in CARRIERS:
        return None
    if op.layer is not None:
        return str(op.layer)
    return "embed" if op.kind in ("embed", "engram_ids") else "head"


def _form(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def _compared(engine: Engine, until: str | None) -> list[str]:
    """Ids of all values, session state and copies on other stages included, in the order of the ops, up to `until`."""
    order = [value for op in engine.manifest.ops for value in op.writes.values()]
    if until is None:
        return order
    if until not in order:
        raise UserFault([unknown_value(engine.manifest, until)])
    return order[: order.index(until) + 1]


def _finding(first: Difference) -> Diagnostic:
    start, end = first.positions
    message = f"`{first.value}` is {first.distance:.3g} from the reference, past its bound of {first.bound:.3g}"
    if first.forms is not None:
        message = f"`{first.value}` is {first.forms[0]}, and the reference's is {first.forms[1]}"
    return Diagnostic(
        "DSV866",
        message,
        facts=(("positions", f"{start} to {end}"), ("step", str(first.step))),
        help="look at the op that writes it; every value before it keeps its bound",
    )
