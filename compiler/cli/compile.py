"""`compile`: a spec to a plan folder, and what changed where an older plan lies there."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from dsv41c.compiler.cli import summary
from dsv41c.compiler.cli.console import Console
from dsv41c.compiler.cli.faults import FAILED
from dsv41c.compiler.cli.files import expect_parent
from dsv41c.compiler.cli.parsing import UsageError
from dsv41c.compiler.cli.specs import compiled
from dsv41c.diagnostics import UserFault
from dsv41c.report.escape import escape
from dsv41c.words import counted

if TYPE_CHECKING:
    from dsv41c.compiler.plan import Plan
    from dsv41c.compiler.plan.diff import Difference

FORMAT = "dsv41c.compile/1.0"


def work(arguments: Namespace, console: Console) -> int:
    """Write the plan, or with --check and --dry-run say what writing would change."""
    if arguments.output is None and arguments.check:
        raise UsageError("`--check` compares with a plan that is there; give its folder with `-o DIR`")
    if arguments.output is None and not arguments.dry_run:
        raise UsageError("give the plan's folder with `-o DIR`, or `--dry-run` to write nothing")
    if arguments.output == "-":
        raise UsageError("a plan is a folder and cannot go to standard output; give `-o DIR`")
    if not arguments.check and not arguments.dry_run:
        expect_parent(arguments.output)
    plan = compiled(arguments, console)
    folder = None if arguments.output is None else Path(arguments.output)
    if arguments.check and folder is not None:
        return _check(plan, folder, arguments, console)
    if arguments.dry_run:
        return _dry_run(plan, folder, arguments, console)
    assert folder is not None
    return _write(plan, folder, arguments, console)


def _write(plan: Plan, folder: Path, arguments: Namespace, console: Console) -> int:
    from dsv41c.compiler.plan import write_plan
    from dsv41c.compiler.plan.folder import stale

    changes = _changes(plan, folder)
    fresh = not folder.exists()
    differs = fresh or bool(stale(plan.files, folder))
    with console.step("write"):
        write_plan(plan, folder)
    if arguments.json:
        console.result(_json(plan, folder, written=differs, changes=changes))
    what = "wrote" if fresh else "rewrote" if differs else "left as it was:"
    console.say(f"{what} {escape(str(folder))} ({counted(len(plan.files), 'file')})")
    for line in summary.lines(plan.manifest):
        console.say(line)
    if changes is not None and changes.lines:
        console.say(f"changed since the plan that was there: {changes.summary}")
        for line in changes.lines:
            console.say(f"  {escape(line)}")
    return 0


def _check(plan: Plan, folder: Path, arguments: Namespace, console: Console) -> int:
    """Whether the folder holds this plan. The difference is the result."""
    from dsv41c.compiler.plan.folder import stale

    differing = stale(plan.files, folder)
    changes = _changes(plan, folder)
    if arguments.json:
        console.result(_json(plan, folder, written=False, changes=changes, stale=differing))
    elif differing:
        console.result("".join(f"{escape(line)}\n" for line in (changes.lines if changes else ())))
    if not differing:
        console.say(f"{escape(str(folder))} is up to date")
        return 0
    console.say(_not_up_to_date(folder, differing))
    return FAILED


def _not_up_to_date(folder: Path, differing: tuple[str, ...]) -> str:
    from dsv41c.runtime.manifest import MANIFEST

    shown = escape(str(folder))
    if not folder.is_dir():
        return f"there is no plan folder {shown}"
    if not (folder / MANIFEST).is_file():
        return f"{shown} is no plan: it has no {MANIFEST}"
    return f"{shown} is not up to date: {', '.join(map(escape, differing))}"


def _dry_run(plan: Plan, folder: Path | None, arguments: Namespace, console: Console) -> int:
    """The files that would be written, with their sizes."""
    changes = None if folder is None else _changes(plan, folder)
    if arguments.json:
        console.result(_json(plan, folder, written=False, changes=changes))
    else:
        sizes = {name: len(text.encode()) for name, text in sorted(plan.files.items())}
        console.result("".join(f"{count:>10} {name}\n" for name, count in sizes.items()))
    for line in summary.lines(plan.manifest):
        console.say(line)
    if changes is not None:
        console.say(f"would change: {changes.summary}")
    return 0


def _changes(plan: Plan, folder: Path) -> Difference | None:
    """What differs from the plan that lies there; None where there is none that can be read."""
    from dsv41c.compiler.plan.diff import diff
    from dsv41c.runtime.manifest_text import read

    if not folder.is_dir():
        return None
    try:
        return diff(read(folder), plan.manifest)
    except UserFault:
        return None  # nothing there, not a plan, or one of another version: `write` judges that


def _json(
    plan: Plan,
    folder: Path | None,
    *,
    written: bool,
    changes: Difference | None,
    stale: tuple[str, ...] | None = None,
) -> str:
    data: dict[str, object] = {
        "format": FORMAT,
        "plan": None if folder is None else str(folder),
        "written": written,
        "files": sorted(plan.files),
        "changes": None if changes is None else list(changes.lines),
        "summary": summary.summary(plan.manifest),
    }
    if stale is not None:
        data["stale"] = list(stale)
    return json.dumps(data, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
