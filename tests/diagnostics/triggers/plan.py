"""What sets off the codes of plan folders (80x to 84x): the toy's plan, spoiled in one way each."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from dsv41c.compiler.plan import compile_spec, write_plan
from dsv41c.compiler.spec import load
from dsv41c.diagnostics import Diagnostic, UserFault
from dsv41c.runtime.manifest import sha256
from dsv41c.runtime.plan import load_plan

Trigger = Callable[[Path], list[Diagnostic]]


def _toy(place: Path) -> Path:
    write_plan(compile_spec(load("toy")), place / "plan")
    return place / "plan"


def _findings(make: Callable[[], object]) -> list[Diagnostic]:
    try:
        make()
    except UserFault as fault:
        return list(fault.diagnostics)
    return []


def _manifest(change: Callable[[dict], object]) -> Trigger:
    """The toy's plan with a changed manifest."""

    def trigger(place: Path) -> list[Diagnostic]:
        folder = _toy(place)
        content = json.loads((folder / "manifest.json").read_text())
        change(content)
        (folder / "manifest.json").write_text(json.dumps(content))
        return _findings(lambda: load_plan(folder))

    return trigger


def _code(old: str, new: str, *, rehash: bool) -> Trigger:
    """The toy's plan with changed code, and if asked for the hash that goes with it."""

    def trigger(place: Path) -> list[Diagnostic]:
        folder = _toy(place)
        text = (folder / "stage_0.py").read_text().replace(old, new, 1)
        (folder / "stage_0.py").write_text(text)
        if rehash:
            content = json.loads((folder / "manifest.json").read_text())
            next(file for file in content["files"] if file["path"] == "stage_0.py")["sha256"] = sha256(text.encode())
            (folder / "manifest.json").write_text(json.dumps(content))
        return _findings(lambda: load_plan(folder))

    return trigger


def _missing(place: Path) -> list[Diagnostic]:
    folder = _toy(place)
    (folder / "stage_0.py").unlink()
    return _findings(lambda: load_plan(folder))


def _allowed(place: Path) -> list[Diagnostic]:
    folder = _toy(place)
    (folder / "README.md").write_text("mine")
    return list(load_plan(folder, allow_edited=True).warnings)


def _not_a_plan(place: Path) -> list[Diagnostic]:
    (place / "notes.txt").write_text("not a plan")
    return _findings(lambda: write_plan(compile_spec(load("toy")), place))


def _foreign(place: Path) -> list[Diagnostic]:
    folder = _toy(place)
    (folder / "notes.txt").write_text("not the plan's")
    return _findings(lambda: write_plan(compile_spec(load("toy")), folder))


def _unwritable(place: Path) -> list[Diagnostic]:
    (place / "file").write_text("")
    return _findings(lambda: write_plan(compile_spec(load("toy")), place / "file" / "plan"))


TRIGGERS: dict[str, Trigger] = {
    "DSV801": lambda place: _findings(lambda: load_plan(place)),
    "DSV802": _manifest(lambda content: content.update(format="dsv41c.plan/2.0")),
    "DSV803": _manifest(lambda content: content.pop("ops")),
    "DSV804": _manifest(lambda content: content["files"][0].update(path="../elsewhere")),
    "DSV810": _missing,
    "DSV811": _code("iterations=20", "iterations=19", rehash=False),
    "DSV812": _allowed,
    "DSV813": _code("\n\n\n# specs", "\nimport os\n\n\n# specs", rehash=True),
    "DSV814": _code("iterations=20", "iterations=19", rehash=True),
    "DSV820": _not_a_plan,
    "DSV821": _foreign,
    "DSV822": _unwritable,
}
