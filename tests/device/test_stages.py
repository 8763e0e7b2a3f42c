"""Plans on two GPUs against the same on one: in one process, in a process for each stage, and split over both.

Models are small random ones, the toy, and one of the released widths in eight layers, on random weights. Stages give
the numbers of one GPU to the bit. Shards add up in another order: their logits are as near to those of one GPU as those
are to plain torch kernels, which add up in another order too.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from members import started
from stage_members import write

from ..strategies import specs  # noqa: TID252 (tests are no installed package)

GPUS = torch.cuda.device_count() if torch.cuda.is_available() and torch.version.cuda else 0
pytestmark = pytest.mark.skipif(GPUS < 2, reason=f"needs two NVIDIA GPUs, and there are {GPUS}")
HERE = Path(__file__).resolve().parent
MEMBERS = str(HERE / "stage_members.py")
FOLDERS = (HERE.parent / "runtime", HERE.parent / "runtime" / "stages", os.environ.get("PYTHONPATH", ""))
PATHS = {"PYTHONPATH": os.pathsep.join(map(str, FOLDERS))}
KINDS = {"one": 1, "both": 1, "processes": 2, "shards": 2}
MODELS = ("toy", "cut", "random0", "random1")
SHARDS_BOUND = {"toy": 0.05, "cut": 0.05}  # of the norm of all logits
SAME_SELECTIONS = 0.97  # of all groups that are selected, at least so many


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """What each process saw, by kind."""
    folder = tmp_path_factory.mktemp("stages")
    write(folder, specs)
    members = {
        kind: started(size, [MEMBERS, kind, str(folder)], **PATHS) if size > 1 else [alone(kind, folder)]
        for kind, size in KINDS.items()
    }
    said = [member.communicate(timeout=400)[1] for each in members.values() for member in each]
    assert not any(member.returncode for each in members.values() for member in each), "\n".join(said)
    return {
        kind: [torch.load(folder / f"{kind}.{rank}", weights_only=False) for rank in range(size)]
        for kind, size in KINDS.items()
    }


def alone(kind: str, folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, MEMBERS, kind, str(folder)]
    environment = {**os.environ, **PATHS}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("kind", ["both", "processes"])
def test_stages_give_the_numbers_of_one_gpu(kind: str, model: str, played: dict[str, list[Any]]) -> None:
    (want,) = (result[model] for result in played["one"])
    for result in (each[model] for each in played[kind]):
        assert len(result["logits"]) == len(want["logits"]) > 0
        for number, (ours, theirs) in enumerate(zip(result["logits"], want["logits"], strict=True)):
            assert torch.equal(ours, theirs), (number, (ours - theirs).abs().max())
    chosen = {name: value for each in played[kind] for name, value in each[model]["chosen"].items()}
    assert all(torch.equal(value, chosen[name]) for name, value in want["chosen"].items())


@pytest.mark.parametrize("model", SHARDS_BOUND)
def test_shards_are_near_one_gpu(model: str, played: dict[str, list[Any]]) -> None:
    first, second = (result[model] for result in played["shards"])
    (want,) = (result[model] for result in played["one"])
    assert all(map(torch.equal, first["logits"], second["logits"])), "all shards have the same"
    ours, theirs = (torch.cat([rows.flatten() for rows in each["logits"]]).double() for each in (first, want))
    apart = float((ours - theirs).norm() / theirs.norm())
    pairs = [(first["chosen"][name], value) for name, value in want["chosen"].items() if ".topk" in name]
    same = sum(int((mine == value).sum()) for mine, value in pairs) / sum(value.numel() for _, value in pairs)
    print(f"{model}: shards are {apart:.2e} apart from one GPU, {same:.4f} of selections are the same")
    assert apart <= SHARDS_BOUND[model]
    assert same >= SAME_SELECTIONS


def test_stopping_one_process_ends_the_other(tmp_path: Path) -> None:
    """In the middle of decode steps; the other says whom it misses."""
    write(tmp_path, specs)
    for name, waits in (("toy.both", "process 1"), ("toy.shards", "process 1")):
        command = ["-m", "dsv41c", "bench", str(tmp_path / name), "--steps", "100", "--rounds", "100000"]
        members = started(2, [*command, "--batch", "1", "--context", "64"])
        time.sleep(25)
        assert all(member.poll() is None for member in members), [member.communicate()[1] for member in members]
        members[1].send_signal(signal.SIGKILL)
        _, said = members[0].communicate(timeout=60)
        assert members[0].returncode == 2
        assert "DSV892" in said and waits in said
