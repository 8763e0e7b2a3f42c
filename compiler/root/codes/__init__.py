"""The table of diagnostic codes: `DSV` and three digits, grouped, never reused.

1xx text (15x: what was asked for on the command line), 2xx schema (24x: cuts), 3xx layer map, 4xx state flow, 5xx
placement and memory, 6xx lowering and kernels, 7xx weights (75x: writing them), 80x to 83x plan (83x: memory it needs),
84x what goes wrong in a step, 85x and 86x sessions and text at run time, 87x captured work, 88x benchmarks, 89x several
processes, 9xx internal. Each group is a module with its `CODES`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from dsv41c.codes import (
    benchmarks,
    cuts,
    devices,
    estimates,
    faults,
    gguf,
    layer_map,
    lowering,
    placement,
    plan,
    processes,
    schema,
    sessions,
    state_flow,
    text,
    usage,
    weights,
    writing,
)
from dsv41c.codes.code import Code

GROUPS = (
    text,
    usage,
    schema,
    cuts,
    layer_map,
    state_flow,
    placement,
    lowering,
    weights,
    writing,
    gguf,
    plan,
    estimates,
    faults,
    sessions,
    devices,
    benchmarks,
    processes,
)

TABLE: Mapping[str, Code] = MappingProxyType({code.code: code for group in GROUPS for code in group.CODES})

__all__ = ["GROUPS", "TABLE", "Code"]
