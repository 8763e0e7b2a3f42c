"""Products over many rows against the reference's, with f32 as the arbiter."""

import pytest
import torch

from dsv41c.kernels.reference.encodings import Packed, dense, encode_fp8_32x32
from dsv41c.kernels.reference.output import output
from dsv41c.kernels.triton import matmul as module
from dsv41c.kernels.triton.matmul import dequantise, grouped_output, matmul


def random(*shape, seed=0, dtype=torch.bfloat16):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def packed(rows, columns, seed=1):
    """Random codes and scales over a wide range, the scale of byte 0 among them; no NaN."""
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 256, (rows, columns), generator=generator).to(torch.uint8)
    codes[(codes & 127) == 127] = 126
    scale = torch.randint(118, 130, (-(-rows // 32), -(-columns // 32)), generator=generator).to(torch.uint8)
    return Packed(codes, scale, "fp8_32x32")


def test_dequantised_is_exact():
    weight = packed(70, 330)
    weight.scale[0, 0], weight.scale[1, 1] = 0, 240
    assert torch.equal(dequantise(weight), dense(weight, torch.bfloat16))


@pytest.mark.parametrize("limit", [0, 1 << 30], ids=["decoded once", "decoded in the loop"])
@pytest.mark.parametrize(("n", "rows", "columns"), [(1, 64, 128), (9, 40, 96), (33, 70, 600), (67, 129, 64)])
@pytest.mark.parametrize("kind", ["fp8", "bf16", "f32"])
def test_product(monkeypatch, kind, n, rows, columns, limit):
    monkeypatch.setattr(module, "DECODE_ONCE_ROWS", limit)
    x = random(n, columns)
    weight = {"fp8": packed(rows, columns), "bf16": random(rows, columns, seed=2)}.get(kind)
    weight = random(rows, columns, seed=2, dtype=torch.float32) if weight is None else weight
    exact = x.double() @ dense(weight, torch.float32).double().T
    largest = x.double().abs() @ dense(weight, torch.float32).double().abs().T
    assert ((matmul(x, weight, torch.float32) - exact).abs() <= 1e-6 * largest).all()
    assert ((matmul(x, weight, torch.bfloat16) - exact).abs() <= 1e-6 * largest + exact.abs() / 256).all()


def test_rows_may_lie_apart():
    x = random(5, 200)[:, 30:126]
    weight = encode_fp8_32x32(random(33, 96, seed=3))
    exact = x.float() @ dense(weight, torch.float32).T
    assert torch.allclose(matmul(x, weight, torch.float32), exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("limit", [0, 1 << 30], ids=["decoded once", "decoded in the loop"])
@pytest.mark.parametrize("stored", ["fp8", "bf16"])
def test_grouped_output(monkeypatch, stored, limit):
    monkeypatch.setattr(module, "DECODE_ONCE_ROWS", limit)
    n, heads, channels, groups, rank, dim = 11, 4, 32, 2, 24, 50
    attended = random(n, heads, channels)
    wo_a, wo_b = random(groups * rank, heads // groups * channels, seed=5), random(dim, groups * rank, seed=6)
    if stored == "fp8":
        wo_a, wo_b = encode_fp8_32x32(wo_a), encode_fp8_32x32(wo_b)
    exact = output(
        attended[None].float(), dense(wo_a, torch.float32), dense(wo_b, torch.float32), groups=groups,
        activation_quant="none",
    )[0]  # fmt: skip
    expected = output(attended[None], wo_a, wo_b, groups=groups, activation_quant="none")[0]
    error = (grouped_output(attended, wo_a, wo_b, groups, attended.dtype).float() - exact).norm()
    assert error <= 1.2 * (expected.float() - exact).norm()
