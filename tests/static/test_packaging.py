"""The package list is by hand: it has to name every package on disk, and nothing else."""

import tomllib

from .tree import FOLDERS, ROOT, packages


def test_package_list_is_what_is_on_disk():
    on_disk = {file.parent for folder in FOLDERS for file in (ROOT / folder).rglob("__init__.py")}
    assert sorted(packages().values()) == sorted(on_disk)


def test_every_data_file_of_a_package_is_shipped():
    data = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    for package in ("dsv41c.specs", "dsv41c.templates"):
        folder = packages()[package]
        shipped = {file for pattern in data[package] for file in folder.glob(pattern)}
        nested = {file for other in packages().values() if other != folder for file in other.rglob("*")}
        files = {file for file in folder.rglob("*") if file.is_file() and file.suffix not in (".py", ".pyc")}
        assert files - nested <= shipped, "add the kind of file to package-data in pyproject.toml"


def test_top_level_is_fixed():
    allowed = {"pyproject.toml", "README.md", "tests", "examples", *FOLDERS}
    generated = {"build", "dist", "__pycache__"}
    found = {entry.name for entry in ROOT.iterdir() if not entry.name.startswith(".")}  # caches and environments
    assert not {name for name in found - allowed - generated if not name.endswith(".egg-info")}
    assert (ROOT / ".ci" / "run").is_file()
