"""Plans in several processes over gloo: the numbers of one stage, failures told to all, and no hang."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch
from golden_tiny import TINY
from members import CUTS, played, started
from splits import split
from test_stages import expected, within  # noqa: F401  (a fixture)


@pytest.mark.parametrize("size", [2, 4])
def test_processes_give_the_numbers_of_one_stage(size: int, tmp_path: Path, expected: list[torch.Tensor]) -> None:  # noqa: F811
    every = played(size, "stories", tmp_path)
    for member in every:
        for (ends, devices), (logits, traffic) in zip(CUTS[size], member, strict=True):
            within(logits, expected)
            manifest = split(ends, devices).manifest
            for stage, (tokens, count) in traffic.items():
                moves = [move for move in manifest.transfers if move.to_stage == stage]
                said = sum(move.bytes_per_token for move in moves)
                rest = sum(move.bytes_per_token for move in moves if move.how == "mirror")
                assert 0 < count <= said * tokens + rest * 40, stage


def test_a_failure_breaks_its_sessions_everywhere_and_no_others(tmp_path: Path) -> None:
    (said, broken, same), (own, own_broken, own_same) = played(2, "failures", tmp_path)
    assert broken == own_broken == (True, True, False) and same and own_same
    assert "no room for this" in own
    assert "stage 1 of process 1 (stages 1, 3 on cpu:1)" in said and "layers.2" in said and "no room for this" in said


def test_processes_that_disagree_are_told(tmp_path: Path) -> None:
    first, second = played(2, "strangers", tmp_path)
    assert ("DSV893" in second and "other sessions" in second and "DSV891" in first) or "DSV893" in first


def test_steps_of_several_sessions_overlap(tmp_path: Path) -> None:
    assert played(2, "pipelined", tmp_path) == [[True] * 4] * 2


def test_a_process_that_is_killed_ends_the_run_everywhere() -> None:
    compiled = split([2, 6, 10])
    command = ["-m", "dsv41c", "run", str(compiled.folder), "--checkpoint", str(TINY), "--ids", "1,2,3", "-n", "70"]
    members = started(3, command)
    time.sleep(1.0)
    while members[0].poll() is None and not _in_step(members[1].pid):
        time.sleep(0.1)
    members[1].kill()
    killed = time.monotonic()
    said = [member.communicate(timeout=60)[1] for member in members]
    assert time.monotonic() - killed < 30
    for rank in (0, 2):
        assert members[rank].returncode == 2, said[rank]
        assert "DSV892" in said[rank] and "has gone" in said[rank]


def _in_step(process: int) -> bool:
    """Whether a process has threads of gloo, which come with its group."""
    return len(list(Path(f"/proc/{process}/task").iterdir())) > 4
