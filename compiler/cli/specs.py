"""From the arguments of a verb to a spec that passed its checks, and to a plan in memory."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING

from dsv41c.compiler.cli.console import Console
from dsv41c.compiler.cli.faults import Refused, show
from dsv41c.diagnostics import Diagnostic, has_errors, ordered

if TYPE_CHECKING:
    from dsv41c.compiler.spec import Loaded, Spec


def load_spec(ref: str, arguments: Namespace, console: Console) -> tuple[Loaded, tuple[Diagnostic, ...]]:
    """A spec with the overrides of the arguments, and every finding of its text and its graph."""
    from dsv41c import compiler

    with console.step(f"load {ref}"):
        loaded = compiler.load(ref, target=arguments.target, sets=arguments.sets)
    with console.step(f"check {ref}"):
        return loaded, ordered(dict.fromkeys(compiler.check(loaded)))


def sound_spec(arguments: Namespace, console: Console) -> tuple[Loaded, Spec]:
    """The spec of a verb that goes on with it. Tells warnings; raises `Refused` where there are errors."""
    loaded, findings = load_spec(arguments.spec, arguments, console)
    return loaded, sound(loaded, findings, console)


def sound(loaded: Loaded, findings: tuple[Diagnostic, ...], console: Console) -> Spec:
    """The spec, if its findings leave it. Tells warnings; raises `Refused` where there are errors."""
    if has_errors(findings) or loaded.spec is None:
        raise Refused(findings, loaded.sources)
    show(console, findings, loaded.sources)
    return loaded.spec
