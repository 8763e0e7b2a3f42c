"""What compiling a kernel for a GPU that is not there takes: a launch's types and constants, and the GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

TARGETS = {
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_89": GPUTarget("cuda", 89, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
    "gfx1100": GPUTarget("hip", "gfx1100", 32),
}
# Bytes of shared memory that a program may take.
SHARED = {"sm_90": 227 * 1024, "sm_89": 99 * 1024, "gfx942": 64 * 1024, "gfx1100": 64 * 1024}
# Compiled for at Flash widths. The others are of the same makers: every kernel compiles for them with smaller widths.
WIDE = ("sm_90", "gfx942")
_SMALLER = {8192: 1024, 5120: 640, 4096: 512, 2304: 288, 2048: 256, 1280: 160, 1024: 128, 512: 128}


@dataclass(frozen=True)
class Case:
    """A launch: types of the run-time arguments in order of the kernel's, by name, and its constants.

    `types`: `*bf16`, `i32`, `fp32`, ... as Triton writes them. Pointers, and arguments named in `divisible`, count as
    multiples of 16, as Triton finds at a launch.
    """

    kernel: Any
    types: Mapping[str, str]
    constants: Mapping[str, Any]
    warps: int = 4
    stages: int = 3
    divisible: tuple[str, ...] = field(default=())


def words(text: str) -> dict[str, str]:
    """Types from `name:type` words."""
    return dict(word.split(":") for word in text.split())


def narrowed(case: Case) -> Case:
    """The same launch with an eighth of the widths, a quarter of a head."""
    return replace(case, constants={name: _smaller(value) for name, value in case.constants.items()})


def _smaller(value: Any) -> Any:
    return _SMALLER.get(value, value) if type(value) is int else value


def build(case: Case, target: str) -> Any:
    """The compiled kernel; raises what Triton raises."""
    names = case.kernel.arg_names
    given = case.types.keys() | case.constants.keys()
    assert set(names) == given, f"{case.kernel.__name__}: {set(names) ^ given}"
    aligned = {name for name in names if name in case.divisible or case.types.get(name, "").startswith("*")}
    source = ASTSource(
        fn=case.kernel,
        signature={name: case.types.get(name, "constexpr") for name in names},
        constexprs={(names.index(name),): value for name, value in case.constants.items()},
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name in aligned},
    )
    options = {"num_warps": case.warps, "num_stages": case.stages}
    return triton.compile(source, target=TARGETS[target], options=options)
