"""The CPU: nothing is captured, a replay is the call itself."""

from __future__ import annotations

import torch
from torch import Tensor

from dsv41c.runtime.device.protocol import GraphKey, Work


class CpuDevice:
    """Calls through. Engines do not capture on it; kept work is for whoever wants outputs at fixed addresses."""

    place = torch.device("cpu")
    captures = False

    def __init__(self) -> None:
        self._kept: dict[GraphKey, tuple[Work, dict[str, Tensor]]] = {}

    def warm_up(self, work: Work) -> None:
        """Run work once."""
        work.call(None)

    def capture(self, key: GraphKey, work: Work) -> dict[str, Tensor]:
        """Run work and keep it with its outputs."""
        self._kept[key] = work, work.call(None)
        return self._kept[key][1]

    def replay(self, key: GraphKey) -> None:
        """Run it again, and leave its outputs where the first ones are."""
        work, outputs = self._kept[key]
        for value, tensor in work.call(None).items():
            self.copy(tensor, outputs[value])

    def release(self) -> None:
        """Drop everything kept."""
        self._kept.clear()

    def copy(self, source: Tensor, target: Tensor) -> None:
        """Copy values; a tensor onto itself is left alone."""
        if source is not target:
            target.copy_(source)

    def synchronize(self) -> None:
        """Nothing to wait for: calls return when they are done."""
