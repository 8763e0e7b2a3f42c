"""What was probably meant where a path leads to nothing that can be read: a way out, by looking at what is there."""

from __future__ import annotations

from dataclasses import replace
from difflib import get_close_matches
from itertools import islice
from pathlib import Path

from dsv41c.diagnostics import Diagnostic

_MOST = 1000  # entries of a folder that are looked at


def with_hint(finding: Diagnostic, ref: str, names: tuple[str, ...]) -> Diagnostic:
    """A finding about an unreadable path, with a better way out where one shows. `names` are the shipped ones."""
    hint = _of_folder(Path(ref), ref) or _of_name(Path(ref), names) or _of_neighbours(Path(ref))
    return finding if hint is None else replace(finding, help=hint)


def config_hint(finding: Diagnostic, ref: str) -> Diagnostic:
    """The same where the config of a model is expected."""
    path = _inside(Path(ref), "config.json")
    return finding if path is None else replace(finding, help=f"the folder holds a config, give that: `{path}`")


def _of_folder(path: Path, ref: str) -> str | None:
    if _inside(path, "manifest.json") and (spec := _inside(path, "spec.yaml")):
        return f"`{ref}` is a plan; the spec it was made of is `{spec}`"
    if config := _inside(path, "config.json"):
        return f"`{ref}` holds the config of a model, of which `dsv41c import {config}` makes a spec"
    return None


def _of_name(path: Path, names: tuple[str, ...]) -> str | None:
    try:
        absent = not path.exists()
    except (OSError, ValueError):
        return None
    return f"`{path.stem}` ships with dsv41c: give the name alone" if absent and path.stem in names else None


def _of_neighbours(path: Path) -> str | None:
    """The file of a nearly equal name in the same folder, if what was named is not there."""
    try:
        there = [] if path.exists() else list(islice(path.parent.iterdir(), _MOST))
        names = [entry.name for entry in there if entry.exists()]  # not of a link that leads nowhere
    except (OSError, ValueError):
        return None
    near = get_close_matches(path.name, names, 1)
    return f"did you mean `{path.parent / near[0]}`?" if near else None


def _inside(folder: Path, name: str) -> Path | None:
    try:
        return folder / name if (folder / name).is_file() else None
    except (OSError, ValueError):
        return None
