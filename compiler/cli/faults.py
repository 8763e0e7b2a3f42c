"""What is said when something is wrong: findings in the form that was asked for, and the report of a bug of ours."""

from __future__ import annotations

import os
import platform
import shlex
import sys
import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from dsv41c import __version__
from dsv41c.compiler.cli.console import Console
from dsv41c.compiler.cli.parsing import UsageError
from dsv41c.compiler.cli.verbs import VERBS
from dsv41c.diagnostics import Diagnostic, Span, UserFault, has_errors

FAILED = 1
USAGE = 2
# Faults of what was asked for or of where it was asked, not of the content: files that are not there or cannot be
# written, names and options that mean nothing, a plan for devices that are not here, or have no memory, or fail.
_NUMBERS = (117, 150, 151, 152, 154, 158, 220, 241, 242, 700, 750, 751, 820, 821, 822, 858, 860, 865, 867, 890, 892)
_USAGE = (*_NUMBERS, *range(841, 844), *range(880, 886))
USAGE_CODES = frozenset(f"DSV{number}" for number in _USAGE)


# Of these, only what the command line names is usage: a spec that extends what is not there is a fault of the spec.
_NAMED = frozenset({"DSV117", "DSV220"})


class Refused(UserFault):
    """Findings of an input, with the texts that their spans point into."""

    def __init__(self, diagnostics: Iterable[Diagnostic], sources: Mapping[str, str]) -> None:
        self.sources = sources
        super().__init__(diagnostics)


def exit_code(diagnostics: Iterable[Diagnostic]) -> int:
    """0 without errors, 2 where every error is about usage or environment, 1 otherwise."""
    errors = [diagnostic for diagnostic in diagnostics if diagnostic.severity == "error"]
    if not errors:
        return 0
    return USAGE if all(_of_usage(error) for error in errors) else FAILED


def _of_usage(error: Diagnostic) -> bool:
    # A place inside a text has an end; a file or an argument as a whole has none.
    in_a_text = error.code in _NAMED and error.span is not None and error.span.end_line > 0
    return error.code in USAGE_CODES and not in_a_text


def show(console: Console, diagnostics: Iterable[Diagnostic], sources: Mapping[str, str] | None = None) -> None:
    """Tell findings: beside the result as text, or as the result where JSON was asked for.

    Of several processes, which may find the same, the first one has the result.
    """
    from dsv41c.report import render

    found = tuple(replace(diagnostic, fix=()) for diagnostic in diagnostics)  # only `validate` has tried them
    if not found:
        return
    first = os.environ.get("WORLD_SIZE", "1") == "1" or os.environ.get("RANK", "0") == "0"
    if console.json and first and has_errors(found):
        console.result(render(found, sources or {}, "json"))
    else:
        console.say(render(found, sources or {}, color=console.colored(sys.stderr)).rstrip("\n"))


def wrong_usage(error: UsageError, argv: Sequence[str]) -> Diagnostic:
    """The finding (DSV158) of arguments that do not fit, for programs; people are told by usage and message alone."""
    verb = next((word for word in argv if word in VERBS), None)
    usage = " ".join(error.usage.removeprefix("usage:").split())
    facts = (("usage", usage),) if usage else ()
    help_text = f"`dsv41c {verb} --help` says what it takes" if verb else "`dsv41c --help` lists the verbs"
    return Diagnostic("DSV158", str(error), Span("<command line>"), facts=facts, help=help_text)


def where_raised(fault: UserFault) -> str:
    """The way through our code to where a fault was raised, for DSV41C_DEBUG=2."""
    chain: list[BaseException] = [fault]
    while (before := chain[-1].__cause__ or chain[-1].__context__) is not None and before not in chain:
        chain.append(before)
    frames = [frame for error in chain for frame in traceback.extract_tb(error.__traceback__)]
    return "".join(f"debug: {frame.filename}:{frame.lineno} in {frame.name}\n" for frame in frames).rstrip()


def bug_report(argv: Sequence[str], error: BaseException) -> str:
    """What to send us about an exception that should not have happened."""
    command = " ".join(shlex.quote(word) for word in argv)
    from dsv41c.report.escape import escape

    trace = "".join(traceback.format_exception(error)).rstrip().split("\n")
    return (
        f"{chr(10).join(map(escape, trace))}\n\n"
        "this is a bug in dsv41c: no input should lead here\n"
        f"  version:  dsv41c {__version__}, Python {platform.python_version()}\n"
        f"  platform: {platform.platform()}\n"
        f"  command:  dsv41c {escape(command)}\n"
        "report it with the lines above and the input, if you can share it"
    )
