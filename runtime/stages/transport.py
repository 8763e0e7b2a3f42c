"""How what crosses a boundary gets to the other side."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from dsv41c.runtime.stages.crossing import Crossing, Rows
from dsv41c.runtime.stages.layout import Stage
from dsv41c.runtime.state import Pools


@dataclass(slots=True)
class Traffic:
    """What crossed a boundary so far: steps, tokens of sessions, and bytes, fixed-size headers left out."""

    steps: int = 0
    tokens: int = 0
    bytes: int = 0

    def add(self, rows: Rows, count: int) -> None:
        """One more step."""
        self.steps += 1
        self.tokens += rows.tokens * len(rows.slots)
        self.bytes += count


class Transport(Protocol):
    """Carries one step after the other over every boundary, in order. `traffic` counts by the stage that receives."""

    @property
    def traffic(self) -> Mapping[int, Traffic]:
        """What crossed each boundary so far."""
        ...

    def run(self, stages: Iterable[Stage], rows: Rows | None, work: Callable[[Stage], None]) -> None:
        """Call `work` of each stage of this process in order, which arrives, computes and leaves."""
        ...

    def finish(self, logits: Tensor | None, rows: Rows, vocabulary: int) -> Ended:
        """How a step ends, for every process: after `run`, with the logits f32 [B, T, V] where the last stage is."""
        ...

    def leave(self, crossing: Crossing, values: Mapping[str, Tensor], pools: Pools, rows: Rows) -> None:
        """Send on what a stage left. Its values and pools may be overwritten by later work of the same device."""
        ...

    def arrive(self, crossing: Crossing, values: MutableMapping[str, Tensor], pools: Pools, rows: Rows) -> None:
        """Put what was sent where the next stage reads it: `Crossing.arrive`."""
        ...


class Ended:
    """How a step ends: `logits()` waits for it."""

    def __init__(self, wait: Callable[[], Tensor]) -> None:
        self._wait = wait

    def logits(self) -> Tensor:
        """f32 [n, T, V] on the host. Raises what ended the step, here or elsewhere."""
        return self._wait()


class LocalTransport:
    """Devices of this process. Between GPUs copies are peer copies, which torch orders by events on both sides.

    Such a copy runs on the source's stream: later work of the source waits for it, so what it reads may be overwritten
    by that; and it waits for what the target was given to do before, and the target for it.
    """

    def __init__(self, places: Mapping[int, torch.device]) -> None:
        self.places = places
        self.traffic: dict[int, Traffic] = {}
        self._under_way: dict[int, list[Tensor]] = {}

    def run(self, stages: Iterable[Stage], rows: Rows | None, work: Callable[[Stage], None]) -> None:
        """One after the other; on GPUs they are only asked for, and steps overlap."""
        for stage in stages:
            work(stage)

    def finish(self, logits: Tensor | None, rows: Rows, vocabulary: int) -> Ended:
        """A copy on the host, asked for now: graphs write the next step's logits to the same place."""
        assert logits is not None, "every stage is here"
        own = logits[: len(rows.slots)]
        if own.device.type == "cpu":
            kept = own.clone()
            return Ended(lambda: kept)
        host = torch.empty(own.shape, dtype=own.dtype, pin_memory=True)
        host.copy_(own, non_blocking=True)
        copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
        copied.record(torch.cuda.current_stream(own.device))

        def wait() -> Tensor:
            copied.synchronize()
            return host

        return Ended(wait)

    def leave(self, crossing: Crossing, values: Mapping[str, Tensor], pools: Pools, rows: Rows) -> None:
        """Copy to the target's device."""
        target = self.places[crossing.boundary.target]
        wired = crossing.leaving(values, pools, rows)
        self._under_way[crossing.boundary.to] = [part.to(target, non_blocking=True, copy=True) for part in wired]
        count = sum(part.numel() * part.element_size() for part in wired)
        self.traffic.setdefault(crossing.boundary.to, Traffic()).add(rows, count)

    def arrive(self, crossing: Crossing, values: MutableMapping[str, Tensor], pools: Pools, rows: Rows) -> None:
        """Take over the copies."""
        crossing.arrive(self._under_way.pop(crossing.boundary.to), values, pools, rows)
