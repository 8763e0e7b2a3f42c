"""What the guide on checkpoints says of files that change while they are in use."""

import faulthandler
import os
import shutil
import signal
import warnings

import pytest
import torch
from golden_tiny import ORACLE, TINY, plan

from dsv41c.runtime.weights.bind import bind

EXPERTS = "layers.0.experts_w1"


@pytest.fixture
def bound(tmp_path):
    """Weights that are mapped from files of their own, and these."""
    shutil.copytree(TINY, tmp_path / "tiny")
    return bind(plan(ORACLE).manifest, tmp_path / "tiny"), sorted((tmp_path / "tiny").glob("*.safetensors"))


def _removed(file):
    file.unlink()


def _renamed_over(file):
    fresh = file.with_name("fresh")
    fresh.write_bytes(b"short")
    os.replace(fresh, file)


@pytest.mark.parametrize("change", [_removed, _renamed_over])
def test_what_replaces_or_removes_a_file_changes_nothing(change, bound):
    weights, files = bound
    before = weights[EXPERTS][3].codes.clone()
    for file in files:
        change(file)
    assert torch.equal(weights[EXPERTS][3].codes, before) and before.any()


def test_a_file_that_is_cut_ends_the_process(bound):
    weights, files = bound
    codes = weights[EXPERTS][3].codes
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of forks beside threads: the child runs nothing of theirs
        child = os.fork()
    if child == 0:
        faulthandler.disable()
        for file in files:
            os.truncate(file, 0)
        codes[0, 0].item()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGBUS
