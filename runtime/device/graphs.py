"""CUDA and ROCm, which share torch's interface: work is captured as a device graph and replayed.

All graphs of a device share one memory pool, so what is captured first should be the largest.
"""

from __future__ import annotations

import gc
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dsv41c.runtime.device.findings import moved
from dsv41c.runtime.device.geometry import Geometry, geometries
from dsv41c.runtime.device.protocol import GraphKey, Work
from dsv41c.runtime.device.staging import Staging
from dsv41c.runtime.refusals import raise_if


@dataclass(frozen=True, slots=True)
class _Graph:
    graph: torch.cuda.CUDAGraph
    work: Work
    outputs: dict[str, Tensor]  # held, so that the pool does not give their memory to a later graph
    seen: dict[str, Geometry]


class GraphDevice:
    """One CUDA or ROCm device. `checks`: before each replay, look whether inputs and state are where they were."""

    captures = True

    def __init__(self, index: int, *, checks: bool = False) -> None:
        self.place = torch.device("cuda", index)
        self.checks = checks
        self._graphs: dict[GraphKey, _Graph] = {}
        self._pool: Any = None  # torch has no stable name for the type of a pool's handle
        self._stream: torch.cuda.Stream | None = None
        self._staging: Staging | None = None

    def warm_up(self, work: Work) -> None:
        """Run work once on a stream of its own, as capture asks for: libraries set themselves up at a first call."""
        with torch.cuda.device(self.place):
            stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                work.call(None)
            torch.cuda.current_stream().wait_stream(stream)
        self.synchronize()

    def capture(self, key: GraphKey, work: Work) -> dict[str, Tensor]:
        """Record work as a graph, and run that once: a capture computes nothing, and what follows reads outputs."""
        with torch.cuda.device(self.place):
            if self._pool is None:
                self._pool = torch.cuda.graph_pool_handle()
                self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch's own is one for all devices, and on the first
            graph = torch.cuda.CUDAGraph()
            seen = geometries(work.reads())
            collecting = gc.isenabled()
            gc.disable()  # to free a tensor of another graph during a capture breaks it
            try:
                with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
                    outputs = work.call(None)
            finally:
                if collecting:
                    gc.enable()
            self._graphs[key] = _Graph(graph, work, outputs, seen)
            graph.replay()
        return outputs

    def replay(self, key: GraphKey) -> None:
        """Run a graph. Raises `UserFault` (DSV873), with `checks`, where what it reads is somewhere else by now."""
        kept = self._graphs[key]
        if self.checks:
            raise_if(moved(kept.work, kept.seen, geometries(kept.work.reads())))
        with torch.cuda.device(self.place):
            kept.graph.replay()

    def release(self) -> None:
        """Drop every graph and the pool they share."""
        self.synchronize()
        self._graphs.clear()
        self._pool = None

    def copy(self, source: Tensor, target: Tensor) -> None:
        """Copy values into a tensor of the device, behind what is under way there; the host does not wait."""
        if source.device.type != "cpu":
            target.copy_(source)
            return
        if self._staging is None:
            self._staging = Staging()
        self._staging.copy(source, target)

    def synchronize(self) -> None:
        """Wait for the device."""
        torch.cuda.synchronize(self.place)
