"""Plans in several processes over gloo: the numbers of one stage, failures told to all, and no hang."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import random_plans
import scenes
import torch
from golden_tiny import TINY
from members import CUTS, played, started
from safetensors.torch import load_file
from splits import split
from test_stages import expected, within  # noqa: F401  (a fixture)

from dsv41c.compiler.cli import main
from dsv41c.runtime.manifest import Manifest
from dsv41c.runtime.plan import Plan

from ...strategies import specs  # noqa: TID252 (tests are no installed package)


@pytest.mark.parametrize("size", [2, 4])
def test_processes_give_the_numbers_of_one_stage(size: int, tmp_path: Path, expected: list[torch.Tensor]) -> None:  # noqa: F811
    random_plans.write(random_plans.drawn(specs, 2, least=size + 1), size, tmp_path)
    shutil.copytree(split([3, 7, 10], [0, 1, 0]).folder, tmp_path / "commands.plan")
    stories = scenes.random_stories(tmp_path)
    every = played(size, "numbers", tmp_path)
    for member in every:
        for (ends, devices), (logits, traffic) in zip(CUTS[size], member["stories"], strict=True):
            within(logits, expected)
            within_what_is_said(traffic, split(ends, devices).manifest)
        assert all(map(random_plans.same, member["random"], stories))
    if size == 2:
        alone = scenes.goldens()
        assert all(random_plans.same(member["goldens"], alone) for member in every)
        expect_steps_ahead(every)
        expect_commands(every, tmp_path)


def within_what_is_said(traffic: dict[int, tuple[int, int]], manifest: Manifest) -> None:
    """What crossed is no more than the plan says."""
    for stage, (tokens, count) in traffic.items():
        moves = [move for move in manifest.transfers if move.to_stage == stage]
        said = sum(move.bytes_per_token for move in moves)
        rest = sum(move.bytes_per_token for move in moves if move.how == "mirror")
        assert 0 < count <= said * tokens + rest * 40, stage


def expect_steps_ahead(every: list[Any]) -> None:
    """It goes on while the receiver is late: what it sends outlives that; views of what it overwrites do not."""
    alone, _ = scenes.hurried()
    for member in every:
        assert random_plans.same(member["late"][0], alone)
        assert member["late"][1] == 0, "what has arrived is not kept"
        assert not random_plans.same(member["views"][0], alone)


def expect_commands(every: list[Any], folder: Path) -> None:
    """The first process says what one process says, with the seed that it drew; the other has no result."""
    for number, command in enumerate(scenes.COMMANDS):
        (code, out, err), (other, nothing, _) = (member["commands"][number] for member in every)
        assert code == other and nothing == ""
        if {"--compare", "--states-out"} & set(command):
            assert code == 2 and out == "" and "run the plan in one process for them" in err
            continue
        if "--logits-out" in command:
            written = load_file(folder / "logits.safetensors")["logits"]
        drawn = (
            () if "--seed" in command or "--temperature" not in command else ("--seed", str(json.loads(out)["seed"]))
        )
        assert scenes.said(folder, (*command, *drawn))[:2] == (0, out) and code == 0
        if "--logits-out" in command:
            assert torch.equal(load_file(folder / "logits.safetensors")["logits"], written)


@pytest.mark.parametrize("rank", [0, 2])
def test_another_number_of_processes_than_devices(
    rank: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every one ends, before it waits for another."""
    monkeypatch.setenv("WORLD_SIZE", "3")
    monkeypatch.setenv("RANK", str(rank))
    command = ["run", str(split([6, 10]).folder), "--checkpoint", str(TINY), "--ids", "1,2,3", "-n", "3"]
    assert main(command) == 2
    said = capsys.readouterr()
    assert said.out == "" and "error[DSV890]: 3 processes were started for plan `tiny`, which takes 2" in said.err
    assert "torchrun --nproc-per-node 2" in said.err


def launched(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """A command in two processes that `torchrun` starts."""
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "dsv41c")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *launcher, *command], env=environment, capture_output=True, text=True, timeout=200
    )


