"""Folders of results: whole or not at all, and never over what is there."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dsv41c.diagnostics import Diagnostic, Span, UserFault
from dsv41c.whole import permitted


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """A folder next to `out` to write into, which becomes `out` at the end; where that fails, nothing stays behind.

    `out` is checked first: `expect_free`. Raises UserFault (DSV751) where the system refuses.
    """
    expect_free(out)
    try:
        absolute = out.absolute()
        beside = Path(tempfile.mkdtemp(prefix=f".{absolute.name}-", dir=absolute.parent))
        try:
            yield beside
            beside.chmod(permitted(0o777))  # the temporary folder was for its maker alone
            os.replace(beside, absolute)
        finally:
            shutil.rmtree(beside, ignore_errors=True)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = getattr(error, "strerror", None) or error
        raise UserFault([_occupied(out, f"cannot be written: {reason}")]) from None


def expect_free(out: Path) -> None:
    """Raise UserFault (DSV751) unless a folder can be made there without replacing anything: it is absent or empty."""
    try:
        if not out.absolute().parent.is_dir():
            raise UserFault([_occupied(out, f"cannot be made: there is no folder `{out.parent}`")])
        if os.path.lexists(out):
            if out.is_symlink() or not out.is_dir():
                raise UserFault([_occupied(out, "is not a folder")])
            if any(out.iterdir()):
                raise UserFault([_occupied(out, "is not empty")])
    except (OSError, ValueError) as error:
        raise UserFault([_occupied(out, f"cannot be read: {error}")]) from None


def _occupied(out: Path, text: str) -> Diagnostic:
    help_text = "name a folder that is empty or does not exist yet, inside one that does"
    return Diagnostic("DSV751", f"`{out}` {text}", Span(str(out)), help=help_text)
