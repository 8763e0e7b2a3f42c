"""Clocks, rates of the machine, and rounds of arms by turns: how everything here is measured.

Seconds mean nothing on another machine or another day. So rates of the machine are measured in the same run, and arms
are compared within a round, in the order A B C C B A, which cancels a drift of clocks.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median, quantiles
from typing import Any, NamedTuple

import torch
from torch import Tensor

DRIFT = 0.03  # of copy bandwidth between the first and any later measurement; beyond, a run says that it drifted


class Spread(NamedTuple):
    """A median, and the distance between the quartiles."""

    median: float
    iqr: float

    @staticmethod
    def of(values: Sequence[float]) -> Spread:
        """That of some numbers."""
        if len(values) < 2:
            return Spread(float(values[0]), 0.0)
        low, _, high = quantiles(values, n=4, method="inclusive")
        return Spread(float(median(values)), float(high - low))

    def data(self) -> dict[str, float]:
        """For JSON."""
        return {"median": self.median, "iqr": self.iqr}


class Clock:
    """Times work on a device: between two events of its stream, or by the wall on the host."""

    def __init__(self, place: torch.device) -> None:
        self.place = place
        self.events = place.type == "cuda"

    def synchronize(self) -> None:
        """Wait for the device."""
        if self.events:
            torch.cuda.synchronize(self.place)

    def seconds(self, work: Callable[[], object]) -> float:
        """Seconds of work that was waited for neither before nor in between."""
        if not self.events:
            start = time.perf_counter()
            work()
            return time.perf_counter() - start
        make: Callable[..., Any] = torch.cuda.Event  # which has no types
        first, last = (make(enable_timing=True) for _ in range(2))
        first.record()
        work()
        last.record()
        last.synchronize()
        return float(first.elapsed_time(last)) / 1e3

    def wall(self, work: Callable[[], object]) -> float:
        """Seconds by the wall, from an idle device to an idle device."""
        self.synchronize()
        start = time.perf_counter()
        work()
        self.synchronize()
        return time.perf_counter() - start


@dataclass(slots=True)
class Bandwidth:
    """What the device's memory does: bytes a second of copies (read and written) and of reads, measured several times.

    `size` in bytes of each of two buffers, which are held as long as this is.
    """

    clock: Clock
    size: int
    repeat: int
    copies: list[float] = field(default_factory=list)
    reads: list[float] = field(default_factory=list)
    _buffers: tuple[Tensor, Tensor] | None = None

    def measure(self) -> None:
        """Measure both once more, each as the median of `repeat`."""
        if self._buffers is None:
            made = [torch.ones(self.size // 4, device=self.clock.place) for _ in range(2)]
            self._buffers = made[0], made[1]
        source, target = self._buffers
        copying = self._median(lambda: target.copy_(source))
        reading = self._median(lambda: source.sum())
        self.copies.append(2 * self.size / copying)
        self.reads.append(self.size / reading)

    def _median(self, work: Callable[[], object]) -> float:
        work()
        return median(self.clock.seconds(work) for _ in range(self.repeat))

    def release(self) -> None:
        """Let go of the buffers."""
        self._buffers = None

    @property
    def best(self) -> float:
        """The larger of the two medians: a fraction of less could pass 1."""
        return max(median(self.copies), median(self.reads))

    @property
    def drift(self) -> float:
        """How far any measurement of copies is from the first, as a share of it."""
        return max(abs(rate / self.copies[0] - 1) for rate in self.copies)

    def data(self) -> dict[str, object]:
        """For JSON."""
        return {
            "copy": median(self.copies),
            "read": median(self.reads),
            "best": self.best,
            "copies": self.copies,
            "reads": self.reads,
            "drift": self.drift,
            "steady": self.drift <= DRIFT,
        }


def matmul_rate(clock: Clock, size: int, dtype: torch.dtype, repeat: int) -> float:
    """Operations a second of a product of two square matrices in `dtype`, the median of `repeat`."""
    left, right = (torch.randn(size, size, device=clock.place).to(dtype) for _ in range(2))
    for _ in range(3):
        left @ right
    return 2.0 * size**3 / median(clock.seconds(lambda: left @ right) for _ in range(repeat))


def by_turns(works: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """What each work returns in each round, as the mean of its two turns: A B C C B A. Garbage waits till the end."""
    found: dict[str, list[float]] = {name: [] for name in works}
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        for _ in range(rounds):
            taken: dict[str, list[float]] = {name: [] for name in works}
            for name in (*works, *reversed(list(works))):
                taken[name].append(works[name]())
            for name, pair in taken.items():
                found[name].append(sum(pair) / 2)
    finally:
        if collecting:
            gc.enable()
    return found


def ratios(times: Mapping[str, Sequence[float]]) -> dict[str, Spread]:
    """Of every pair of arms, the later by the earlier, round by round: `torch/layer`."""
    names = list(times)
    return {
        f"{later}/{earlier}": Spread.of([b / a for a, b in zip(times[earlier], times[later], strict=True)])
        for index, earlier in enumerate(names)
        for later in names[index + 1 :]
    }
