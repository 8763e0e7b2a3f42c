"""From a spec to a plan: text -> spec -> graph -> checks -> passes -> plan. Never imports torch.

`load`, `check` and `compile_spec` are the library's entry; everything they need is imported when they are called.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dsv41c.compiler.plan import Plan
    from dsv41c.compiler.spec import Loaded
    from dsv41c.diagnostics import Diagnostic

__all__ = ["check", "compile_spec", "load"]


def load(ref: str, *, target: str | None = None, sets: Sequence[str] = ()) -> Loaded:
    """Load a spec (a file, `-`, or a shipped name), for a target, with `path=value` overrides.

    Nothing is raised for any input: what is wrong is in the result's `diagnostics`.
    """
    from dsv41c.compiler.spec import load

    return load(ref, target=target, sets=sets)


def check(loaded: Loaded) -> tuple[Diagnostic, ...]:
    """Every finding about a spec, of its text and of its graph; `compile_spec` refuses what has an error here."""
    from dsv41c.compiler.checks import check

    return tuple(check(loaded))


def compile_spec(loaded: Loaded) -> Plan:
    """The plan of a spec, in memory. Raises `UserFault` with every finding where the spec has errors."""
    from dsv41c.compiler.plan import compile_spec

    return compile_spec(loaded)
