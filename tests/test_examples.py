"""Every example runs, and every guide tells the truth."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from dsv41c.codes import TABLE
from dsv41c.runtime import manifest
from dsv41c.runtime.device.protocol import Device

from .documents import DOCUMENTS, ROOT, follow

EXAMPLES = ROOT / "examples"
GUIDES = sorted(EXAMPLES.glob("*.md"))
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


@pytest.mark.parametrize("file", GUIDES, ids=lambda file: file.name)
def test_a_guide_runs_and_shows_what_comes_out(file: Path, tmp_path: Path):
    text = file.read_text()
    assert text == follow(text, tmp_path), f"python tests/documents.py examples/{file.name} writes it anew"


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
    assert all(f"(examples/{guide.name})" in shown for guide in GUIDES)


# --- what documents name ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", DOCUMENTS, ids=lambda file: file.name)
def test_what_a_document_names_exists(file: Path):
    """Links, paths of the repository, `NAME` in `file.py`, and codes."""
    text = file.read_text()
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        assert (file.parent / target).exists(), target
    for name in re.findall(r"`((?:compiler|examples|kernels|runtime|specs|templates|tests)/[\w./]*)`", text):
        assert (ROOT / name).exists(), name
    for names, path in re.findall(r"((?:`\w+`(?:, | and ))*`\w+`) in `([\w/]+\.py)`", text):
        for name in re.findall(r"`(\w+)`", names):
            assert re.search(rf"\b{name}\b", (ROOT / path).read_text()), f"{name} in {path}"
    assert set(re.findall(r"DSV\d{3}", text)) <= set(TABLE)


def test_every_key_of_a_plan_is_documented():
    """`- `key`, `key`: what they say`, under the name of the part that has them."""
    text = (EXAMPLES / "08_plan_format.md").read_text()
    parts = dict(re.findall(r"^<!-- keys of (\w+) -->\n((?:- .*\n)+)", text, re.M))
    documented = {
        name: [key for line in body.splitlines() for key in re.findall(r"`(\w+)`", line.partition(":")[0])]
        for name, body in parts.items()
    }
    entries = [entry for entry in vars(manifest).values() if isinstance(entry, type)]
    fields = {
        entry.__name__: sorted(entry.model_fields)
        for entry in entries
        if issubclass(entry, manifest.Entry) and entry is not manifest.Entry
    }
    assert {name: sorted(keys) for name, keys in documented.items()} == fields


def test_the_device_of_the_guide_has_the_whole_protocol():
    text = (EXAMPLES / "10_adding_a_device_family.md").read_text()
    (body,) = re.findall(r"^```python\n(# my_device.py\n.*?)^```$", text, re.M | re.S)
    (device,) = (node for node in ast.parse(body).body if isinstance(node, ast.ClassDef))
    methods = {node.name for node in device.body if isinstance(node, ast.FunctionDef)} - {"__init__"}
    fields = {target.id for node in device.body if isinstance(node, ast.Assign) for target in node.targets}  # type: ignore[attr-defined]
    assert methods | fields == {name for name in vars(Device) if not name.startswith("_")}
