"""Launches of the decode kernels of the fused kinds, for `cross.py`."""

from __future__ import annotations

from cross_launch import Case, words


def decode(target: str) -> list[Case]:
    """Decode kernels of the fused kinds, with less unrolling than launches have, which takes the compiler long."""
    import torch  # noqa: F401
    import triton.language as tl

    from dsv41c.kernels.triton import attention, boundary, experts

    asm, packed = {"ASM": target.startswith("sm_")}, target in ("sm_89", "gfx942")
    mixes = {"D": 5120, "S": 4, "SLICES": 80}
    sums = "sums:*fp32 mix_scale:*fp32 mix_base:*fp32 pre:*fp32 post:*fp32 comb:*fp32 mix_norm_eps:fp32 mix_eps:fp32"
    streams = "streams:*bf16 post:*fp32 comb:*fp32 target:*bf16"
    turned = "frequency:*fp32 positions:*i64"
    pool = "*u8" if packed else "*bf16"
    routed = "planes4:*i32 weights:*fp32 ids:*i64 order:*i32 hidden4:*fp16 limit:fp32"
    tokens = 8 if target in ("sm_90", "gfx942") else 1
    vectors = f"vectors:{'*i32' if tokens == 1 else '*bf16'}"
    stored = "*fp16" if tokens == 1 else "*bf16"

    shards = {"RANK": 1 if packed else 0, "SHARDS": 2 if packed else 1, "CAPACITY": 163840}
    boxes = "addresses:*i64 sequence:*i32"

    def tile(units: int, warps: int, unroll: int, rows: int = 1) -> dict[str, int]:
        """For one vector units and a small unrolling; for several warps, as launches have it."""
        if tokens == 1:
            return {"T": 1, "BM": rows, "U": units, "UNROLL": 1}
        return {"T": 8, "BM": 16, "U": 4 * warps, "UNROLL": unroll}

    def warps(several: int) -> int:
        return 1 if tokens == 1 else several

    keys = 16 if target == "gfx1100" else 32  # its compiler takes three times as long for 32, as launches have
    return [
        Case(
            boundary.normed_input,
            words("streams:*bf16 pre:*fp32 pre_stride:i32 norm_weight:*fp32 fn:*fp32 normed:*bf16 planes8:*fp16")
            | words("planes4:*fp16 sums:*fp32 norm_eps:fp32"),
            mixes | {"SLICE": 64, "BLOCK": 8192, "PLANES8": True, "PLANES4": True},
            16,
        ),
        Case(
            attention.input_rows,
            words(f"wq_a:*i32 wq_a_scale:*u8 wkv:*i32 wkv_scale:*u8 {vectors} raw:*fp32 batch:i32"),
            {"QL": 1280, "C": 512, "D": 5120} | tile(32, 16, 2) | asm,
            warps(16),
        ),
        Case(
            attention.latents,
            words(f"raw:*fp32 q_norm:*fp32 kv_norm:*fp32 {turned} latent:*bf16 planes:*fp16 window_rows:*bf16")
            | words("q_eps:fp32 kv_eps:fp32"),
            {"QL": 1280, "C": 512, "R": 64, "QB": 2048, "FAKE": True, "PLANES": True},
        ),
        Case(
            attention.query_rows,
            words(f"wq_b:*i32 wq_b_scale:*u8 {vectors} {turned} query:*bf16 {sums} M:i32"),
            {"QL": 1280, "C": 512, "R": 64, "BATCH": tokens, "ITERATIONS": 20} | tile(16, 1, 4, 2) | mixes | asm,
            1,
            divisible=("M",),
        ),
        Case(
            attention.attend_split,
            words(f"query:*bf16 window_kv:{pool} window_rows:*bf16 compress_kv:{pool} topk:*i64 slots:*i64")
            | words(
                "positions:*i64 best:*fp32 weight:*fp32 value:*fp32 H:i32 G:i32 K:i32 ratio:i32 softmax_scale:fp32"
            ),
            {"SPLITS": 20, "W": 128, "C": 512, "HEADS": 16, "KEYS": keys, "PACKED": packed, "SELECTED": True},
            divisible=("H", "G", "K"),
        ),
        Case(
            attention.attend_join,
            words(f"best:*fp32 weight:*fp32 value:*fp32 sink:*fp32 {turned} slots:*i64 vectors:{stored}")
            | words(f"window_rows:*bf16 window_kv:{pool} sequence:*i32 H:i32"),
            {"SPLITS": 4, "W": 128, "C": 512, "R": 64, "GROUP": 8, "PACKED": packed, "KIND": tl.bfloat16}
            | {"SHARDS": shards["SHARDS"]},
            2,
            divisible=("H",),
        ),
        Case(
            attention.low_rank_rows,
            words(f"wo_a:*i32 wo_a_scale:*u8 {vectors} out:{stored} batch:i32 M:i32"),
            {"GROUPS": 8, "N": 4096, "RANK": 1024, "WIDTH": 8192, "KIND": tl.bfloat16} | tile(32, 8, 2) | asm,
            warps(8),
            divisible=("M",),
        ),
        Case(
            attention.output_rows,
            words(f"wo_b:*i32 wo_b_scale:*u8 {vectors} {streams} batch:i32 {boxes}"),
            {"N": 8192, "D": 5120, "S": 4} | tile(32, 8, 2, 2) | shards | asm,
            warps(8),
        ),
        Case(
            experts.route_rows,
            words("gate:*bf16 bias:*fp32 normed:*bf16 counters:*i32 scores:*fp32 weights:*fp32 ids:*i64 order:*i32")
            | words("gate_temp:fp32 route_scale:fp32 s1:*i32 s1_scale:*u8 s3:*i32 s3_scale:*u8")
            | words(f"{vectors} hidden8:{stored} limit:fp32"),
            {"E": 384, "BATCH": tokens, "A": 6, "D": 5120, "K": 512 * warps(2), "INTER": 2304}
            | {"LIMITED": True, "KIND": tl.bfloat16}
            | tile(32, 16, 2)
            | asm,
            warps(16),
        ),
        Case(
            experts.hidden_rows,
            words(f"w1:*i32 w1_scale:*u8 w3:*i32 w3_scale:*u8 {routed} s2:*i32 s2_scale:*u8")
            | words(f"hidden8:{'*i32' if tokens == 1 else '*bf16'} shared:*fp32 {sums} sequence:*i32"),
            {"BATCH": tokens, "A": 6, "INTER": 2304, "G": 32, "LIMITED": True, "ITERATIONS": 20, "KIND": tl.bfloat16}
            | {"SHARDS": shards["SHARDS"]}
            | tile(16, 1, 1, 2)
            | {"UNROLL8": 2 if tokens > 1 else 1}
            | mixes
            | asm,
            1,
        ),
        Case(
            experts.down_rows,
            words(f"w2:*i32 w2_scale:*u8 hidden4:*i32 ids:*i64 shared:*fp32 {streams} {boxes}"),
            {"A": 6, "D": 5120, "INTER": 2304, "S": 4, "BM": 1, "G": 32, "UNROLL": 1, "TOKEN_FIRST": tokens > 1}
            | shards
            | asm,
            1,
        ),
        Case(
            experts.head_rows,
            words("head:*bf16 normed:*bf16 logits:*fp32 V:i32"),
            {"D": 5120, "BM": 4, "T": tokens, "K": 256, "UNROLL": 2},
            1,
            divisible=("V",),
        ),
    ]
