"""The front page tells the truth: its commands run, in order, in one folder, and print what it shows.

Only the block that sets up an environment is not run here: the tests run in what it makes, and installing again would
need the network for nothing. `.ci/run` goes through the same script.
"""

from pathlib import Path

import pytest

from .documents import BLOCK, ROOT, follow

README = (ROOT / "README.md").read_text()
BLOCKS = [match.groupdict() for match in BLOCK.finditer(README)]


def test_every_command_runs_and_prints_what_is_shown(tmp_path: Path):
    assert follow(README, tmp_path) == README, "python tests/documents.py README.md writes it anew"
    assert sum(block["language"] == "bash" for block in BLOCKS) > 4


def test_only_the_set_up_is_not_run():
    skipped = [block["body"] for block in BLOCKS if (block["remark"] or "").startswith("not run")]
    assert len(skipped) == 1
    assert "./examples/quickstart.sh" in skipped[0]
    assert "./tests/run.sh" in skipped[0]


def test_the_picture_is_fresh(capsys: pytest.CaptureFixture[str]):
    from dsv41c.compiler.cli import main

    assert main(["graph", "toy", "--format", "mermaid"]) == 0
    (shown,) = [block["body"] for block in BLOCKS if block["language"] == "mermaid"]
    assert shown == capsys.readouterr().out


def test_ci_runs_what_the_readme_says():
    assert "tests/run.sh" in (ROOT / ".ci" / "run").read_text()
