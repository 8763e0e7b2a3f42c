"""One run of the command line: arguments in, the verb's work, an exit code out, whatever happens on the way."""

from __future__ import annotations

import gc
import os
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from importlib import import_module

from dsv41c.compiler.cli.console import Console
from dsv41c.compiler.cli.parsing import UsageError, overview, parse, wants_json
from dsv41c.compiler.cli.verbs import VERBS
from dsv41c.diagnostics import UserFault
from dsv41c.settings import read_settings

USAGE = 2
BUG = 101
INTERRUPTED = 130


def run(argv: Sequence[str]) -> int:
    """Run a command line; nothing is raised."""
    try:
        return _told(argv)
    except KeyboardInterrupt:
        Console().say("dsv41c: interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        return _quiet()
    except OSError as error:
        Console().say(f"dsv41c: the environment refused: {_printable(f'{error.strerror or error}{_where(error)}')}")
        return USAGE
    except Exception as error:
        from dsv41c.compiler.cli.faults import bug_report

        Console().say(bug_report(argv, error))
        return BUG


def _printable(text: str) -> str:
    """What was typed, or the system says, without what could move the cursor."""
    from dsv41c.report.escape import escape

    return escape(text)


def _where(error: OSError) -> str:
    return f": {error.filename}" if error.filename is not None else ""


def _told(argv: Sequence[str]) -> int:
    """The work, and the telling of what the user got wrong; the telling may fail as well."""
    console = Console()
    try:
        if not argv:
            console.result(overview())
            return 0
        arguments = parse(argv)
        console = _console(arguments)
        return _guarded(arguments, console)
    except UsageError as error:
        if console.json or wants_json(argv):
            from dsv41c.compiler.cli.faults import show, wrong_usage

            show(replace(console, json=True), [wrong_usage(error, argv)])
        else:
            console.say(f"{error.usage}dsv41c: {_printable(str(error))}")
        return USAGE
    except SystemExit as leaving:  # argparse, after --help and --version
        if getattr(sys.stdout, "lost", False):
            sys.stdout.write("")  # raises what argparse kept to itself
        sys.stdout.flush()
        return leaving.code if isinstance(leaving.code, int) else 0
    except UserFault as fault:
        from dsv41c.compiler.cli.faults import exit_code, show, where_raised

        if console.settings.debug >= 2:
            console.say(where_raised(fault))
        show(console, fault.diagnostics, getattr(fault, "sources", None))
        return exit_code(fault.diagnostics)


def _console(arguments: Namespace) -> Console:
    as_json = bool(getattr(arguments, "json", False)) or getattr(arguments, "format", None) == "json"
    console = Console(json=as_json)
    try:
        settings = read_settings(os.environ)
    except UserFault as fault:
        from dsv41c.compiler.cli.faults import show

        show(console, fault.diagnostics)
        raise SystemExit(USAGE) from None
    if arguments.color is not None:
        settings = replace(settings, color=arguments.color)
    return replace(console, settings=settings)


def _guarded(arguments: Namespace, console: Console) -> int:
    """The verb's work, with its time told under DSV41C_DEBUG."""
    if console.settings.warnings:
        from dsv41c.compiler.cli.faults import show

        show(replace(console, json=False), console.settings.warnings)
    with console.step(f"{arguments.verb} in all"):
        work = import_module(f"dsv41c.compiler.cli.{VERBS[arguments.verb].module}").work
        with _collector_paused(arguments.verb in ("validate", "compile", "graph")):
            code = work(arguments, console)
        sys.stdout.flush()
    return int(code)


@contextmanager
def _collector_paused(paused: bool) -> Iterator[None]:
    """The work without Python's cycle collector.

    Compiling builds much data without cycles that lives to the end; looking through it again and again doubles the time
    of large models, and makes it grow faster than they do.
    """
    running = gc.isenabled()
    if paused:
        gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()


def _quiet() -> int:
    """After the reader of a pipe has gone: say nothing, also not when Python closes the stream."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0
