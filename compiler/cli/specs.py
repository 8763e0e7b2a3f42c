"""From the arguments of a verb to a spec that passed its checks, and to a plan in memory."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING

from dsv41c.compiler.cli.console import Console
from dsv41c.compiler.cli.faults import Refused, show
from dsv41c.diagnostics import Diagnostic, UserFault, has_errors, ordered

if TYPE_CHECKING:
    from dsv41c.compiler.plan import Plan
    from dsv41c.compiler.spec import Loaded, Spec


def load_spec(
    ref: str, arguments: Namespace, console: Console, instead: str | None = None
) -> tuple[Loaded, tuple[Diagnostic, ...]]:
    """A spec with the overrides of the arguments, and every finding of its text and its graph.

    `instead` is a text in place of the one that the spec's file holds.
    """
    from dsv41c import compiler
    from dsv41c.compiler.spec import load

    with console.step(f"load {ref}"):
        loaded = load(ref, target=arguments.target, sets=arguments.sets, instead=instead)
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


def compiled(arguments: Namespace, console: Console) -> Plan:
    """The plan of a verb's spec, in memory. Tells warnings; raises `Refused` where there are errors."""
    from dsv41c import compiler
    from dsv41c.compiler.plan import compile_spec

    with console.step("load"):
        loaded = compiler.load(arguments.spec, target=arguments.target, sets=arguments.sets)
    try:
        with console.step("check, build, lower and render"):
            plan = compile_spec(loaded, verify=console.settings.verify)
    except UserFault as fault:
        raise Refused(fault.diagnostics, loaded.sources) from None
    show(console, plan.warnings, loaded.sources)
    return plan
