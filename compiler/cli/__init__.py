"""The command line. `main` may also be called in process; it returns the exit code and raises nothing."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import NoReturn


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line (without the program's name; by default the process's own); return the exit code.

    0 done, 1 the input has errors or a check failed, 2 usage or environment, 101 a bug of ours, 130 interrupted.
    """
    import io
    import os
    import sys

    from dsv41c.compiler.cli.app import run

    if argv is not None:
        return run(argv)
    _replace_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal that cannot spell a character shows its escape instead
            stream.reconfigure(errors="backslashreplace")
    code = run(sys.argv[1:])
    if code and "WORLD_SIZE" in os.environ and "torch" in sys.modules:
        _leave_at_once(code)
    return code


def _leave_at_once(code: int) -> NoReturn:
    """End one of several processes that has failed: threads of torch that wait for the others would abort it later."""
    import os
    import sys

    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # nobody may read any more
            stream.flush()
    os._exit(code)


def _replace_closed_streams() -> None:
    """Stand-ins for streams that whoever started us closed: nothing to read, talk to nobody, a result that is lost."""
    import os
    import sys

    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # open to the end of the process, so that no other file gets its number
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115
            if name == "stdout":
                from dsv41c.compiler.cli.closed import ClosedStream

                sys.stdout = ClosedStream(sys.stdout)
