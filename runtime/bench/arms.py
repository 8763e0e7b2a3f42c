"""The arms of a benchmark: ways to run one decode step, on the same weights, state and inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Protocol

import torch
from torch import Tensor

from dsv41c.kernels.step import Step
from dsv41c.runtime.bench.ahead import ReadAhead
from dsv41c.runtime.bench.measure import Clock
from dsv41c.runtime.bench.torch_arm import plain_torch
from dsv41c.runtime.captured import CapturedSteps
from dsv41c.runtime.device.families import device_for
from dsv41c.runtime.device.protocol import Device
from dsv41c.runtime.engine import Engine
from dsv41c.runtime.executor import Executor
from dsv41c.runtime.plan import Plan
from dsv41c.runtime.reference import ReferenceExecutor

# In the order in which they are listed and compared.
ARMS: Mapping[str, str] = MappingProxyType(
    {
        "layer": "a graph for each layer",
        "all": "one graph, or as few as tables on the host allow",
        "eager": "the same kernels without graphs",
        "torch": "plain torch ops without graphs",
    }
)
CAPTURED = ("layer", "all")
_ONE_STEP = ("group_tail", "token_history")  # state whose new form depends on the old one


@dataclass(frozen=True, slots=True)
class StepInputs:
    """What the steps of a cell are fed, on the device: ids int64 [K, B, 1], slots [B], positions [K, B].

    `context`: no position reaches it.
    """

    ids: Tensor
    slots: Tensor
    positions: Tensor
    context: int

    @property
    def batch(self) -> int:
        """Sessions of a step."""
        return len(self.slots)

    def step(self, index: int) -> Step:
        """The place of a step; they come round again."""
        return Step(self.slots, self.positions[index % len(self.ids)], self.context)

    def ahead(self, engine: Engine | None) -> ReadAhead | None:
        """Begins their steps; None where no rows are read ahead."""
        if engine is None or engine.steps.prefetch is None:
            return None
        return ReadAhead(engine, engine.steps.prefetch, self.ids, self.slots, self.positions, self.context)


class Arm(Protocol):
    """A way to run steps. `graphs` and `capture_seconds` are None where nothing is captured."""

    graphs: int | None
    capture_seconds: float | None

    def prepare(self, inputs: StepInputs) -> None:
        """Make ready for the inputs of a cell."""
        ...

    def step(self, index: int) -> Tensor:
        """Start a step; logits f32 [B, 1, V], which the next step may overwrite.

        It waits for nothing, or as a real step does where rows of tables come from the host.
        """
        ...

    def release(self) -> None:
        """Let go of what `prepare` made."""
        ...


class CapturedArm:
    """Graphs, cut as `capture` says (`layer` or `all`). `kernels` have to be capture-safe."""

    def __init__(
        self, plan: Plan, engine: Engine, kernels: object, capture: str, devices: Mapping[int, Device]
    ) -> None:
        runtime = plan.manifest.runtime.model_copy(update={"capture": capture})
        cut = replace(plan, manifest=plan.manifest.model_copy(update={"runtime": runtime}))
        self.executor = Executor(cut, kernels, engine.weights, engine.pools)
        self.contexts = engine.captured.contexts if engine.captured is not None else None
        self.engine = engine
        self.kernels = kernels
        self.devices = devices
        self.graphs: int | None = None
        self.capture_seconds: float | None = None
        self.steps: CapturedSteps | None = None
        self.inputs: StepInputs | None = None
        self.ahead: ReadAhead | None = None

    def prepare(self, inputs: StepInputs) -> None:
        """Capture the steps of one batch and context. A step without graphs comes first, so that compiling is over."""
        steps = CapturedSteps(self.executor, self.devices, self.kernels, (inputs.batch,), self.contexts)
        spare = torch.full_like(inputs.slots, self.executor.pools.spare)
        reach = steps.context_of(inputs.context)
        self.executor.run(inputs.ids[0], Step(spare, torch.zeros_like(inputs.slots), reach))
        self.capture_seconds = Clock(self.devices[0].place).wall(lambda: steps.prepare(inputs.context))
        self.graphs = len(steps.ranges)
        steps.inputs[inputs.batch].slots.copy_(inputs.slots)
        self.steps, self.inputs, self.ahead = steps, inputs, inputs.ahead(self.engine)

    def step(self, index: int) -> Tensor:
        """Copy the inputs to where the graphs read them, and replay."""
        assert self.steps is not None and self.inputs is not None, "a step comes after `prepare`"
        if self.ahead is not None:
            logits = self.steps.run(*self.ahead.begin(index))
        else:
            given, place = self.steps.inputs[self.inputs.batch], index % len(self.inputs.ids)
            given.ids.copy_(self.inputs.ids[place])
            given.positions.copy_(self.inputs.positions[place])
            logits = self.steps.replay(self.inputs.batch, self.inputs.context)
        assert logits is not None, "a bench has every stage"
        return logits

    def release(self) -> None:
        """Drop the graphs."""
        if self.steps is not None:
            self.steps.release()
        self.steps = None


class EagerArm:
    """Every kernel called as the plan's code does. `contexts`: as far as graphs of the same kernels reach.

    `engine`: whose steps read rows ahead, where they do.
    """

    graphs: int | None = None
    capture_seconds: float | None = None

    def __init__(self, executor: Executor, contexts: Sequence[int] = (), engine: Engine | None = None) -> None:
        self.executor = executor
        self.contexts = tuple(contexts)
        self.engine = engine
        self.inputs: StepInputs | None = None
        self.ahead: ReadAhead | None = None

    def prepare(self, inputs: StepInputs) -> None:
        """Take the inputs, with the context that a graph for them would have."""
        reach = next((context for context in self.contexts if context >= inputs.context), inputs.context)
        self.inputs = replace(inputs, context=reach)
        self.ahead = self.inputs.ahead(self.engine)

    def step(self, index: int) -> Tensor:
        """Run the regions."""
        assert self.inputs is not None, "a step comes after `prepare`"
        rows, weights = None, None
        if self.ahead is not None:
            _, rows, fetched = self.ahead.begin(index)
            if fetched is not None:
                weights = self.ahead.prefetch.over(self.executor.weights, fetched, self.executor.checks)
        ids = self.inputs.ids[index % len(self.inputs.ids)]
        logits = self.executor.run_stages(ids, {0: self.inputs.step(index)}, rows, weights=weights)
        assert logits is not None, "a bench has every stage"
        return logits

    def release(self) -> None:
        """Nothing is kept."""


class TorchArm:
    """Plain torch, op by op. Its experts are not the plan's, so neither are its logits."""

    graphs: int | None = None
    capture_seconds: float | None = None

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.executor: ReferenceExecutor | None = None
        self.inputs: StepInputs | None = None

    def prepare(self, inputs: StepInputs) -> None:
        """Make the dense weights."""
        self.executor = plain_torch(self.engine)
        self.inputs = inputs

    def step(self, index: int) -> Tensor:
        """Run the ops."""
        assert self.executor is not None and self.inputs is not None, "a step comes after `prepare`"
        ids = self.inputs.ids[index % len(self.inputs.ids)]
        return self.executor.run(self.inputs.step(index), {"ids": ids})["logits"]

    def release(self) -> None:
        """Let go of the dense weights, which the next cell's peak would count."""
        self.executor = None


