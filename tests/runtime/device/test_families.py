"""Which device a plan gets, and what is said where it gets none."""

from __future__ import annotations

import planted
import pytest
import torch
from golden_tiny import ORACLE, TINY, plan, weights

from dsv41c.diagnostics import UserFault
from dsv41c.kernels.reference.encodings import Packed
from dsv41c.runtime.device.cpu import CpuDevice
from dsv41c.runtime.device.families import device_for, missing, not_runnable
from dsv41c.runtime.device.graphs import GraphDevice
from dsv41c.runtime.device.strict import StrictDevice
from dsv41c.runtime.device.tensors import on_device, tensors_of
from dsv41c.runtime.engine import Engine
from dsv41c.runtime.manifest import Manifest
from dsv41c.runtime.run import Prompt, RunOptions, run_plan


def manifest(family: str, device: str = "") -> Manifest:
    found = planted.for_family(plan(), family).manifest
    if not device:
        return found
    return found.model_copy(update={"target": found.target.model_copy(update={"devices": (device,)})})


def machine(monkeypatch: pytest.MonkeyPatch, *, build: str | None = "cuda", gpus: int = 0) -> None:
    for name in ("cuda", "hip"):
        monkeypatch.setattr(torch.version, name, "1.0" if name == build else None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)


@pytest.mark.parametrize(
    ("family", "device", "build", "gpus", "words"),
    [
        ("cuda", "cuda:0", None, 0, "not built for CUDA"),
        ("cuda", "cuda:0", "hip", 1, "not built for CUDA"),
        ("rocm", "rocm:0", "cuda", 1, "not built for ROCm"),
        ("cuda", "cuda:0", "cuda", 0, "sees no GPU"),
        ("rocm", "rocm:2", "hip", 2, "sees 2 GPUs, the plan is for number 2"),
        ("hpu", "hpu:0", "cuda", 1, "`habana_frameworks` is not installed"),
    ],
)
def test_what_is_missing_is_named(
    monkeypatch: pytest.MonkeyPatch, family: str, device: str, build: str | None, gpus: int, words: str
) -> None:
    machine(monkeypatch, build=build, gpus=gpus)
    (finding,) = not_runnable(manifest(family, device))
    assert finding.code == "DSV858" and words in finding.message and family in finding.message
    assert not not_runnable(manifest(family, device), strict=True)


def test_devices_go_by_family(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, gpus=2)
    assert missing(manifest("cpu")) is None and isinstance(device_for(manifest("cpu")), CpuDevice)
    assert missing(manifest("cuda", "cuda:1")) is None
    device = device_for(manifest("cuda", "cuda:1"), checks=True)
    assert isinstance(device, GraphDevice) and device.place == torch.device("cuda", 1) and device.checks
    strict = device_for(manifest("hpu"), strict=True)
    assert isinstance(strict, StrictDevice) and strict.rules.family == "hpu" and strict.place.type == "cpu"


def test_weights_move_as_they_are() -> None:
    packed = Packed(torch.zeros(2, 2, dtype=torch.uint8), torch.zeros(2, 1, dtype=torch.uint8), "fp4_32")
    table = object()
    given = {"dense": torch.ones(2), "one": packed, "experts": (packed, torch.ones(3)), "table": table}
    moved = on_device(given, torch.device("meta"))
    assert [tensor.device.type for tensor in tensors_of(moved.values())] == ["meta"] * 6
    assert moved["table"] is table and isinstance(moved["one"], Packed) and moved["one"].encoding == "fp4_32"
    assert on_device(given, torch.device("cpu"))["dense"] is given["dense"]


def test_a_strict_run_gives_the_same_tokens() -> None:
    compiled = plan(ORACLE, *planted.CHANGES)
    prompt = Prompt(ids=[3, 1, 4, 1, 5])
    options = RunOptions(n=3, strict=True)
    assert run_plan(planted.for_family(compiled, "hpu"), TINY, prompt, options).ids == (
        run_plan(compiled, TINY, prompt, RunOptions(n=3)).ids
    )
    with pytest.raises(UserFault, match="habana_frameworks"):
        Engine(planted.for_family(compiled, "hpu"), TINY, weights=weights())
