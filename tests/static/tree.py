"""The repository as the static tests see it: its package map, its files, and a view for type checkers."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("compiler", "kernels", "runtime", "specs", "templates")


def packages() -> dict[str, Path]:
    """Every package that pyproject.toml lists, with its folder."""
    setuptools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    return {name: ROOT / folder_of(name, setuptools["package-dir"]) for name in setuptools["packages"]}


def folder_of(package: str, mapped: dict[str, str]) -> str:
    """The folder of a package by the longest mapped name it starts with."""
    parts = package.split(".")
    for length in range(len(parts), 0, -1):
        name = ".".join(parts[:length])
        if name in mapped:
            return "/".join([mapped[name], *parts[length:]])
    raise KeyError(package)


def modules() -> list[Path]:
    """Every Python file of the packages, sorted."""
    return sorted(file for folder in packages().values() for file in folder.glob("*.py"))


def texts() -> list[Path]:
    """Every text file a person wrote: code, specs, templates, tests, examples and the front page."""
    suffixes = {".py", ".md", ".yaml", ".toml", ".j2", ".sh", ".json", ""}
    names = [*FOLDERS, "tests", "examples", ".ci"]
    found = [file for name in names for file in (ROOT / name).rglob("*") if file.is_file()]
    found += [ROOT / "README.md", ROOT / "pyproject.toml"]
    skipped = ("__pycache__", "golden", "out")
    return sorted(f for f in found if f.suffix in suffixes and not set(skipped) & set(f.relative_to(ROOT).parts))


def build_view(place: Path) -> Path:
    """A folder in which `dsv41c` is an ordinary package, made of links: an editable install cannot be followed."""
    for name, folder in packages().items():
        target = place / name.replace(".", "/")
        target.mkdir(parents=True, exist_ok=True)
        for file in folder.iterdir():
            if file.is_file():
                os.symlink(file, target / file.name)
    return place
