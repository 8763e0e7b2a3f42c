"""Every example runs."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
ENVIRONMENT = {
    **os.environ,
    "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    "OMP_NUM_THREADS": "1",
}


def run(command: list[str], place: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        command, cwd=place, env={**ENVIRONMENT, **environment}, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.py")), ids=lambda file: file.name)
def test_python(file: Path, tmp_path: Path):
    assert run([sys.executable, str(file)], tmp_path).stdout.strip()


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.md")), ids=lambda file: file.name)
def test_markdown(file: Path, tmp_path: Path):
    """YAML blocks become the files that their first line names; bash blocks run in order."""
    for language, body in re.findall(r"^```(\w+)\n(.*?)^```$", file.read_text(), re.M | re.S):
        if language == "yaml":
            name = re.match(r"# (\S+)\n", body)
            assert name is not None
            (tmp_path / name[1]).write_text(body)
        else:
            run(["bash", "-euo", "pipefail", "-c", body], tmp_path)


def test_quickstart(tmp_path: Path):
    """The script itself, in the environment that the tests run in, which has everything already."""
    venv = Path(sys.prefix)
    done = run([str(EXAMPLES / "quickstart.sh")], tmp_path, VENV=str(venv), OUT=str(tmp_path / "out"))
    assert done.stdout.strip()
    assert "[4/4]" in done.stderr
    assert "what to look at next" in done.stderr


def test_every_kind_of_example_is_run():
    known = {".py", ".md", ".sh"}
    shown = (EXAMPLES.parent / "README.md").read_text()
    files = [file for file in EXAMPLES.iterdir() if file.is_file()]
    pictures = {file for file in files if file.suffix == ".png" and f"(examples/{file.name})" in shown}
    assert {file.suffix for file in files if file not in pictures} <= known
