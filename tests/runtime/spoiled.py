"""Kernels of which one is spoiled, and devices that fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from golden_tiny import engine
from torch import Tensor

from dsv41c.diagnostics import Diagnostic, UserFault
from dsv41c.kernels.fusion import FUSED
from dsv41c.kernels.reference.fused import compose
from dsv41c.kernels.registry import kernels_for
from dsv41c.runtime.device.cpu import CpuDevice
from dsv41c.runtime.device.protocol import GraphKey, Work
from dsv41c.runtime.engine import Engine


class Spoiled:
    """The plain kernels, but what `kind` gives goes through `change`, from its call number `since` on."""

    def __init__(self, kind: str, change: Callable[[Any], Any], *, since: int = 0, variant: str = "reference") -> None:
        self.kind, self.change, self.since = kind, change, since
        self.calls = 0
        self._kernels = kernels_for("cpu", variant)

    def __getattr__(self, kind: str) -> Callable[..., Any]:
        kernel = getattr(self._kernels, kind)
        if kind != self.kind:
            return kernel

        def spoiled(*args: Any, **named: Any) -> Any:
            self.calls += 1
            result = kernel(*args, **named)
            return self.change(result) if self.calls > self.since else result

        return spoiled


class Fused(Spoiled):
    """Spoiled kernels whose fused kinds are made of them, or fail as a whole."""

    def __getattr__(self, kind: str) -> Callable[..., Any]:
        if kind in FUSED and kind != self.kind:
            return compose(FUSED[kind], self)
        return super().__getattr__(kind)


def raising(error: Exception) -> Callable[[Any], Any]:
    """A change that raises."""

    def change(_: Any) -> Any:
        raise error

    return change


def narrower(result: Any) -> Any:
    """Without the last channel."""
    return result[..., :-1]


def put(value: float, *index: int) -> Callable[[Any], Any]:
    """A change that puts a number at a place of what a kernel gave, of the first of several tensors."""

    def change(result: Any) -> Any:
        first = (result[0] if isinstance(result, tuple) else result).clone()
        first[index] = value
        return (first, *result[1:]) if isinstance(result, tuple) else first

    return change


def compile_error(text: str) -> Exception:
    """What Triton raises, without Triton."""
    return type("CompilationError", (Exception,), {"__module__": "triton.compiler.errors"})(text)


class FailingDevice(CpuDevice):
    """A device with graphs that fails at one of them, in the middle of a capture or at its end, or at a replay."""

    captures = True

    def __init__(self, at: str, error: Exception) -> None:
        super().__init__()
        self.at, self.error = at, error
        self.armed = True

    def capture(self, key: GraphKey, work: Work) -> dict[str, Tensor]:
        """As on a GPU: what fails inside is followed by what the end of the capture says."""
        if self.at == "capture" and self.armed:
            try:
                return super().capture(key, work)
            finally:
                raise self.error
        return super().capture(key, work)

    def replay(self, key: GraphKey) -> None:
        """Fails at the first graph behind the one of layer 2."""
        if self.at == "replay" and self.armed and key.first > 2:
            raise self.error
        super().replay(key)


def on_device(device: FailingDevice, monkeypatch: Any, **options: Any) -> Engine:
    """An engine of the tiny plan whose steps are captured on a device."""
    monkeypatch.setattr("dsv41c.runtime.steps.device_for", lambda *_, **__: device)
    return engine("f32-act_none-kv_none", **options)


def device_error(text: str = "CUDA error: unspecified launch failure") -> Exception:
    """What torch raises for an error of a device; newer ones raise a kind of it."""
    return RuntimeError(text)


def told(work: Callable[[], object]) -> Diagnostic:
    """The one finding that work ends with."""
    with pytest.raises(UserFault) as fault:
        work()
    (finding,) = fault.value.diagnostics
    return finding


def facts(finding: Diagnostic) -> dict[str, str]:
    """The facts of a finding by name."""
    return dict(finding.facts)
