"""The golden checkpoint cut into stages."""

from __future__ import annotations

from collections.abc import Sequence

from golden_tiny import ORACLE, TINY, plan, weights

from dsv41c.runtime.engine import Engine
from dsv41c.runtime.plan import Plan

ONE = 'placement: {devices: ["cpu:0"], layer_ends: [10]}'


def split(
    ends: Sequence[int], devices: Sequence[int] | None = None, *changes: tuple[str, str], mode: str = ORACLE
) -> Plan:
    """The plan with stages that end at `ends`, on CPUs by number, each on its own without `devices`."""
    names = [f"cpu:{number}" for number in (range(len(ends)) if devices is None else devices)]
    placement = f"placement: {{devices: [{', '.join(names)}], layer_ends: [{', '.join(map(str, ends))}]}}"
    return plan(mode, (ONE, placement), *changes)


def engine_of(compiled: Plan, **options: object) -> Engine:
    return Engine(compiled, TINY, weights=weights(), **options)  # type: ignore[arg-type]
