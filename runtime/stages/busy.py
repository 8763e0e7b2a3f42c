"""How long each stage of this process was at work, waiting for others left out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from dsv41c.runtime.stages.layout import Stage


class Busy:
    """Adds up the seconds of stages: by events of their device, which nobody waits for, or by the wall on the host."""

    def __init__(self, places: Mapping[int, torch.device]) -> None:
        self._places = places
        self._seconds: dict[int, float] = {}
        self._events: list[tuple[int, Any, Any]] = []

    @contextmanager
    def at(self, stage: Stage) -> Iterator[None]:
        """The work of a stage, from when what it reads has arrived."""
        place = self._places[stage.place]
        if place.type != "cuda":
            began = time.perf_counter()
            yield
            self._add(stage.index, time.perf_counter() - began)
            return
        make: Callable[..., Any] = torch.cuda.Event  # which has no types
        first, last = (make(enable_timing=True) for _ in range(2))
        stream = torch.cuda.current_stream(place)
        first.record(stream)
        yield
        last.record(stream)
        self._events.append((stage.index, first, last))

    def take(self) -> dict[int, float]:
        """Seconds by stage since the last call; waits for the devices."""
        for stage, first, last in self._events:
            last.synchronize()
            self._add(stage, first.elapsed_time(last) / 1e3)
        taken, self._seconds, self._events = self._seconds, {}, []
        return taken

    def _add(self, stage: int, seconds: float) -> None:
        self._seconds[stage] = self._seconds.get(stage, 0.0) + seconds
