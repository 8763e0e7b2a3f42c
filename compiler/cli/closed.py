"""Standard output that was closed by whoever started us."""

from __future__ import annotations

import errno
import io
from typing import NoReturn, TextIO


class ClosedStream(io.TextIOBase, TextIO):
    """Refuses every write: a result that reaches nobody is no success. `holder` keeps the stream's number taken."""

    def __init__(self, holder: TextIO) -> None:
        self.holder = holder
        self.lost = False

    def write(self, text: str, /) -> NoReturn:
        """Raises OSError. `lost` remembers it: argparse, which writes help, hears nothing of errors."""
        self.lost = True
        raise OSError(errno.EBADF, "standard output is closed, so the result is lost")