def make_arms(plan: Plan, engine: Engine, names: tuple[str, ...]) -> dict[str, Arm | None]:
    """The arms by name, in their own order; None for those that this device cannot have."""
    captured = engine.captured
    kernels = captured.kernels if captured is not None else engine.executor.kernels
    makers: dict[str, Callable[[], Arm]] = {
        **{name: partial(_captured, plan, engine, kernels, name) for name in CAPTURED},
        "eager": lambda: EagerArm(
            Executor(plan, kernels, engine.weights, engine.pools),
            captured.contexts if captured is not None else (),
            engine,
        ),
        "torch": lambda: TorchArm(engine),
    }
    possible = [name for name in names if engine.device.captures or name not in CAPTURED]
    return {name: makers[name]() if name in possible else None for name in ARMS if name in names}


def _captured(plan: Plan, engine: Engine, kernels: object, capture: str) -> CapturedArm:
    """With a device of its own: two cuts of one plan have graphs of the same names."""
    return CapturedArm(plan, engine, kernels, capture, {0: device_for(plan.manifest)})


def bench_plan(plan: Plan) -> Plan:
    """The plan with its decode steps captured, which arms do whatever the plan says."""
    runtime = plan.manifest.runtime.model_copy(update={"capture": "layer"})
    return replace(plan, manifest=plan.manifest.model_copy(update={"runtime": runtime}))


@contextmanager
def state_kept(engine: Engine) -> Iterator[None]:
    """What a step inside does to state that it cannot do twice is undone; the rows it writes are the same again."""
    pools = engine.pools
    kept = {name: pool.clone() for name, pool in pools.tensors.items() if pools.kinds[name] in _ONE_STEP}
    try:
        yield
    finally:
        for name, pool in kept.items():
            pools.tensors[name].copy_(pool)


def apart(logits: Tensor, expected: Tensor) -> float:
    """How far logits are from others: the norm of the difference, by that of the others."""
    wide = expected.to(torch.float64)
    return float((logits.to(torch.float64) - wide).norm() / wide.norm())
