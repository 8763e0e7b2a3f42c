"""The arms run the same step: graphs (stood in for by calls), eager, and plain torch on weights of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from golden_tiny import TINY, plan

from dsv41c.kernels.registry import kernels_for
from dsv41c.runtime.bench.arms import ARMS, CapturedArm, EagerArm, StepInputs, apart, bench_plan, make_arms, state_kept
from dsv41c.runtime.bench.cell import cell_positions, measure_cell, step_inputs
from dsv41c.runtime.bench.kernel_times import kernel_times
from dsv41c.runtime.bench.measure import Clock
from dsv41c.runtime.bench.options import BenchOptions, Cell
from dsv41c.runtime.bench.random_state import fill_slot
from dsv41c.runtime.bench.random_weights import random_weights
from dsv41c.runtime.bench.torch_arm import oracle
from dsv41c.runtime.captured import StagedTable
from dsv41c.runtime.device.cpu import CpuDevice
from dsv41c.runtime.engine import Engine
from dsv41c.runtime.prefetch import Prefetch
from dsv41c.runtime.weights.table import StoredTable

PLAN = bench_plan(plan())
WEIGHTS = random_weights(PLAN.manifest, torch.device("cpu"))


def engine(checkpoint: Path | None = None) -> Engine:
    """With two sessions; random weights, of which tables are in memory, or those of a checkpoint."""
    made = Engine(PLAN, "", weights=WEIGHTS) if checkpoint is None else Engine(PLAN, checkpoint)
    for _ in range(2):
        fill_slot(made.pools, PLAN.manifest, made.open().slot, torch.Generator().manual_seed(3))
    return made


def captured(running: Engine, capture: str) -> CapturedArm:
    return CapturedArm(PLAN, running, kernels_for("cpu", "static"), capture, {0: CpuDevice()})


def inputs(running: Engine, steps: int = 3) -> StepInputs:
    return step_inputs(running, Cell(2, 41), [0, 1], steps, seed=5)


@pytest.mark.parametrize("capture", ["layer", "all"])
def test_captured_arms_give_what_the_reference_gives(capture: str):
    running = engine()
    given, arm = inputs(running), captured(running, capture)
    arm.prepare(given)
    assert arm.graphs == {"layer": 10, "all": 1}[capture]
    assert arm.capture_seconds is not None and arm.capture_seconds > 0
    for index in (0, 1, 3):  # the fourth is the first again
        with state_kept(running):
            want = oracle(running).run(given.step(index), {"ids": given.ids[index % 3]})["logits"]
        assert apart(arm.step(index), want) < 1e-5
    arm.release()


def test_rows_of_stored_tables_are_read_ahead_as_in_steps_of_an_engine(monkeypatch: pytest.MonkeyPatch):
    """Each step begins when the last one is over, asks no device for ids, and gives what the reference gives."""
    running = engine(TINY)
    arms = [make_arms(PLAN, running, ("eager",))["eager"], captured(running, "all")]
    seen: list[str] = []
    begin, reads = Prefetch.begin, StoredTable.rows
    for context in (41, 44):  # the second cell begins where the first one ends, with another history
        given = step_inputs(running, Cell(2, context), [0, 1], 3, seed=5)
        fill_slot(running.pools, PLAN.manifest, 0, torch.Generator().manual_seed(context))
        for arm in arms:
            assert arm is not None
            arm.prepare(given)
        with monkeypatch.context() as patch:
            patch.setattr(CpuDevice, "synchronize", lambda self: seen.append("wait"))
            patch.setattr(Prefetch, "begin", lambda *given: seen.append("begin") or begin(*given))
            patch.setattr(StoredTable, "rows", lambda *given: seen.append("read") or reads(*given))
            patch.setattr(StagedTable, "fetch", None)
            for arm, index in ((arms[0], 3), (arms[1], 0), (arms[1], 1), (arms[1], 2)):
                assert arm is not None
                with state_kept(running):
                    want = oracle(running).run(given.step(index), {"ids": given.ids[index % 3]})["logits"]
                seen.clear()
                assert apart(arm.step(index), want) < 1e-5, (context, index)
                assert seen == ["wait", "begin", "read", "read"]


def test_arms_that_a_device_cannot_have_are_none():
    running = engine()
    arms = make_arms(PLAN, running, tuple(ARMS))
    assert list(arms) == list(ARMS)
    assert arms["layer"] is None and arms["all"] is None
    assert list(make_arms(PLAN, running, ("torch", "eager"))) == ["eager", "torch"]


def test_plain_torch_runs_and_is_not_the_plan():
    running = engine()
    given, arm = inputs(running), make_arms(PLAN, running, ("torch",))["torch"]
    assert arm is not None
    arm.prepare(given)
    logits = arm.step(0)
    assert logits.shape == (2, 1, 512) and logits.isfinite().all()


def test_a_cell_is_measured():
    running = engine()
    arms = {**make_arms(PLAN, running, ("eager", "torch")), "layer": captured(running, "layer"), "all": None}
    options = BenchOptions((Cell(2, 41),), steps=2, rounds=2)
    done = measure_cell(running, arms, Cell(2, 41), [0, 1], options, Clock(torch.device("cpu")))
    assert done.arms["all"] is None and done.launches is None and done.kernels is None
    for name in ("eager", "torch", "layer"):
        result = done.arms[name]
        assert result is not None and len(result.seconds) == 2 and min(result.seconds) > 0
        assert result.apart is None if name == "torch" else result.apart is not None and result.apart < 1e-5
    assert set(done.ratios) == {"torch/eager", "layer/eager", "layer/torch"}
    assert set(done.distinct) == set(range(10)) and all(2 <= count <= 4 for count in done.distinct.values())
    assert done.moved.whole().experts > 0


def test_kernels_by_name_are_sorted_by_time():
    class Products(EagerArm):
        def step(self, index: int) -> torch.Tensor:
            left = torch.ones(64, 64)
            return (left @ left @ left).exp()

    found = kernel_times(Clock(torch.device("cpu")), Products(None)).kernels  # type: ignore[arg-type]
    assert {kernel.name: kernel.count for kernel in found}["aten::mm"] == 2
    assert [kernel.seconds for kernel in found] == sorted((kernel.seconds for kernel in found), reverse=True)


def test_steps_end_at_the_context():
    assert cell_positions(100, 4) == [96, 97, 98, 99]
    assert cell_positions(2, 5) == [0, 1, 0, 1, 0]
    given = inputs(engine(), steps=3)
    assert given.positions.tolist() == [[38, 38], [39, 39], [40, 40]]
    assert given.ids.shape == (3, 2, 1) and given.batch == 2
    assert given.step(4).positions.tolist() == [39, 39]


def test_what_a_step_cannot_do_twice_is_undone():
    running = engine()
    given = inputs(running)
    before = {name: pool.clone() for name, pool in running.pools.tensors.items()}
    with state_kept(running):
        oracle(running).run(given.step(1), {"ids": given.ids[1]})
    changed = {name for name, pool in running.pools.tensors.items() if not torch.equal(pool, before[name])}
    assert {running.pools.kinds[name] for name in changed} == {"window_kv", "compress_kv", "index_k"}
