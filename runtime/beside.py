"""Hidden folders beside the place of a result, to write it in; and what is left of them where a process was killed.

Each holds a mark, a file that its owner keeps locked. The kernel lets go of the lock when the process ends, however it
does, so a mark that can be locked has no owner. That is proof only on the machine, since it was started, that made the
mark: some file systems that several machines share keep locks on each of them.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

MARK, RESULT = "dsv41c.writing", "result"
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_TEXT = re.compile(rb"dsv41c\.writing on ([0-9a-f-]*)\n")
_RANDOM = "[a-z0-9_]{8}"  # what `mkdtemp` appends


@contextmanager
def folder_beside(place: Path) -> Iterator[Path]:
    """A new, empty folder on the disk of `place`, to be moved there; what is not moved goes. Raises OSError."""
    hidden = Path(tempfile.mkdtemp(prefix=f".{place.name}-", dir=place.parent))
    held = None
    try:
        held = _marked(hidden)
        result = hidden / RESULT
        result.mkdir(0o700)
        yield result
    finally:
        _remove(hidden)
        if held is not None:
            os.close(held)


def _marked(hidden: Path) -> int | None:
    """Mark a folder: gives the open file that holds the lock. None, and no mark, where the file system has no locks."""
    fresh = hidden / f"{MARK}.new"
    held = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.write(held, f"{MARK} on {_boot()}\n".encode())
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fresh.rename(hidden / MARK)  # it has its name once it is locked: nobody sees a mark that is not yet
    except OSError:
        os.close(held)
        fresh.unlink(missing_ok=True)
        return None
    return held


def _remove(hidden: Path) -> None:
    """Remove a folder, its mark last, so that what is half removed still has one."""
    shutil.rmtree(hidden / RESULT, ignore_errors=True)
    with suppress(OSError):
        if os.path.lexists(hidden / RESULT):
            return
        (hidden / MARK).unlink(missing_ok=True)
        hidden.rmdir()


def sweep(place: Path) -> list[str]:
    """Remove the folders beside `place` that processes left which were to write it, and are no more.

    Gives a line for each, and for each that may be one. Nothing else is touched: what has an owner or no mark, is
    another user's, or holds anything that `folder_beside` does not put there.
    """
    lines = []
    ours = re.compile(re.escape(f".{place.name}-") + _RANDOM)
    with suppress(OSError):
        for name in sorted(filter(ours.fullmatch, os.listdir(place.parent))):
            with suppress(OSError):  # it has no mark, or an owner
                lines += _swept(place.parent / name)
    return lines


def _swept(hidden: Path) -> list[str]:
    held = os.open(hidden / MARK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        boot = _without_owner(hidden, held)
        if boot is None:
            return []
        if not boot or boot != _boot():
            text = f"`{hidden}` was left before this machine was started, or another one is writing it"
            return [f"{text}: if none is, remove it"]
        _remove(hidden)
        if hidden.exists():
            return [f"`{hidden}` was left by a run that was killed, and cannot be removed"]
        return [f"removed `{hidden}`, left by a run that was killed"]
    finally:
        os.close(held)


def _without_owner(hidden: Path, held: int) -> str | None:
    """Where a folder was marked, with its mark locked from now on; None where it is not ours. Raises OSError."""
    folder, mark = os.lstat(hidden), os.fstat(held)
    if not stat.S_ISDIR(folder.st_mode) or not stat.S_ISREG(mark.st_mode):
        return None
    if {folder.st_uid, mark.st_uid} != {os.geteuid()} or not set(os.listdir(hidden)) <= {MARK, RESULT}:
        return None
    fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    written = _TEXT.fullmatch(os.read(held, 4096))
    if written is None or not os.path.samestat(mark, os.lstat(hidden / MARK)):
        return None
    return written[1].decode()


def _boot() -> str:
    """What this machine is called since it was started; empty where nothing says so."""
    try:
        return _BOOT.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""
