"""Files that appear whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary file to write into, which takes the place of `path` at the end; if that fails, nothing has changed.

    It gets the mode of the file it replaces, or that of any new file. Raises OSError.
    """
    handle, name = tempfile.mkstemp(prefix=f".{path.name[:100]}.", dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(path.stat().st_mode & 0o777 if path.exists() else permitted(0o666))
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def permitted(mode: int) -> int:
    """A mode less the bits of the process's mask, which can only be read by setting it."""
    mask = os.umask(0)
    os.umask(mask)
    return mode & ~mask
