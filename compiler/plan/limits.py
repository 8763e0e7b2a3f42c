"""Values that a spec may have and the native kernels of its devices do not take: refused by `compile`, not by a run."""

from __future__ import annotations

from collections.abc import Sequence

from dsv41c.compiler.passes import Program
from dsv41c.compiler.source import dotted
from dsv41c.compiler.targets import LIMITS, Limit
from dsv41c.diagnostics import Diagnostic


def beyond_limits(program: Program, limits: Sequence[Limit] = LIMITS) -> list[Diagnostic]:
    """A finding (DSV602) for each value that is larger than the native kernels which run the plan take."""
    kinds = {op.kind for op in program.graph.ops} if program.native else set()
    return [
        _beyond(program, limit, value)
        for limit in limits
        if limit.kind in kinds and (value := _value(program, limit.path)) > limit.most
    ]


def _value(program: Program, path: tuple[str, str]) -> int:
    return int(getattr(getattr(program.spec, path[0]), path[1]))


def _beyond(program: Program, limit: Limit, value: int) -> Diagnostic:
    name, users = dotted(limit.path), [op.id for op in program.graph.ops if op.kind == limit.kind]
    return Diagnostic(
        "DSV602",
        f"`{name}` is {value}, native kernels of {program.family} for `{limit.kind}` take at most {limit.most}",
        program.positions.value(limit.path),
        facts=(
            ("target", f"{program.family} ({', '.join(dict.fromkeys(program.devices))})"),
            (name, str(value)),
            ("at most", str(limit.most)),
            ("op", ", ".join(users)),
        ),
        help=f"give at most {limit.most}; or `numerics.compute: f32`, which plain torch runs, and that takes any",
    )