def test_torchrun_prints_what_one_process_prints(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["run", str(split([3, 7, 10], [0, 1, 0]).folder), "--checkpoint", str(TINY)]
    command += ["--prompt", "the quick brown fox", "-n", "8"]
    done = launched(command)
    assert done.returncode == 0, done.stderr
    assert main(command) == 0
    assert done.stdout == capsys.readouterr().out != ""


def test_a_benchmark_of_processes_against_one_device() -> None:
    measured = ["--steps", "2", "--rounds", "1", "--cell", "batch=1,context=20", "--prefill", "32:every", "--json"]
    done = launched(["bench", str(split([7, 10]).folder), "--against", str(split([10]).folder), *measured])
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["processes"] == 2 and found["against"]["stages"][0]["device"] == "cpu:0"
    (arms,) = (cell["arms"] for cell in found["cells"])
    ratio = arms["one"]["ms_per_step"]["median"] / arms["against"]["ms_per_step"]["median"]
    assert arms["one"]["time_ratio"]["median"] == pytest.approx(ratio)
    assert arms["one"]["bubble"]["median"] >= 0 and list(found["prefill"][0]["against"]) == ["every"]


def test_a_failure_breaks_its_sessions_everywhere_and_no_others(tmp_path: Path) -> None:
    (said, broken, same), (own, own_broken, own_same) = played(2, "failures", tmp_path)
    assert broken == own_broken == (True, True, False) and same and own_same
    assert "no room for this" in own
    assert (
        "stage 1 of process 1 (stages 1, 2, 4 on cpu:1)" in said and "layers.2" in said and "no room for this" in said
    )


def test_processes_that_disagree_are_told(tmp_path: Path) -> None:
    first, second = played(2, "strangers", tmp_path)
    assert ("DSV893" in second and "other sessions" in second and "DSV891" in first) or "DSV893" in first


def test_steps_of_several_sessions_overlap(tmp_path: Path) -> None:
    assert played(2, "pipelined", tmp_path) == [[True] * 4] * 2


def test_a_process_that_is_killed_ends_the_run_everywhere() -> None:
    compiled = split([2, 6, 10])
    members = started(3, [*command(compiled), "-n", "70"])
    said = killed(members, 1)
    for rank in (0, 2):
        assert members[rank].returncode == 2, said[rank]
        assert "DSV892" in said[rank] and "process 1 (stage 1 on cpu:1) has ended" in said[rank]
        assert "process 1 (stage 1 on cpu:1) cannot go on" not in said[rank] and "Traceback" not in said[rank]


def test_a_shard_that_is_killed_ends_the_run(tmp_path: Path) -> None:
    assert main(["synth", "toy", "-o", str(tmp_path / "toy")]) == 0
    sets = ["--set", "placement.tensor_parallel=2"]
    assert main(["compile", "toy", "-o", str(tmp_path / "plan"), *sets]) == 0
    run = [
        "-m",
        "dsv41c",
        "run",
        str(tmp_path / "plan"),
        "--checkpoint",
        str(tmp_path / "toy"),
        "--ids",
        "1",
        "-n",
        "300",
    ]
    members = started(2, run)
    said = killed(members, 1)
    assert members[0].returncode == 2 and "DSV892" in said[0] and "Traceback" not in said[0], said[0]


FAILING = """
import atexit, sys, torch
from dsv41c.compiler.cli import app, main
app.run = lambda arguments: (print("said"), 2)[1]
atexit.register(print, "late")
sys.exit(main())
"""


@pytest.mark.parametrize(("several", "out"), [(True, "said\n"), (False, "said\nlate\n")])
def test_one_of_several_that_has_failed_waits_for_no_thread_of_torch(several: bool, out: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "WORLD_SIZE"}
    environment |= {"WORLD_SIZE": "2"} if several else {}
    done = subprocess.run([sys.executable, "-c", FAILING], env=environment, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout) == (2, out), done.stderr


def test_a_process_that_never_comes_to_its_work_ends_the_run() -> None:
    """One finds no checkpoint: it says so, and the other does not wait for it."""
    compiled, missing = split([6, 10]), "nowhere"
    members = started(2, [*command(compiled), "-n", "5"])
    other = started(
        1, [*command(compiled, missing), "-n", "5"], WORLD_SIZE="2", RANK="1", MASTER_PORT=port_of(members[0])
    )
    members[1].kill()
    (said, lost) = (member.communicate(timeout=100) for member in (members[0], other[0]))
    assert other[0].returncode == 2 and missing in lost[1], lost[1]
    assert members[0].returncode == 2 and "DSV892" in said[1], said[1]


def test_the_first_process_speaks_for_all() -> None:
    """Another prompt and another number of tokens in the second process are not what runs."""
    compiled = split([6, 10])
    first = started(2, [*command(compiled), "-n", "3"])
    other = started(
        1, [*command(compiled, ids="4,5"), "-n", "9"], WORLD_SIZE="2", RANK="1", MASTER_PORT=port_of(first[0])
    )
    first[1].kill()
    said, _ = first[0].communicate(timeout=100)
    other[0].communicate(timeout=100)
    assert first[0].returncode == other[0].returncode == 0 and len(said.strip().split(",")) == 3


def command(compiled: Plan, checkpoint: str = str(TINY), ids: str = "1,2,3") -> list[str]:
    return ["-m", "dsv41c", "run", str(compiled.folder), "--checkpoint", checkpoint, "--ids", ids]


def killed(members: list[subprocess.Popen[str]], rank: int) -> list[str]:
    """What all said once one was killed, when it was at work; within seconds."""
    time.sleep(1.0)
    while members[0].poll() is None and not _in_step(members[rank].pid):
        time.sleep(0.1)
    members[rank].kill()
    began = time.monotonic()
    said = [member.communicate(timeout=60)[1] for member in members]
    assert time.monotonic() - began < 30
    return said


def port_of(member: subprocess.Popen[str]) -> str:
    """The port over which a process meets the others; its variables are there once its program has begun."""
    while member.poll() is None:
        for item in Path(f"/proc/{member.pid}/environ").read_bytes().split(b"\0"):
            if item.startswith(b"MASTER_PORT="):
                return item.removeprefix(b"MASTER_PORT=").decode()
        time.sleep(0.01)
    raise AssertionError(member.communicate())


def _in_step(process: int) -> bool:
    """Whether a process has threads of gloo, which come with its group."""
    return len(list(Path(f"/proc/{process}/task").iterdir())) > 4
