"""The command line. `main` may also be called in process; it returns the exit code and raises nothing."""

from __future__ import annotations

from collections.abc import Sequence


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
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed by whoever started us; open to the end of the process
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal that cannot spell a character shows its escape instead
            stream.reconfigure(errors="backslashreplace")
    return run(sys.argv[1:])
