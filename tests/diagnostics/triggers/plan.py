"""What sets off the codes of plan folders (80x to 82x): the toy's plan, spoiled in one way each, and as it was."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path

from dsv41c.compiler.plan import Plan, compile_spec, write_plan
from dsv41c.compiler.spec import load
from dsv41c.diagnostics import Diagnostic
from dsv41c.runtime.manifest import sha256
from dsv41c.runtime.plan import load_plan


@cache
def _compiled() -> Plan:
    return compile_spec(load("toy"))


def _toy(place: Path) -> Path:
    write_plan(_compiled(), place / "plan")
    return place / "plan"


def _manifest(change: Callable[[dict], object]) -> Callable[[Path], object]:
    """The toy's plan with a changed manifest."""

    def trigger(place: Path) -> None:
        folder = _toy(place)
        content = json.loads((folder / "manifest.json").read_text())
        change(content)
        (folder / "manifest.json").write_text(json.dumps(content))
        load_plan(folder)

    return trigger


def _code(old: str, new: str, *, rehash: bool) -> Callable[[Path], object]:
    """The toy's plan with changed code, and if asked for the hash that goes with it."""

    def trigger(place: Path) -> None:
        folder = _toy(place)
        text = (folder / "stage_0.py").read_text().replace(old, new, 1)
        (folder / "stage_0.py").write_text(text)
        if rehash:
            content = json.loads((folder / "manifest.json").read_text())
            next(file for file in content["files"] if file["path"] == "stage_0.py")["sha256"] = sha256(text.encode())
            (folder / "manifest.json").write_text(json.dumps(content))
        load_plan(folder)

    return trigger


def _missing(place: Path) -> None:
    folder = _toy(place)
    (folder / "stage_0.py").unlink()
    load_plan(folder)


def _allowed(readme: str | None) -> Callable[[Path], tuple[Diagnostic, ...]]:
    def trigger(place: Path) -> tuple[Diagnostic, ...]:
        folder = _toy(place)
        if readme is not None:
            (folder / "README.md").write_text(readme)
        return load_plan(folder, allow_edited=True).warnings

    return trigger


def _over(*names: str) -> Callable[[Path], None]:
    """Writing the plan over a folder that holds some files, a plan's own if the first is its manifest."""

    def trigger(place: Path) -> None:
        folder = _toy(place) if names[:1] == ("manifest.json",) else place
        for name in names:
            if not (folder / name).exists():
                (folder / name).write_text("not the plan's")
        write_plan(_compiled(), folder)

    return trigger


def _unwritable(place: Path) -> None:
    (place / "file").write_text("")
    write_plan(_compiled(), place / "file" / "plan")


def _whole(place: Path) -> None:
    load_plan(_toy(place))


TRIGGERS = {
    "DSV801": (lambda place: load_plan(place), _whole),
    "DSV802": (_manifest(lambda content: content.update(format="dsv41c.plan/2.0")), _whole),
    "DSV803": (_manifest(lambda content: content.pop("ops")), _whole),
    "DSV804": (_manifest(lambda content: content["files"][0].update(path="../elsewhere")), _whole),
    "DSV810": (_missing, _whole),
    "DSV811": (_code("iterations=20", "iterations=19", rehash=False), _whole),
    "DSV812": (_allowed("mine"), _allowed(None)),
    "DSV813": (_code("\n\n\n# specs", "\nimport os\n\n\n# specs", rehash=True), _whole),
    "DSV814": (_code("iterations=20", "iterations=19", rehash=True), _whole),
    "DSV820": (_over("notes.txt"), _over()),
    "DSV821": (_over("manifest.json", "notes.txt"), _over("manifest.json")),
    "DSV822": (_unwritable, _whole),
}
