"""The front page tells the truth: its commands run, in order, in one folder, and print what it shows.

Only the block that sets up an environment is not run here: the tests run in what it makes, and installing again would
need the network for nothing. `.ci/run` goes through the same script.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
BLOCK = re.compile(r"(?:^<!-- (?P<remark>[^\n]*) -->\n)?^```(?P<language>\w+)\n(?P<body>.*?)^```$", re.M | re.S)
BLOCKS = [match.groupdict() for match in BLOCK.finditer(README)]


def environment() -> dict[str, str]:
    return {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
    }


def test_every_command_runs_and_prints_what_is_shown(tmp_path: Path):
    ran, output = 0, ""
    for block in BLOCKS:
        if block["language"] == "bash" and not (block["remark"] or "").startswith("not run"):
            command = ["bash", "-euo", "pipefail", "-c", block["body"]]
            done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=240)
            assert done.returncode == 0, f"{block['body']}\n{done.stdout}\n{done.stderr}"
            ran, output = ran + 1, done.stdout
        elif block["remark"] == "output":
            assert block["body"].rstrip() == output.rstrip()
    assert ran >= 4


def test_only_the_set_up_is_not_run():
    skipped = [
        block["body"]
        for block in BLOCKS
        if block["language"] == "bash" and (block["remark"] or "").startswith("not run")
    ]
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


def test_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / target).exists(), target


@pytest.mark.parametrize("name", re.findall(r"`([a-z]+(?:/[\w.]+)+/?)`", README))
def test_paths_it_names_exist(name: str):
    if not name.startswith(("toy.", "mine.", "examples/out")):
        assert (ROOT / name).exists()
