"""Number formats inside kernels, bit for bit against torch and the reference, over every code and every tie."""

import pytest
import torch
import triton
import triton.language as tl

from dsv41c.kernels.reference.encodings import decode_e2m1, decode_e4m3, decode_e8m0
from dsv41c.kernels.reference.fake_quant import E4M3_MAX, FP4_MAX, FP8_FLOOR, power_of_two_scale, round_e2m1
from dsv41c.kernels.triton import common


@triton.jit
def apply(x, y, N: tl.constexpr, FUNCTION: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(y + at, FUNCTION(tl.load(x + at)))


def result(function, x, dtype=torch.float32):
    size = triton.next_power_of_2(len(x))
    y = torch.zeros(size, dtype=dtype)
    apply[(1,)](torch.nn.functional.pad(x, (0, size - len(x))), y, size, function)
    return y[: len(x)]


def bits(x):
    return torch.where(x.isnan(), torch.tensor(float("nan")), x).view(torch.int32)


BYTES = torch.arange(256).to(torch.uint8)


def test_every_code():
    assert torch.equal(bits(result(common.e4m3_value, BYTES)), bits(decode_e4m3(BYTES)))
    assert torch.equal(bits(result(common.e8m0_value, BYTES[:255])), bits(decode_e8m0(BYTES[:255])))
    low = decode_e2m1(BYTES[:16])[0::2]
    assert torch.equal(bits(result(common.e2m1_value, BYTES[:16])), bits(low))


def values(codes):
    """Magnitudes, the middles between neighbours, and both sides of each, of both signs."""
    codes = codes[codes.isfinite() & (codes >= 0)].unique()
    middle = (codes[1:] + codes[:-1]) / 2
    all_of_them = torch.cat([codes, middle])
    near = torch.cat([all_of_them, torch.nextafter(all_of_them, codes[-1:]), torch.nextafter(all_of_them, codes[:1])])
    tiny = torch.tensor([1e-45, 1e-40, 1e-12])
    near = torch.cat([near, tiny])
    return torch.cat([near, -near])


def test_rounding_to_e4m3():
    x = torch.cat([values(decode_e4m3(BYTES)), torch.tensor([float("nan")])])
    expected = x.to(torch.float8_e4m3fn)
    assert torch.equal(result(common.e4m3_bits, x, torch.int32)[:-1], expected[:-1].view(torch.uint8).to(torch.int32))
    assert torch.equal(bits(result(common.round_e4m3, x)), bits(expected.to(torch.float32)))


def test_rounding_to_e2m1():
    x = torch.cat([values(decode_e2m1(BYTES[:16])), torch.tensor([float("nan")])])
    assert torch.equal(bits(result(common.round_e2m1, x)), bits(round_e2m1(x)))


@pytest.mark.parametrize(
    ("function", "largest", "floor"),
    [(common.fp8_scale, E4M3_MAX, FP8_FLOOR), (common.fp4_scale, FP4_MAX, FP4_MAX * 2.0**-126)],
)
def test_scales_of_blocks(function, largest, floor):
    powers = torch.tensor(largest) * 2.0 ** torch.arange(-118, 110).to(torch.float32)
    x = torch.cat([powers, torch.nextafter(powers, powers * 2), torch.nextafter(powers, powers / 2)])
    x = torch.cat([x, torch.rand(500) * 1e3, torch.tensor([0.0, 1e-4, 1e-45, floor, float("inf"), float("nan")])])
    assert torch.equal(bits(result(function, x)), bits(power_of_two_scale(x, largest, floor)))


@triton.jit
def narrow(x, y, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(y + at, tl.load(x + at).to(tl.bfloat16))


@triton.jit
def product(x, y, z, N: tl.constexpr):
    at = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    tl.store(z + at, tl.dot(tl.load(x + at), tl.load(y + at)))


def test_the_interpreter_rounds_and_multiplies_bf16_as_hardware_does():
    x = torch.cat([torch.randn(1000), torch.tensor([1 + 2**-8, 1 + 3 * 2**-8, 255.75, 2**-130, 3e38, float("inf")])])
    x = torch.nn.functional.pad(x, (0, 18))
    y = torch.zeros(1024, dtype=torch.bfloat16)
    narrow[(1,)](x, y, 1024)
    assert torch.equal(y, x.to(torch.bfloat16))
    a, b = torch.randn(2, 16, 16).to(torch.bfloat16)
    c = torch.zeros(16, 16)
    product[(1,)](a, b, c, 16)
    assert torch.allclose(c, a.float() @ b.float(), atol=1e-5)
