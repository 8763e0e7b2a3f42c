"""Types, import directions, lint and form, by the tools that know them; the configuration is in pyproject.toml."""

import ast
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from .tree import ROOT, build_view, modules

CONFIG = ROOT / "pyproject.toml"


def tool(*command: str, cwd: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    bin_folder = Path(sys.executable).parent
    found = {**os.environ, **environment, "PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}"}
    return subprocess.run(command, cwd=cwd, env=found, capture_output=True, text=True, timeout=300)


def passes(result: subprocess.CompletedProcess[str]) -> None:
    if result.returncode:
        pytest.fail(result.stdout[-12000:] + result.stderr[-4000:], pytrace=False)


@pytest.fixture
def view(tmp_path: Path) -> Path:
    return build_view(tmp_path / "view")


def test_types(view: Path):
    cache = ROOT / ".mypy_cache"
    command = (sys.executable, "-m", "mypy", "--config-file", str(CONFIG), "--cache-dir", str(cache), "-p", "dsv41c")
    passes(tool(*command, cwd=view, MYPYPATH=str(view)))


def test_types_leave_out_nothing_that_is_imported():
    """What `follow_imports = "skip"` names would be `Any` without a word."""
    overrides = tomllib.loads(CONFIG.read_text())["tool"]["mypy"]["overrides"]
    skipped = {
        name.removesuffix(".*")
        for override in overrides
        if override.get("follow_imports") == "skip"
        for name in override["module"]
    }
    assert "torch.fx" in skipped
    for file in modules():
        for node in ast.walk(ast.parse(file.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
            if isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{name}" for name in names]
            for name in names:
                assert not any(f"{name}.".startswith(f"{part}.") for part in skipped), f"{file}:{node.lineno}: {name}"


def test_import_directions(view: Path):
    passes(tool("lint-imports", "--config", str(CONFIG), "--no-cache", cwd=view, PYTHONPATH=str(view)))


def test_a_planted_import_against_the_direction_is_found(view: Path):
    planted = view / "dsv41c" / "kernels" / "planted.py"
    planted.write_text("import dsv41c.compiler.ir\n")
    result = tool("lint-imports", "--config", str(CONFIG), "--no-cache", cwd=view, PYTHONPATH=str(view))
    assert result.returncode != 0
    assert "dsv41c.kernels.planted" in result.stdout


def test_lint():
    passes(tool(sys.executable, "-m", "ruff", "check", "."))


def test_form():
    passes(tool(sys.executable, "-m", "ruff", "format", "--check", "."))
