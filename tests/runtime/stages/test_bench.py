"""A benchmark of several stages on the CPU: stable keys, and what crosses is what the plan says."""

from __future__ import annotations

import json

import pytest
from splits import split

from dsv41c.diagnostics import UserFault
from dsv41c.runtime.bench import stages_report
from dsv41c.runtime.bench.options import BenchOptions, Cell, Prompt
from dsv41c.runtime.bench.stages import run_stages_bench

KEYS = "format label date machine plan against processes weights cells prefill skipped"


def test_keys_are_stable_and_numbers_hang_together() -> None:
    options = BenchOptions((Cell(2, 40),), stored_experts=4, prompts=(Prompt(70, ("every",)),), steps=2, rounds=1)
    said: list[str] = []
    found = json.loads(json.dumps(stages_report.data(run_stages_bench(split([7, 10]), options, say=said.append))))
    assert list(found) == KEYS.split() and found["format"] == "dsv41c.bench.stages/1.1" and found["processes"] == 1
    (cell,) = found["cells"]
    assert (cell["batch"], cell["context"], cell["in_flight"]) == (2, 40, 2)
    for arm in cell["arms"].values():
        busy, seconds = sum(arm["busy"].values()), arm["ms_per_step"]["median"] / 1e3
        assert arm["bubble"]["median"] == pytest.approx(1 - busy / 2 / seconds, abs=1e-6)
        assert arm["bubble"]["median"] >= 0.5  # one process on a CPU: one stage at a time
    (boundary,) = cell["boundaries"]
    assert 0.99 * boundary["said"] < boundary["bytes_per_token"] <= boundary["said"]  # a context has fewer candidates
    assert found["prefill"][0]["arms"]["every"]["seconds"]["median"] > 0
    assert said == ["measuring batch 2, context 40 ...", "measuring a prompt of 70 tokens ..."]
    table = stages_report.text(found)
    assert "2 in flight" in table and "the plan says" in table and "a prompt of 70 tokens" in table


def test_a_budget_ends_it() -> None:
    result = run_stages_bench(split([7, 10]), BenchOptions((Cell(1, 20),), stored_experts=2, steps=1, budget=0.0))
    assert result.skipped == ["batch 1, context 20"] and not result.cells


def test_another_plan_by_turns() -> None:
    options = BenchOptions((Cell(1, 30),), stored_experts=4, prompts=(Prompt(40, ("every",)),), steps=2, rounds=2)
    found = json.loads(json.dumps(stages_report.data(run_stages_bench(split([7, 10]), options, against=split([10])))))
    assert [stage["layers"] for stage in found["against"]["stages"]] == [[0, 10]]
    (cell,) = found["cells"]
    assert list(cell["arms"]) == ["one", "filled", "against"] and "busy" not in cell["arms"]["against"]
    (prompt,) = found["prefill"]
    for measured, other, key in (
        (cell["arms"]["one"], cell["arms"]["against"], "ms_per_step"),
        (prompt["arms"]["every"], prompt["against"]["every"], "seconds"),
    ):
        low, high = (measured[key]["median"] / other[key]["median"] * factor for factor in (0.3, 3))
        assert low < measured["time_ratio"]["median"] < high
    table = stages_report.text(found)
    assert "  one device " in table and "  every, one " in table


def test_only_what_compares_is_compared() -> None:
    options = BenchOptions((Cell(1, 30),), steps=1, rounds=1)
    with pytest.raises(UserFault) as caught:
        run_stages_bench(split([7, 10]), options, against=split([5, 10]))
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.code == "DSV885" and "it takes 2 devices, not one" in diagnostic.message
