"""Tiles of quantised weights as bf16: the operands of matrix products over many rows.

A scale is a power of two, so that a weight is exact in bf16 within its exponent range. `ASM` decodes four codes at a
time in packed bf16 arithmetic (sm_80 and later; no FP8 instructions); the other branch is the same by plain operations.
Both first undo how far the placed bits are from the value, then apply the scale: one factor for both could overflow.
"""

from __future__ import annotations

import triton
import triton.language as tl

from dsv41c.kernels.triton.common import e2m1_value, e4m3_small


@triton.jit
def e8m0_bf16(scale):
    """2^(byte-127) in bf16 of E8M0 bytes; byte 0 is the subnormal 2^-127. 255 (NaN) is refused at binding."""
    return tl.maximum(scale.to(tl.int32) << 7, 1 << 6).to(tl.int16).to(tl.bfloat16, bitcast=True)


@triton.jit
def spread(scale, ROWS: tl.constexpr, GROUPS: tl.constexpr, WIDTH: tl.constexpr):
    """[ROWS, GROUPS] as [ROWS, GROUPS * WIDTH], each element WIDTH times in a row."""
    return tl.reshape(tl.broadcast_to(scale[:, :, None], [ROWS, GROUPS, WIDTH]), [ROWS, GROUPS * WIDTH])


@triton.jit
def fp8_tile(codes, scale, ASM: tl.constexpr):
    """bf16 of E4M3 codes uint8 [A, B] and their scales bf16 [A, B]. 127 and 255 (NaN) read as numbers."""
    if ASM:
        # A code s eeee mmm moves to the bf16 s 0000eeee mmm0000, which is 2^120 too small.
        return tl.inline_asm_elementwise(
            """{ .reg .b32 t, u, c, z; mov.b32 c, 0x7B807B80; mov.b32 z, 0x80008000;
            prmt.b32 t, $2, 0, 0x1404; shr.b32 u, t, 4; and.b32 u, u, 0x07F007F0; lop3.b32 t, t, z, u, 0xEA;
            fma.rn.bf16x2 t, t, c, z; fma.rn.bf16x2 $0, t, $3, z;
            prmt.b32 t, $2, 0, 0x3424; shr.b32 u, t, 4; and.b32 u, u, 0x07F007F0; lop3.b32 t, t, z, u, 0xEA;
            fma.rn.bf16x2 t, t, c, z; fma.rn.bf16x2 $1, t, $4, z; }""",
            "=&r,=r,r,r,r",
            [codes, scale],
            dtype=tl.bfloat16,
            is_pure=True,
            pack=4,
        )
    else:
        return (e4m3_small(codes) * 256.0 * scale.to(tl.float32)).to(tl.bfloat16)


@triton.jit
def fp4_tiles(codes, scale, ASM: tl.constexpr):
    """Two bf16 tiles of E2M1 codes, two a byte uint8 [A, B], and scales bf16 [A, B]: low nibbles, high nibbles."""
    if ASM:
        # A nibble s eem moves to the bf16 s 000000ee m000000, which is 2^126 too small.
        return tl.inline_asm_elementwise(
            """{ .reg .b32 t, u, v, c, z; mov.b32 c, 0x7E807E80; mov.b32 z, 0x80008000;
            prmt.b32 t, $4, 0, 0x1404;
            shr.b32 u, t, 2; and.b32 u, u, 0x01C001C0; shl.b32 v, t, 4; lop3.b32 v, v, z, u, 0xEA;
            shr.b32 u, t, 6; and.b32 u, u, 0x01C001C0; lop3.b32 u, t, z, u, 0xEA;
            fma.rn.bf16x2 v, v, c, z; fma.rn.bf16x2 $0, v, $5, z; fma.rn.bf16x2 u, u, c, z; fma.rn.bf16x2 $2, u, $5, z;
            prmt.b32 t, $4, 0, 0x3424;
            shr.b32 u, t, 2; and.b32 u, u, 0x01C001C0; shl.b32 v, t, 4; lop3.b32 v, v, z, u, 0xEA;
            shr.b32 u, t, 6; and.b32 u, u, 0x01C001C0; lop3.b32 u, t, z, u, 0xEA;
            fma.rn.bf16x2 v, v, c, z; fma.rn.bf16x2 $1, v, $6, z; fma.rn.bf16x2 u, u, c, z; fma.rn.bf16x2 $3, u, $6, z;
            }""",
            "=&r,=&r,=&r,=&r,r,r,r",
            [codes, scale],
            dtype=(tl.bfloat16, tl.bfloat16),
            is_pure=True,
            pack=4,
        )
    else:
        byte = codes.to(tl.int32)
        wide = scale.to(tl.float32)
        return (
            (e2m1_value(byte & 15) * wide).to(tl.bfloat16),
            (e2m1_value((byte >> 4) & 15) * wide).to(tl.bfloat16),
        )


@triton.jit
def three_parts(value):
    """Three bf16 whose sum is an fp32 value to a bit or so: with bf16, their products keep fp32 accuracy."""
    first = value.to(tl.bfloat16)
    rest = value - first.to(tl.float32)
    second = rest.to(tl.bfloat16)
    return first, second, (rest - second.to(tl.float32)).to(tl.bfloat16)
