"""What is built is what is here: the wheel, put elsewhere, validates and compiles, and holds no bare folder."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from .tree import FOLDERS, ROOT, packages


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, so that nothing is left in the tree and no older build is taken up."""
    place = tmp_path_factory.mktemp("wheel")
    ignore = shutil.ignore_patterns("__pycache__", "build", "*.egg-info")
    for name in FOLDERS:
        shutil.copytree(ROOT / name, place / "tree" / name, ignore=ignore)
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, place / "tree")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(place), str(place / "tree")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = place.glob("*.whl")
    return built


def test_holds_the_package_and_its_data(wheel: Path):
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.partition("/")[0] for name in names if ".dist-info/" not in name}
    assert tops == {"dsv41c"}
    modules = {name for name in names if name.endswith(".py")}
    expected = {
        f"{package.replace('.', '/')}/{file.name}"
        for package, folder in packages().items()
        for file in folder.glob("*.py")
    }
    assert modules == expected
    assert {"dsv41c/py.typed", "dsv41c/specs/toy.yaml", "dsv41c/specs/targets/cpu.yaml"} <= set(names)


def test_works_where_it_is_installed(wheel: Path, tmp_path: Path):
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    for arguments in (["validate", "toy"], ["compile", "toy", "-o", "plan"], ["graph", "toy"]):
        command = [sys.executable, "-m", "dsv41c", *arguments]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
    where = subprocess.run(
        [sys.executable, "-c", "import dsv41c.compiler; print(dsv41c.compiler.__file__)"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert where.stdout.startswith(str(tmp_path))
