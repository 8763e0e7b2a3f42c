"""A whole benchmark on the CPU: stable keys, a table that says the same, and nothing begun after the budget."""

from __future__ import annotations

import json

import pytest
from golden_tiny import TINY, plan

from dsv41c.diagnostics import UserFault
from dsv41c.runtime.bench import report
from dsv41c.runtime.bench.options import BenchOptions, Cell, Prompt
from dsv41c.runtime.bench.run import run_bench

CELLS = (Cell(1, 20), Cell(3, 80))
KEYS = {
    "": "format label date machine plan weights memory bandwidth matmul cells prefill skipped notes",
    "machine": "device dsv41c python torch triton cuda hip",
    "plan": "name family layers spec_sha256 graph_sha256 numerics runtime kernels",
    "weights": "source seed stored_experts seconds",
    "memory": "predicted_bytes held_bytes peak_bytes",
    "bandwidth": "copy read best copies reads drift steady",
}
CELL = "batch context rounds bytes layers distinct_experts arms ratios launches kernels peak_bytes row_cache"
ARM = "ms_per_step tokens_per_second floor_fraction graphs capture_seconds steps apart"
BYTES = "total weights experts table_rows window selected index_keys scores tails written"


def test_keys_are_stable_and_numbers_hang_together():
    seen: list[str] = []
    options = BenchOptions(CELLS, stored_experts=4, prompts=(Prompt(70),), steps=2, rounds=1, label="a name")
    result = run_bench(plan(), options, say=seen.append, on_cell=lambda _, cell: seen.append(str(cell.cell.batch)))
    found = json.loads(json.dumps(report.data(result)))
    for part, keys in KEYS.items():
        assert list(found[part] if part else found) == keys.split(), part
    assert found["format"] == "dsv41c.bench/1.0" and found["label"] == "a name" and found["skipped"] == []
    assert found["machine"]["triton"] is None and found["plan"]["family"] == "cpu"
    assert found["memory"]["predicted_bytes"] > 0 and found["memory"]["peak_bytes"] is None
    for cell, asked in zip(found["cells"], CELLS, strict=True):
        assert list(cell) == CELL.split() and (cell["batch"], cell["context"]) == (asked.batch, asked.context)
        assert cell["arms"]["layer"] is None and cell["arms"]["all"] is None and cell["launches"] is None
        assert list(cell["bytes"]) == BYTES.split()
        assert sum(layer["total"] for layer in cell["layers"]) == pytest.approx(cell["bytes"]["total"])
        for name in ("eager", "torch"):
            arm = cell["arms"][name]
            assert list(arm) == ARM.split()
            seconds = arm["ms_per_step"]["median"] / 1e3
            assert arm["tokens_per_second"] == pytest.approx(asked.batch / seconds)
            floor = cell["bytes"]["total"] / found["bandwidth"]["best"]
            assert arm["floor_fraction"] == pytest.approx(floor / seconds)
        assert list(cell["ratios"]) == ["torch/eager"] and cell["row_cache"] is None
    assert found["cells"][0]["distinct_experts"] == 2 and 2 <= found["cells"][1]["distinct_experts"] <= 4
    (prompt,) = found["prefill"]
    assert prompt["tokens"] == 70 and list(prompt["arms"]) == ["tail", "every"] and found["matmul"] > 0
    assert prompt["arms"]["tail"]["flops"] < prompt["arms"]["every"]["flops"]
    assert len(found["bandwidth"]["copies"]) == 3
    assert seen[:3] == ["making the weights ...", "measuring batch 1, context 20 ...", "1"]
    table = report.text(found)
    assert "batch 3, context 80" in table and "a prompt of 70 tokens" in table and "torch/eager" in table


def test_a_checkpoint_can_be_measured_and_a_budget_ends_it():
    options = BenchOptions(
        CELLS, weights=TINY, arms=("eager",), prompts=(Prompt(5, ("tail",)),), steps=1, rounds=1, budget=0.0
    )
    found = report.data(run_bench(plan(), options))
    assert found["cells"] == [] and found["prefill"] == []
    assert found["skipped"] == ["batch 1, context 20", "batch 3, context 80", "a prompt of 5 tokens"]
    assert found["weights"]["source"] == "checkpoint"
    assert "not measured for lack of time: batch 1, context 20" in report.text(found)


def test_the_row_cache_of_a_checkpoint_is_counted():
    """Ids come round again in a cell, and a prompt is read again: later times find what the first one read."""
    options = BenchOptions(
        (Cell(2, 30),), weights=TINY, arms=("eager",), prompts=(Prompt(20, ("tail",)),), steps=2, rounds=2
    )
    found = json.loads(json.dumps(report.data(run_bench(plan(), options))))
    for part in (*found["cells"], *found["prefill"]):
        cache = part["row_cache"]
        assert list(cache) == ["hits", "misses", "hit_rate"] and cache["hits"] > 0
        assert cache["hit_rate"] == cache["hits"] / (cache["hits"] + cache["misses"])
    assert found["prefill"][0]["row_cache"]["hit_rate"] == 1.0  # a short reading came before, untimed
    assert "% of" in report.text(found) and "were in the cache" in report.text(found)


def test_what_there_is_no_room_for_is_refused_together():
    options = BenchOptions((Cell(9, 81),), stored_experts=9, arms=("layr", "x"), prompts=(Prompt(90),))
    with pytest.raises(UserFault) as fault:
        run_bench(plan(), options)
    assert [finding.code for finding in fault.value.diagnostics] == ["DSV880", "DSV881", "DSV882", "DSV882", "DSV883"]
    assert fault.value.diagnostics[2].help == "did you mean `layer`?"
