"""How many kernels a step launches, and how long each takes: one step under torch's profiler, never a timed one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, record_function

from dsv41c.runtime.bench.arms import Arm, CapturedArm, EagerArm, StepInputs
from dsv41c.runtime.bench.measure import Clock
from dsv41c.runtime.device.protocol import GraphKey
from dsv41c.runtime.engine import Engine
from dsv41c.runtime.executor import Calls

_MARK = "dsv41c "


@dataclass(frozen=True, slots=True)
class KernelTime:
    """Launches of one name in a step, and their seconds together."""

    name: str
    count: int
    seconds: float


@dataclass(frozen=True, slots=True)
class KernelTimes:
    """Kernels of a step, the longest first; on the CPU, torch's operations without what they call."""

    kernels: tuple[KernelTime, ...]

    @property
    def seconds(self) -> float:
        """Of all kernels: less than a step takes, where the device waits between them."""
        return sum(kernel.seconds for kernel in self.kernels)


def kernel_times(clock: Clock, arm: Arm) -> KernelTimes:
    """The kernels of one step of a prepared arm by name."""
    clock.synchronize()
    with profile(activities=_activities(clock)) as profiler:
        arm.step(0)
        clock.synchronize()
    found: dict[str, tuple[int, float]] = {}
    for event in profiler.events() or ():
        on_device = event.device_type == DeviceType.CUDA
        if on_device != clock.events or event.name.startswith(("ProfilerStep", "[memory]")):
            continue
        taken = event.time_range.elapsed_us() if on_device else event.self_cpu_time_total
        count, seconds = found.get(event.name, (0, 0.0))
        found[event.name] = count + 1, seconds + float(taken) / 1e6
    by_name = (KernelTime(name, count, seconds) for name, (count, seconds) in found.items())
    return KernelTimes(tuple(sorted(by_name, key=lambda kernel: (-kernel.seconds, kernel.name))))


def launches(engine: Engine, inputs: StepInputs, arm: Arm) -> dict[str, int] | None:
    """Launches by captured range or region, copies and fills among them; None for an arm that has no such parts.

    Parts are run one after the other, each waited for; what began on the device while a part ran is of that part.
    """
    parts = _parts(engine, inputs, arm)
    if parts is None:
        return None
    clock = Clock(engine.device.place)
    clock.synchronize()
    with profile(activities=_activities(clock)) as profiler:
        for name, call in parts:
            with record_function(_MARK + name):
                call()
                clock.synchronize()
    spans: dict[str, tuple[float, float]] = {}
    starts: list[float] = []
    for event in profiler.events() or ():
        if event.device_type == DeviceType.CUDA:
            if not event.name.startswith(_MARK):  # the device's line shows the marks as well
                starts.append(event.time_range.start)
        elif event.name.startswith(_MARK):
            spans[event.name.removeprefix(_MARK)] = (event.time_range.start, event.time_range.end)
    return {name: sum(begin <= start < end for start in starts) for name, (begin, end) in spans.items()}


def _parts(engine: Engine, inputs: StepInputs, arm: Arm) -> Sequence[tuple[str, Callable[[], object]]] | None:
    if isinstance(arm, CapturedArm):
        steps = arm.steps
        assert steps is not None, "launches are counted of a prepared arm"
        arm.step(0)  # fills the inputs
        regions, reach = arm.executor.regions, steps.context_of(inputs.context)
        parts: list[tuple[str, Callable[[], object]]] = []
        for part in steps.ranges:
            key = GraphKey(inputs.batch, reach, part.start, part.stop - 1)
            ends = dict.fromkeys((regions[part.start].id, regions[part.stop - 1].id))
            parts.append((" to ".join(ends), partial(steps.devices[0].replay, key)))
        return parts
    if not isinstance(arm, EagerArm):
        return None
    executor, step = arm.executor, inputs.step(0)
    values = {"ids": inputs.ids[0], **engine.pools.environment()}
    calls = Calls(executor.kernels, executor.weights)
    return [
        (region.id, partial(executor.run_regions, range(index, index + 1), values, step, calls))
        for index, region in enumerate(executor.regions)
    ]


def _activities(clock: Clock) -> list[ProfilerActivity]:
    return [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if clock.events else [])]
