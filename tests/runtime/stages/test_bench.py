"""A benchmark of several stages on the CPU: stable keys, and what crosses is what the plan says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from splits import split

from dsv41c.diagnostics import UserFault
from dsv41c.runtime.bench import room, stages_report
from dsv41c.runtime.bench.options import BenchOptions, Cell, Prompt, not_comparable, not_measurable
from dsv41c.runtime.bench.room import too_large
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
    options = BenchOptions((Cell(1, 30),), stored_experts=4, prompts=(Prompt(40, ("every",)),), steps=2, rounds=1)
    found = json.loads(json.dumps(stages_report.data(run_stages_bench(split([7, 10]), options, against=split([10])))))
    assert [stage["layers"] for stage in found["against"]["stages"]] == [[0, 10]]
    (cell,) = found["cells"]
    assert list(cell["arms"]) == ["one", "filled", "against"] and "busy" not in cell["arms"]["against"]
    (prompt,) = found["prefill"]
    for measured, other, key in (
        (cell["arms"]["one"], cell["arms"]["against"], "ms_per_step"),
        (prompt["arms"]["every"], prompt["against"]["every"], "seconds"),
    ):
        assert measured["time_ratio"]["median"] == pytest.approx(measured[key]["median"] / other[key]["median"])
    table = stages_report.text(found)
    assert "  one device " in table and "  every, one " in table


def test_only_what_compares_is_compared() -> None:
    options = BenchOptions((Cell(1, 30),), steps=1, rounds=1)
    with pytest.raises(UserFault) as caught:
        run_stages_bench(split([7, 10]), options, against=split([5, 10]))
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.code == "DSV885" and "it takes 2 devices, not one" in diagnostic.message


def test_what_two_plans_have_to_share() -> None:
    """Their model, numerics, capture and storage of tables; chunks where prompts are read."""
    own, options = split([7, 10]).manifest, BenchOptions((Cell(1, 30),))
    alone = split([10]).manifest
    assert own.engram is not None and alone.engram is not None
    for part, update, said in (
        ("model", {"dim": 8}, "`dim` 8, not"),
        ("numerics", {"compute": "bf16"}, "its `numerics.compute` is bf16, not f32"),
        ("runtime", {"capture": "all"}, "its `runtime.capture` is all, not layer"),
        ("engram", {"storage": "disk"}, "its `engram.storage` is disk, not mapped"),
    ):
        other = alone.model_copy(update={part: getattr(alone, part).model_copy(update=update)})
        (diagnostic,) = not_comparable(own, other, options)
        assert diagnostic.code == "DSV885" and said in diagnostic.message
    other = alone.model_copy(update={"runtime": alone.runtime.model_copy(update={"prefill_chunk": 3})})
    assert not not_comparable(own, other, options)
    assert "is 3, not" in not_comparable(own, other, BenchOptions((Cell(1, 30),), prompts=(Prompt(9),)))[0].message
    too_long = BenchOptions((Cell(1, 1 << 20),))
    assert not_measurable(own, too_long) and not not_comparable(own, alone, too_long), "it is said once"


def test_each_device_has_its_own_room(monkeypatch: pytest.MonkeyPatch) -> None:
    own, alone, options = split([7, 10]).manifest, split([10]).manifest, BenchOptions((Cell(1, 30),))
    places = {0: "cuda:0", 1: "cuda:1"}
    monkeypatch.setattr(room, "_memory", lambda device: 0)
    needed = {found.message for found in too_large([(own, places)], options)}
    assert len(needed) == 2
    first, second, whole = (room._bytes(*part, None) for part in ((own, 0), (own, 1), (alone, 0)))
    assert max(first, second) < whole < first + second + first  # both have the pools that cross
    monkeypatch.setattr(room, "_memory", lambda device: max(first, second))
    assert not too_large([(own, places)], options)
    (found,) = too_large([(own, places), (alone, {0: "cuda:0"})], options)
    assert found.code == "DSV884" and "`cuda:0`" in found.message
    assert not too_large([(own, places)], BenchOptions((Cell(1, 30),), weights=Path("some")))
