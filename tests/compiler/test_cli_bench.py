"""`bench` on the command line: JSON or a table, and refusals with codes before anything is made."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]  # of conftest.py
QUICK = ("--steps", "1", "--rounds", "1", "--arms", "layer,eager", "--cell", "batch=2,context=9")


@pytest.fixture
def plan(run: Run) -> str:
    assert run("compile", "toy", "-o", "plan", "--target", "cpu").code == 0
    return "plan"


def test_json(run: Run, plan: str):
    ran = run("bench", plan, *QUICK, "--stored-experts", "4", "--prefill", "20:bounded", "--label", "a label", "--json")
    assert ran.code == 0, ran.err
    found = json.loads(ran.out)
    assert found["format"] == "dsv41c.bench/1.0" and found["label"] == "a label"
    (cell,) = found["cells"]
    assert (cell["batch"], cell["context"]) == (2, 9)
    assert cell["arms"]["layer"] is None and cell["arms"]["eager"]["floor_fraction"] > 0
    assert list(found["prefill"][0]["arms"]) == ["bounded"]
    assert "measuring batch 2, context 9" in ran.err and "tokens/s" in ran.err


def test_a_table(run: Run, plan: str):
    ran = run("bench", plan, "--steps", "1", "--rounds", "1", "--arms", "eager", "--batch", "1", "--context", "5")
    assert ran.code == 0, ran.err
    assert ran.out.startswith("toy on ") and "batch 1, context 5:" in ran.out and "  eager " in ran.out


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (("--batch", "5"), "DSV880"),
        (("--context", "513"), "DSV881"),
        (("--prefill", "600"), "DSV881"),
        (("--arms", "layer,eagr"), "DSV882"),
        (("--stored-experts", "1"), "DSV883"),
        (("--stored-experts", "9"), "DSV883"),
        (("--weights", "nosuch"), "DSV700"),
    ],
)
def test_what_cannot_be_measured_is_2_with_a_code(run: Run, plan: str, argv: tuple[str, ...], code: str):
    ran = run("bench", plan, *argv)
    assert ran.code == 2
    assert ran.out == "" and f"error[{code}]" in ran.err
    ran = run("bench", plan, *argv, "--json")
    assert ran.code == 2 and json.loads(ran.out)["diagnostics"][0]["code"] == code


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("--cell", "batch=1", "--batch", "2"), "`--cell` has a batch"),
        (("--weights", "here", "--stored-experts", "4"), "random weights"),
        (("--cell", "batch=1,batch=2"), "batch=B,context=N"),
        (("--cell", "rows=2"), "batch=B,context=N"),
        (("--cell", "batch=0"), "not a number of 1 or more"),
        (("--prefill", "20:head"), "N:tail"),
        (("--steps", "0"), "not a number of 1 or more"),
    ],
)
def test_wrong_usage(run: Run, tmp_path: Path, argv: tuple[str, ...], said: str):
    ran = run("bench", "plan", *argv)
    assert (ran.code, ran.out) == (2, "") and said in ran.err


@pytest.mark.parametrize("rank", ["0", "1"])
def test_of_several_processes_the_first_has_the_json(run: Run, plan: str, rank: str, monkeypatch: pytest.MonkeyPatch):
    for name, value in (("WORLD_SIZE", "2"), ("RANK", rank)):
        monkeypatch.setenv(name, value)
    ran = run("bench", plan, "--against", "nosuch", "--json")
    assert ran.code == 2 and bool(ran.out) == (rank == "0") and ("error[DSV117]" in ran.err) == (rank == "1")


def test_against_is_for_plans_on_several_devices(run: Run, plan: str):
    ran = run("bench", plan, "--against", plan)
    assert (ran.code, ran.out) == (2, "") and "`--against` is for plans on several devices" in ran.err
    ran = run("bench", plan, "--against", "nosuch")
    assert (ran.code, ran.out) == (2, "") and "error[DSV117]" in ran.err


def test_there_has_to_be_a_plan(run: Run):
    ran = run("bench", "nosuch")
    assert ran.code == 2 and "error[DSV117]" in ran.err


def test_a_plan_for_a_device_that_is_not_here_is_refused(run: Run):
    assert (
        run("compile", "toy", "-o", "gpu", "--target", "hpu8", "--set", "placement.layer_ends=[1,2,3,4,5,6,7,8]").code
        == 0
    )
    ran = run("bench", "gpu")
    assert ran.code == 2 and "error[DSV858]" in ran.err
