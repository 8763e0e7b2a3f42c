"""The memory that a manifest promises is, to the byte, what an engine holds."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from golden_tiny import ORACLE, TINY, plan

from dsv41c.compiler import compile_spec, load
from dsv41c.compiler.plan import write_plan
from dsv41c.runtime.device.tensors import on_device, tensors_of
from dsv41c.runtime.engine import Engine
from dsv41c.runtime.manifest import Manifest
from dsv41c.runtime.plan import Plan, load_plan
from dsv41c.runtime.synth import synth

NATIVE = (("activation_quant: fp8", "activation_quant: none"), ('["cpu:0"]', '["cuda:0"]'))


def held(engine: Engine) -> tuple[int, int]:
    """Bytes of the distinct tensors of weights and constants, and of the pools."""
    tensors = {tensor.data_ptr(): tensor for tensor in tensors_of(engine.weights.values())}
    return sum(tensor.nbytes for tensor in tensors.values()), sum(pool.nbytes for pool in engine.pools.tensors.values())


@pytest.mark.parametrize(
    ("mode", "changes"),
    [
        (ORACLE, ()),
        (ORACLE, (("max_sessions: 4", "max_sessions: 7"), ("kv_cache: none", "kv_cache: packed"))),
        ("bf16-act_fp8-kv_reference", ()),
        ("bf16-act_fp8-kv_reference", NATIVE),
    ],
)
def test_tiny(mode: str, changes: tuple[tuple[str, str], ...]) -> None:
    found = plan(mode, *changes)
    assert_exact(found, Engine(found, TINY, strict=True))


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_toy(target: str, tmp_path: Path) -> None:
    write_plan(compile_spec(load("toy", target=target)), tmp_path / "plan")
    found = load_plan(tmp_path / "plan")
    synth(found.manifest, {}, tmp_path / "checkpoint")
    engine = Engine(found, tmp_path / "checkpoint", strict=True)
    assert_exact(found, engine)
    moved = on_device(engine.weights, torch.device("meta"))  # experts in one piece take the same
    assert sum(t.nbytes for t in tensors_of(moved.values())) == found.manifest.memory[0].weights


def assert_exact(found: Plan, engine: Engine) -> None:
    (entry,) = found.manifest.memory
    assert (entry.weights, entry.state) == held(engine)
    assert (entry.device, entry.total) == (found.manifest.stages[0].device, entry.weights + entry.state)


def test_stages_add_up() -> None:
    """A model on eight devices holds what it holds on one, and copies of state and constants on top."""

    def compiled(target: str) -> Manifest:
        return compile_spec(load("deepseek-v4.1-flash", target=target)).manifest

    one, eight = compiled("cuda"), compiled("rocm8")
    assert [entry.device for entry in eight.memory] == [f"rocm:{n}" for n in range(8)]
    (whole,) = one.memory
    more = sum(entry.weights for entry in eight.memory) - whole.weights
    assert 0 < more < 8 << 20  # frequencies of rotation, hash constants and the token map of later engram layers
    assert sum(entry.state for entry in eight.memory) > whole.state
    mirrors = sum(
        value.bytes * (eight.runtime.max_sessions + 1)
        for value in eight.values
        if value.scope == "session" and value.storage == value.id and ".S" in value.id
    )
    assert sum(entry.state for entry in eight.memory) == whole.state + mirrors
    assert whole.weights < sum(weight.bytes for weight in one.weights)  # tables stay on the host
