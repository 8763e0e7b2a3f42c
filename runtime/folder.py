"""Folders of results: whole or not at all, and never over what is there."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn

from dsv41c.diagnostics import Diagnostic, Span, UserFault
from dsv41c.runtime.beside import folder_beside, sweep
from dsv41c.whole import permitted
from dsv41c.words import size

_HELP = "name a folder that is empty or does not exist yet, inside one that does"
_ROOM = "make room, or name a folder on another disk"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def new_folder(out: Path, needed: int = 0, say: Callable[[str], None] | None = None) -> Iterator[Path]:
    """A folder next to `out` to write into, which becomes `out` at the end; where that fails, nothing stays behind.

    `out` is checked first: `expect_free`, and room for the `needed` bytes that are to be written. What killed processes
    left beside it goes, which `say` is told. Raises UserFault (DSV751) where the system refuses or has no room, and
    SystemExit where the process is told to end.
    """
    expect_free(out)
    absolute = out.absolute()
    for line in sweep(absolute):
        if say is not None:
            say(line)
    _expect_room(out, needed)
    try:
        with _ends_as_exceptions(), folder_beside(absolute) as beside:
            yield beside
            beside.chmod(permitted(0o777))  # the temporary folder was for its maker alone
            os.replace(beside, absolute)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = str(getattr(error, "strerror", None) or error)
        full = isinstance(error, OSError) and error.errno in _FULL
        help_text = _ROOM if full else _HELP
        text = f"cannot be written: {reason[:1].lower()}{reason[1:]}"
        raise UserFault([_occupied(out, text, help_text)]) from None


@contextmanager
def _ends_as_exceptions() -> Iterator[None]:
    """SIGTERM and SIGHUP, where nobody else handles them, as SystemExit: by default a process leaves all as it is."""
    before = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_DFL:
                before[number] = signal.signal(number, _leave)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _leave(number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


def expect_free(out: Path) -> None:
    """Raise UserFault (DSV751) unless a folder can be made there without replacing anything: it is absent or empty."""
    try:
        if not out.absolute().parent.is_dir():
            raise UserFault([_occupied(out, f"cannot be made: there is no folder `{out.parent}`")])
        if os.path.lexists(out):
            if out.is_symlink() or not out.is_dir():
                raise UserFault([_occupied(out, "is a link" if out.is_symlink() else "is not a folder")])
            if any(out.iterdir()):
                raise UserFault([_occupied(out, "is not empty")])
    except (OSError, ValueError) as error:
        raise UserFault([_occupied(out, f"cannot be read: {error}")]) from None


def _expect_room(out: Path, needed: int) -> None:
    try:
        free = shutil.disk_usage(out.absolute().parent).free
    except OSError:
        return  # writing will tell
    if needed > free:
        text = f"cannot be written: it takes {size(needed)} and the disk has {size(free)} free"
        raise UserFault([_occupied(out, text, _ROOM)])


def _occupied(out: Path, text: str, help_text: str = _HELP) -> Diagnostic:
    return Diagnostic("DSV751", f"`{out}` {text}", Span(str(out)), help=help_text)
