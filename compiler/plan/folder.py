"""Plan folders on disk: written whole or not at all, and never over what is not a plan."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path

from dsv41c.diagnostics import Diagnostic, Span, UserFault
from dsv41c.runtime.manifest import listed_files
from dsv41c.words import counted

# What tools leave in a folder of Python files; goes with the plan it lies in.
_LEFT_OVER = ("__pycache__", ".ruff_cache")


def write(files: Mapping[str, str], folder: Path) -> None:
    """Make a folder hold exactly these files.

    They are written beside it first, then take its place by renaming. A folder that holds something else than an older
    plan is refused (DSV820, DSV821), and so is one that cannot be written (DSV822); then nothing has changed.
    """
    try:
        place = folder.resolve()
        _refuse_foreign(place, folder)
        if place.exists() and not stale(files, place):
            return
        _replace(files, place)
    except (OSError, ValueError, RuntimeError) as error:
        why = (error.strerror or str(error)).lower() if isinstance(error, OSError) else str(error)
        text = f"the plan cannot be written: {why}"
        help_text = "choose a folder that you may write, on a disk with room"
        raise UserFault([Diagnostic("DSV822", text, Span(str(folder)), help=help_text)]) from None


def stale(files: Mapping[str, str], folder: Path) -> tuple[str, ...]:
    """Names of files that the folder lacks, has otherwise, or has too many; sorted."""
    found = {entry.name for entry in folder.iterdir()} - set(_LEFT_OVER) if folder.is_dir() else set()
    other = {name for name, text in files.items() if name in found and not _holds(folder / name, text)}
    return tuple(sorted((found ^ files.keys()) | other))


def _holds(path: Path, text: str) -> bool:
    data = text.encode()
    try:  # a pipe would block, and what has another size need not be read
        return path.is_file() and path.stat().st_size == len(data) and path.read_bytes() == data
    except OSError:
        return False


def _refuse_foreign(place: Path, shown: Path) -> None:
    """Raise `UserFault` unless the place is free, an empty folder, or a plan and nothing else."""
    if not place.exists():
        return
    help_text = "name a folder that does not exist yet, or one that holds a plan"
    if not place.is_dir():
        raise UserFault([Diagnostic("DSV820", f"`{shown}` is not a folder", Span(str(shown)), help=help_text)])
    if Path.cwd().is_relative_to(place):
        text = f"`{shown}` is the current folder or holds it, so it cannot be replaced"
        raise UserFault([Diagnostic("DSV822", text, Span(str(shown)), help="compile from outside of it")])
    found = {entry.name for entry in place.iterdir()}
    if not found:
        return
    ours = listed_files(place)
    if ours is None:
        text = f"`{shown}` holds {counted(len(found), 'file')} and is not a plan"
        facts = (("among them", ", ".join(sorted(found)[:5])),)
        raise UserFault([Diagnostic("DSV820", text, Span(str(shown)), facts=facts, help=help_text)])
    foreign = sorted(found - ours - set(_LEFT_OVER))
    if foreign:
        text = f"`{shown}` holds a plan and files that are not the plan's: {', '.join(foreign[:5])}"
        more = "move them away, since the whole folder is replaced"
        raise UserFault([Diagnostic("DSV821", text, Span(str(shown)), help=f"{more}; or {help_text}")])


def _replace(files: Mapping[str, str], place: Path) -> None:
    fresh, older = (place.parent / f".{place.name}.{word}-{secrets.token_hex(4)}" for word in ("new", "old"))
    try:
        fresh.mkdir()
        for name, text in files.items():
            (fresh / name).write_bytes(text.encode())
        if place.exists():
            os.rename(place, older)
        try:
            os.rename(fresh, place)
        except OSError:
            if older.exists():
                os.rename(older, place)
            raise
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
        if place.exists():
            shutil.rmtree(older, ignore_errors=True)
