"""Compiles kernels at Flash widths for a GPU that is not there: `python cross.py TARGET`, a line a kernel.

It needs a process of its own: the other tests run kernels in Triton's interpreter, which cannot compile. Authors of
kernels add a function to `CASES` that gives, for a target, one representative launch a kernel.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
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


def prefill(target: str) -> list[Case]:
    """Kernels over many rows."""
    import torch  # noqa: F401  (the kernels' modules hold host functions too)

    from dsv41c.kernels.triton import attend_rows, epilogues, grouped, matmul, mix_rows

    asm, shared = target.startswith("sm_"), SHARED[target]
    # The compiler for gfx1100 takes a minute for the larger tiles: the ones for few rows stand for them.
    tokens = 16 if target == "gfx1100" else 8192
    m, g, a = matmul.tile_for(tokens, shared), grouped.tile_for(6 * tokens, 128, shared), attend_rows.tile_for
    a, packed = a(64, 512, shared), target in ("sm_90", "gfx942")
    pool = "*u8" if packed else "*bf16"
    product = {"BN": g.rows, "BT": g.pairs, "BK": g.columns, "EVEN": True, "ASM": asm}
    of_experts = {"warps": g.warps, "stages": g.stages, "divisible": ("D", "INTER")}
    return [
        Case(
            matmul.gemm,
            words("x:*bf16 weight:*u8 scale:*u8 y:*bf16 n:i32 M:i32 K:i32 x_stride:i32 x_group:i32 y_stride:i32")
            | words("y_part:i32 scale_stride:i32 k_part:i32"),
            {"KIND": "fp8", "BN": m.rows, "BT": m.tokens, "BK": m.columns, "EVEN": True, "ASM": asm},
            m.warps,
            m.stages,
            ("M", "K", "x_stride", "x_group", "y_stride", "y_part", "k_part"),
        ),
        Case(
            matmul.decode_fp8,
            words("codes:*u8 scale:*u8 out:*bf16 M:i32 K:i32 scale_stride:i32"),
            {"BM": 32, "BK": 256, "ASM": asm},
            divisible=("K",),
        ),
        Case(matmul.add_parts, words("parts:*fp32 y:*bf16 count:i32 size:i32"), {"BLOCK": 1024}),
        Case(grouped.count_pairs, words("ids:*i64 counts:*i32 pairs:i32"), {"BLOCK": 2048}),
        Case(
            grouped.place_pairs,
            words("ids:*i64 counts:*i32 order:*i32 tile_expert:*i32 pairs:i32 experts:i32 tiles:i32"),
            {"BT": g.pairs, "EB": 128, "BLOCK": 2048},
        ),
        Case(
            grouped.expert_hidden,
            words("x:*bf16 w1:*u8 s1:*u8 w3:*u8 s3:*u8 order:*i32 tile_expert:*i32 shares:*fp32 hidden:*bf16")
            | words("active:i32 limit:fp32 D:i32 INTER:i32"),
            {"LIMITED": True} | product,
            **of_experts,
        ),
        Case(
            grouped.expert_down,
            words("hidden:*bf16 w2:*u8 s2:*u8 order:*i32 tile_expert:*i32 out:*bf16 D:i32 INTER:i32"),
            product,
            **of_experts,
        ),
        Case(
            grouped.sum_pairs,
            words("parts:*bf16 ids:*i64 shared:*bf16 out:*bf16 D:i32"),
            {"A": 6, "AB": 8, "BLOCK": 1024, "SHARED": True},
        ),
        Case(grouped.even_first, words("x:*bf16 out:*bf16 D:i32"), {"BLOCK": 1024}),
        Case(
            grouped.swiglu, words("gate:*bf16 up:*bf16 out:*bf16 size:i32 limit:fp32"), {"LIMITED": True, "BLOCK": 1024}
        ),
        Case(
            attend_rows.attend_token,
            words(f"query:*bf16 ring:{pool} rows:*bf16 pool:{pool} topk:*i64 slots:*i64 positions:*i64 sink:*fp32")
            | words("frequency:*fp32 out:*bf16 tokens:i32 heads:i32 capacity:i32 selected:i32 ratio:i32")
            | words("softmax_scale:fp32"),
            {"W": 128, "C": 512, "CB": 512, "R": 64, "BH": a.heads, "KEYS": a.keys, "SB": 512}
            | {"RING_PACKED": packed, "POOL_PACKED": packed, "ASM": asm},
            a.warps,
            a.stages,
            ("tokens", "heads", "selected"),
        ),
        Case(
            mix_rows.mix_sums,
            words("streams:*bf16 fn:*fp32 sums:*fp32 squares:*fp32 n:i32 K:i32 slice_columns:i32"),
            {"MIXES": 24, "ROWS": 32, "BT": 64, "BK": 64, "EVEN": True},
            divisible=("K", "slice_columns"),
        ),
        Case(
            mix_rows.mix_coefficients,
            words("sums:*fp32 squares:*fp32 scale:*fp32 base:*fp32 pre:*fp32 post:*fp32 comb:*fp32 n:i32 K:i32")
            | words("slices:i32 iterations:i32 eps:fp32 norm_eps:fp32"),
            {"S": 4, "SB": 4, "ROWS": 32, "BT": 16},
            warps=2,
        ),
        Case(
            mix_rows.collapse_norm,
            words("streams:*bf16 pre:*fp32 weight:*fp32 normed:*bf16 halves:*bf16 D:i32 eps:fp32"),
            {"S": 4, "BLOCK": 4096, "HALVES": True},
            warps=8,
        ),
        Case(
            mix_rows.expand_streams,
            words("out:*bf16 streams:*bf16 post:*fp32 comb:*fp32 target:*bf16 D:i32"),
            {"S": 4, "SB": 4, "BLOCK": 1024},
        ),
        Case(epilogues.norm_row, words("x:*bf16 weight:*fp32 out:*bf16 D:i32 eps:fp32"), {"BLOCK": 2048}),
        Case(
            epilogues.rope_heads,
            words("x:*bf16 positions:*i64 frequency:*fp32 tokens:i32 heads:i32 C:i32"),
            {"R": 64, "RB": 32, "BH": 16},
            warps=2,
        ),
        Case(
            epilogues.window_row,
            words("x:*bf16 weight:*fp32 positions:*i64 frequency:*fp32 out:*bf16 tokens:i32 eps:fp32"),
            {"C": 512, "CB": 512, "R": 64, "FAKE": True},
            warps=2,
        ),
        Case(
            epilogues.choose_experts,
            words("logits:*fp32 bias:*fp32 weights:*fp32 ids:*i64 experts:i32 gate_temp:fp32 route_scale:fp32"),
            {"A": 6, "AB": 8, "EB": 512},
        ),
    ]


CASES: list[Callable[[str], list[Case]]] = [prefill]


def main(target: str) -> int:
    failed = 0
    for cases in CASES:
        for case in cases(target):
            try:
                shared = build(case, target).metadata.shared
                fault = "" if shared <= SHARED[target] else "more shared memory than there is"
            except Exception as error:
                shared, fault = 0, f"{type(error).__name__}: {error}"
            failed += bool(fault)
            print(f"{cases.__name__} {case.kernel.__name__}: {shared} bytes of shared memory {fault}", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
