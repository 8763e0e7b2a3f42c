"""Stored encodings: what codes and scales are worth, and that encoders give them back."""

import pytest
import torch

from dsv41c.kernels.reference.encodings import (
    Packed,
    decode_e2m1,
    decode_e4m3,
    decode_e8m0,
    dense,
    encode_fp4_32,
    encode_fp8_32x32,
    encode_fp8_row32,
)

E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]


def random(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_e8m0_bytes():
    values = decode_e8m0(torch.arange(256, dtype=torch.uint8))
    assert values[:255].tolist() == [2.0 ** (byte - 127) for byte in range(255)]
    assert values[255].isnan()


def test_e8m0_is_read_as_bytes():
    """2^-7 is byte 120; a numeric cast would give 0."""
    scale = torch.tensor([120], dtype=torch.uint8)
    assert decode_e8m0(scale.view(torch.float8_e8m0fnu)).item() == 2.0**-7


def test_e4m3_is_the_ocp_dialect():
    codes = torch.tensor([0x38, 0x7E, 0x01, 0xB8], dtype=torch.uint8)
    assert decode_e4m3(codes).tolist() == [1.0, 448.0, 2.0**-9, -1.0]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8])
def test_e2m1_low_nibble_first(dtype):
    """Byte k holds element 2k low and 2k+1 high; bit 3 is the sign. Codes (7i+3) mod 16 pack to a3 81 6f 4d ..."""
    packed = torch.tensor([0xA3, 0x81, 0x6F, 0x4D, 0x2B, 0x09, 0xE7, 0xC5], dtype=torch.uint8)
    codes = [(7 * i + 3) % 16 for i in range(16)]
    want = torch.tensor([-E2M1[code - 8] if code > 7 else E2M1[code] for code in codes])
    assert torch.equal(decode_e2m1(packed.view(dtype)[None])[0].view(torch.int32), want.view(torch.int32))


@pytest.mark.parametrize("shape", [(64, 96), (33, 70), (1, 1), (32, 31)])
def test_fp8_32x32_uses_the_scale_of_its_block(shape):
    rows, columns = shape
    codes = random(*shape).to(torch.float8_e4m3fn)
    grid = (-(-rows // 32), -(-columns // 32))
    scale = torch.randint(120, 135, grid, generator=torch.Generator().manual_seed(2)).to(torch.uint8)
    out = dense(Packed(codes, scale, "fp8_32x32"), torch.float32)
    for i in range(rows):
        for j in range(columns):
            assert out[i, j] == codes[i, j].float() * 2.0 ** (int(scale[i // 32, j // 32]) - 127)


def test_row_and_column_scales():
    codes = random(5, 64).to(torch.float8_e4m3fn)
    scale = torch.arange(120, 130, dtype=torch.uint8).reshape(5, 2)
    out = dense(Packed(codes.view(torch.uint8), scale, "fp8_row32"), torch.float32)
    packed = torch.randint(0, 256, (5, 32), generator=torch.Generator().manual_seed(3)).to(torch.uint8)
    fp4 = dense(Packed(packed, scale.view(torch.float8_e8m0fnu), "fp4_32"), torch.float32)
    for i in range(5):
        for j in range(64):
            factor = 2.0 ** (int(scale[i, j // 32]) - 127)
            assert out[i, j] == codes[i, j].float() * factor
            code = (int(packed[i, j // 2]) >> (4 * (j % 2))) & 15
            assert fp4[i, j] == (-1) ** (code >> 3) * E2M1[code & 7] * factor


@pytest.mark.parametrize(
    ("encode", "shape", "scales"),
    [
        (encode_fp8_32x32, (70, 33), (3, 2)),
        (encode_fp8_row32, (5, 64), (5, 2)),
        (encode_fp4_32, (5, 64), (5, 2)),
    ],
)
def test_encoders(encode, shape, scales):
    values = random(*shape) * 0.02
    values[0] = 0
    packed = encode(values)
    assert packed.scale.dtype == torch.uint8
    assert packed.scale.shape == scales
    out = dense(packed, torch.float32)
    # Half a step at the top of a block is 1/16 of its largest value in E4M3, and 1/6 in E2M1 (a step of 2 below 6).
    assert (out - values).abs().max() <= values.abs().max() * (1 / 6 if encode is encode_fp4_32 else 1 / 16)
    assert torch.equal(dense(packed, torch.bfloat16).float(), out)
    again = encode(out)
    assert torch.equal(dense(again, torch.float32), out)


def test_encoders_agree_with_fake_quantisation():
    from dsv41c.kernels.reference.fake_quant import fake_fp4, fake_fp8

    x = random(64, 96)
    assert torch.equal(dense(encode_fp4_32(x), torch.float32), fake_fp4(x))
    assert torch.equal(dense(encode_fp8_row32(x), torch.float32), fake_fp8(x))


def test_dense_takes_plain_tensors_and_refuses_unknown_encodings():
    assert dense(torch.ones(2, 2), torch.bfloat16).dtype == torch.bfloat16
    with pytest.raises(ValueError, match="fp8_64x64"):
        dense(
            Packed(torch.zeros(2, 2).to(torch.float8_e4m3fn), torch.zeros(1, 1, dtype=torch.uint8), "fp8_64x64"),
            torch.float32,
        )
