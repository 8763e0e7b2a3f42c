"""Import is free and help is instant: what each command may have imported by the time it is done."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from .tree import FOLDERS, ROOT

HEAVY = {"torch", "safetensors", "tokenizers", "numpy", "triton", "rich"}
DATA = {"pydantic", "networkx", "yaml", "jinja2"}
PROBE = """
import json, sys
from dsv41c.compiler.cli import main
code = main(sys.argv[2:])
sys.stdout.flush()
with open(sys.argv[1], "w") as file:
    json.dump([code, sorted({name.partition(".")[0] for name in sys.modules})], file)
"""


def loaded(tmp_path: Path, *argv: str) -> tuple[int, set[str]]:
    """Exit code and top-level modules of a command, run from the repository's root, where bare folders could be met."""
    report = tmp_path / "modules.json"
    subprocess.run(
        [sys.executable, "-c", PROBE, str(report), *argv], cwd=ROOT, check=True, capture_output=True, timeout=60
    )
    code, names = json.loads(report.read_text())
    return code, set(names)


@pytest.mark.parametrize(
    "argv",
    [
        (),
        ("--help",),
        ("--version",),
        ("validate", "--help"),
        ("run", "--help"),
        ("bench", "--help"),
        ("estimate", "--help"),
        ("nonsense",),
    ],
)
def test_help_imports_nothing(argv: tuple[str, ...], tmp_path: Path):
    _, names = loaded(tmp_path, *argv)
    assert not names & (HEAVY | DATA)


@pytest.mark.parametrize("argv", [("explain",), ("targets",), ("targets", "--json"), ("targets", "--help")])
def test_what_only_tells_needs_no_libraries(argv: tuple[str, ...], tmp_path: Path):
    code, names = loaded(tmp_path, *argv)
    assert code == 0
    assert not names & (HEAVY | DATA)


@pytest.mark.parametrize("spec", ["toy", "deepseek-v4.1-flash"])
@pytest.mark.parametrize("verb", ["validate", "compile", "graph", "estimate"])
def test_compiling_imports_no_torch(verb: str, spec: str, tmp_path: Path):
    more = ("-o", str(tmp_path / "plan")) if verb == "compile" else ()
    code, names = loaded(tmp_path, verb, spec, *more)
    assert code == 0
    assert not names & HEAVY
    assert not names & set(FOLDERS), "a folder was imported under its bare name"


def test_inspecting_imports_no_torch(tmp_path: Path):
    plan = str(tmp_path / "plan")
    assert loaded(tmp_path, "compile", "toy", "-o", plan)[0] == 0
    code, names = loaded(tmp_path, "inspect", plan)
    assert code == 0
    assert not names & HEAVY


def test_importing_the_packages_is_free():
    code = "import sys, dsv41c, dsv41c.compiler, dsv41c.runtime, dsv41c.kernels; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert not {name.partition(".")[0] for name in run.stdout.split()} & (HEAVY | DATA)
