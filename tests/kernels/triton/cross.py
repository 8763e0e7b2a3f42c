"""Compiles kernels for a GPU that is not there: `python cross.py TARGET [GROUP ...]`, a line a kernel.

For an NVIDIA and an AMD target at Flash widths, for the others at smaller ones, which take half the time.
It needs a process of its own: the other tests run kernels in Triton's interpreter, which cannot compile. Authors of
kernels add a function to `CASES` that gives, for a target, one representative launch a kernel.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from cross_decode import decode
from cross_launch import SHARED, WIDE, Case, build, narrowed, words


def prefill(target: str) -> list[Case]:
    """Kernels over many rows."""
    import torch  # noqa: F401  (the kernels' modules hold host functions too)

    from dsv41c.kernels.triton import attend_rows, epilogues, grouped, matmul, mix_rows

    asm, shared = target.startswith("sm_"), SHARED[target]
    # The compiler for gfx1100 takes a minute for the larger tiles: the ones for few rows stand for them.
    tokens = 16 if target == "gfx1100" else 8192
    m, (g, down) = matmul.tile_for(tokens, shared), grouped.tiles_for(6 * tokens, 128, shared)
    a, packed = attend_rows.tile_for(64, 512, shared), target in ("sm_89", "gfx942")
    pool = "*u8" if packed else "*bf16"

    def product(tile: grouped.Tile) -> dict[str, Any]:
        return {"BN": tile.rows, "BT": tile.pairs, "BK": tile.columns, "EVEN": True, "ASM": asm}

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
            {"LIMITED": True} | product(g),
            g.warps,
            g.stages,
            ("D", "INTER"),
        ),
        Case(
            grouped.expert_down,
            words("hidden:*bf16 w2:*u8 s2:*u8 order:*i32 tile_expert:*i32 out:*bf16 D:i32 INTER:i32"),
            product(down),
            down.warps,
            down.stages,
            ("D", "INTER"),
        ),
        Case(
            grouped.sum_pairs,
            words("parts:*bf16 ids:*i64 shared:*bf16 out:*bf16 D:i32"),
            {"A": 6, "AB": 8, "BLOCK": 1024, "SHARED": True},
        ),
        Case(
            grouped.swiglu_rows,
            words("gate:*bf16 up:*bf16 out:*bf16 size:i32 limit:fp32"),
            {"LIMITED": True, "BLOCK": 1024},
        ),
        Case(
            attend_rows.attend_token,
            words(f"query:*bf16 ring:{pool} rows:*bf16 pool:{pool} topk:*i64 slots:*i64 positions:*i64 sink:*fp32")
            | words("frequency:*fp32 out:*bf16 tokens:i32 heads:i32 capacity:i32 selected:i32 ratio:i32")
            | words("begin:i32 softmax_scale:fp32"),
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


def index_path(target: str) -> list[Case]:
    """Compressor, indexer and selections at decode, and scores of many tokens."""
    import torch  # noqa: F401

    from dsv41c.kernels.triton import compress, index, radix, score, select

    session = "slots:*i64 positions:*i64"
    scored = f"query:*bf16 weight:*bf16 keys:*bf16 candidates:*i1 {session}"
    of_keys = {"H": 32, "HP": 32, "C": 128, "WIDTH": 128, "RATIO": 1, "BLOCK_SIZE": 8, "PACKED": False}
    chunks = {"RATIO": 1, "BLOCK_SIZE": 8, "LEAST": 256}
    return [
        Case(
            compress.project_rows,
            words("wkv:*bf16 wgate:*bf16 x:*bf16 raw:*fp32"),
            {"M": 512, "D": 5120, "GATED": True, "T": 1, "K": 1024},
            1,
        ),
        Case(
            compress.finish_groups,
            words(f"kv:*fp32 score:*fp32 stride:i32 tail:*fp32 norm_weight:*fp32 frequency:*fp32 {session}")
            | words("latent:*bf16 pool:*u8 tokens:i32 capacity:i32 spare:i32 eps:fp32"),
            {"C": 512, "R": 64, "WIDTH": 288, "RATIO": 2, "MODE": 2},
            divisible=("stride",),
        ),
        Case(
            index.store_keys,
            words(f"rows:*bf16 wk:*bf16 k_norm:*fp32 frequency:*fp32 {session} pool:*bf16 capacity:i32 spare:i32")
            | words("eps:fp32"),
            {"C": 128, "N": 512, "R": 64, "WIDTH": 128, "RATIO": 2, "MODE": 1, "K": 128, "PROJECT": True},
            8,
        ),
        Case(
            index.make_queries,
            words("latent:*bf16 codes:*u8 scales:*u8 x:*bf16 weights_proj:*bf16 frequency:*fp32 positions:*i64")
            | words("query:*bf16 weight:*bf16 tokens:i32 factor:fp32"),
            {"H": 32, "C": 128, "N": 1280, "D": 5120, "R": 64, "MODE": 1, "K": 256, "KW": 1024}
            | {"FP8": True, "PROJECT": True},
        ),
        Case(
            score.score_tiles,
            words(f"{scored} out:*fp32 capacity:i32 start:i32 tokens:i32 rows:i32 count:i32 blocks:i32")
            | {"keys": "*u8"},
            of_keys | {"WIDTH": 68, "PACKED": True, "MASKED": True, "KEYS": False, "BN": 128, "BT": 16},
        ),
        Case(
            select.score_and_count,
            words(f"{scored} scores:*i16 counts:*i32 capacity:i32 count:i32 blocks:i32"),
            of_keys | {"MASKED": True, "SOURCE": True, "BN": 64, "LEAST": 256, "STAGES": 4 if target == "sm_90" else 2},
        ),
        Case(
            select.count_lower,
            words("scores:*i16 positions:*i64 counts:*i32 lower:*i32 above:*i32 count:i32 wanted:i32")
            | words("wanted_blocks:i32"),
            chunks,
        ),
        Case(
            select.write_selection,
            words("scores:*i16 positions:*i64 lower:*i32 above:*i32 topk:*i64 kept:*u8 count:i32 wanted:i32")
            | words("wanted_blocks:i32 width:i32 blocks:i32"),
            chunks | {"CHUNKS": 128},
        ),
        Case(
            radix.select_rows,
            words("scores:*i16 positions:*i64 out:*u8 start:i32 tokens:i32 rows:i32 count:i32 wanted:i32 width:i32"),
            {"RATIO": 1, "STEPPED": True, "BLOCKS": True, "SIZE": 8, "WIDE": False, "BLOCK": 512},
        ),
    ]


def entry(target: str) -> list[Case]:
    """Embedding and engram."""
    import torch  # noqa: F401

    from dsv41c.kernels.triton import embed, engram

    return [
        Case(
            embed.embed_rows,
            words("ids:*i64 table:*bf16 streams:*bf16 pre:*fp32 rows:i32"),
            {"D": 5120, "S": 4, "BLOCK": 1024},
        ),
        Case(
            engram.hash_rows,
            words("ids:*i64 history:*i64 token_map:*i64 multipliers:*i64 primes:*i64 offsets:*i64 slots:*i64")
            | words("positions:*i64 out:*i64 tokens:i32 pad:i32"),
            {"N": 4, "E": 2, "COLUMNS": 24, "BT": 16},
        ),
        Case(
            engram.gather_rows,
            words("ids:*i64 codes:*u8 scale:*u8 out:*bf16 columns:i32 stride:i32 first:i32"),
            {"CODES_PITCH": 264, "SCALE_PITCH": 264, "C": 256, "BLOCK": 256},
            1,
        ),
        Case(engram.to_planes, words("x:*bf16 planes:*fp16"), {"N": 6144, "BLOCK": 1024}),
        Case(
            engram.project_rows,
            words(f"codes:*i32 scales:*u8 vectors:{'*i32' if target in WIDE else '*bf16'} out:*bf16 count:i32"),
            {"M": 25600, "N": 6144, "ASM": target.startswith("sm_")}
            | ({"BM": 2, "T": 1, "U": 32, "UNROLL": 1} if target in WIDE else {"BM": 16, "T": 8, "U": 16, "UNROLL": 4}),
            1 if target in WIDE else 4,
        ),
        Case(
            engram.gate_streams,
            words("streams:*bf16 projected:*bf16 q_weight:*fp32 k_weight:*fp32 out:*bf16 gates:*fp32 eps:fp32"),
            {"S": 4, "D": 5120, "BLOCK": 1024},
        ),
    ]


CASES: dict[str, Callable[[str], list[Case]]] = {
    cases.__name__: cases for cases in (prefill, index_path, entry, decode)
}


def main(target: str, *groups: str) -> int:
    failed = 0
    for group in groups or CASES:
        for wide in CASES[group](target):
            case = wide if target in WIDE else narrowed(wide)
            began = sum(os.times()[:4])
            try:
                shared = build(case, target).metadata.shared
                fault = "" if shared <= SHARED[target] else "more shared memory than there is"
            except Exception as error:
                shared, fault = 0, f"{type(error).__name__}: {error}"
            failed += bool(fault)
            seconds = sum(os.times()[:4]) - began
            print(
                f"{group} {case.kernel.__name__}: {seconds:.1f} s, {shared} bytes of shared memory {fault}", flush=True
            )
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
