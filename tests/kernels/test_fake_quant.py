"""The three rounding rules, bit for bit: worked values, and a scalar version written with Python numbers."""

import math
from bisect import bisect_left
from fractions import Fraction
from itertools import pairwise

import pytest
import torch

from dsv41c.kernels.reference.fake_quant import fake_fp4, fake_fp4_e4m3, fake_fp8

WORKED = [0.1, -0.2, 0.33, 1.0, -3.7, 2.5, 0.01, 5.5]
E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
E4M3 = [m * 2.0**-9 for m in range(8)] + [(8 + m) * 2.0 ** (e - 10) for e in range(1, 16) for m in range(8)][:-1]


def f32(number):
    """A number as f32 holds it; past the largest one, infinity."""
    return torch.tensor(number, dtype=torch.float64).to(torch.float32).item()


def nearest(magnitude, grid):
    """The grid value nearest to a magnitude within the grid, ties to the even place: grids are codes in order."""
    exact, above = Fraction(magnitude), bisect_left(grid, magnitude)
    around = range(max(above - 1, 0), min(above + 1, len(grid)))
    place = min(around, key=lambda i: (abs(Fraction(grid[i]) - exact), i % 2))
    return grid[place]


def covering_power(value):
    """The smallest power of two that is at least value (> 0)."""
    mantissa, exponent = math.frexp(value)
    return 2.0 ** (exponent - 1 if mantissa == 0.5 else exponent)


def scalar(values, grid, floor, scale_of):
    """Fake quantisation of one block, a number at a time; each f32 operation rounds once."""
    largest = max(max(abs(value) for value in values), f32(floor))
    scale = scale_of(f32(largest / grid[-1]))
    out = []
    for value in values:
        magnitude = min(f32(abs(value) / scale), grid[-1])
        out.append(math.copysign(f32(nearest(magnitude, grid) * scale), value))
    return out


RULES = {
    "fp8": (fake_fp8, 32, lambda block: scalar(block, E4M3, 1e-4, covering_power)),
    "fp4": (fake_fp4, 32, lambda block: scalar(block, E2M1, 6 * 2.0**-126, covering_power)),
    "fp4_e4m3": (fake_fp4_e4m3, 16, lambda b: scalar(b, E2M1, 6 * 2.0**-9, lambda s: nearest(min(s, 448.0), E4M3))),
}


def same_bits(ours, theirs):
    return torch.equal(ours.view(torch.int32), torch.tensor(theirs, dtype=torch.float32).view(torch.int32))


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (fake_fp8, [0.1015625, -0.203125, 0.34375, 1.0, -3.75, 2.5, 0.009765625, 5.5]),
        (fake_fp4, [0.0, -0.0, 0.5, 1.0, -4.0, 2.0, 0.0, 6.0]),
        (fake_fp4_e4m3, [0.0, -0.0, 0.46875, 0.9375, -3.75, 2.8125, 0.0, 5.625]),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_worked_values(rule, expected, dtype):
    out = rule(torch.tensor([[*WORKED, *[0.0] * 24]], dtype=torch.float32).to(dtype))
    assert out.dtype == dtype
    assert same_bits(out[0, :8].float().contiguous(), expected)


@pytest.mark.parametrize("name", RULES)
def test_against_scalar_version(name):
    rule, size, slow = RULES[name]
    generator = torch.Generator().manual_seed(3)
    blocks = torch.randn(160, size, generator=generator)
    blocks[:60] *= 2.0 ** torch.randint(-40, 40, (60, 1), generator=generator)
    out = rule(blocks)
    for row in range(len(blocks)):
        assert same_bits(out[row], slow(blocks[row].tolist())), row


@pytest.mark.parametrize("name", RULES)
def test_edges_of_scales(name):
    """Largest values at, just below and just above what makes the next scale; tiny, zero and huge blocks."""
    rule, size, slow = RULES[name]
    rows = []
    for exponent in (-126, -30, -14, -9, -1, 0, 1, 5, 60, 118):
        for top in (448.0, 6.0, 6.375, 1.0, 3.0):
            largest = torch.tensor(top * 2.0**exponent)
            for edge in (largest, largest.nextafter(torch.tensor(0.0)), largest.nextafter(torch.tensor(3e38))):
                rows.append([edge.item(), -edge.item() / 3, *[edge.item() * i / size for i in range(size - 2)]])
    rows += [[0.0] * size, [-0.0] * size, [1e-45] * size, [1e-5, -2e-5] * (size // 2)]
    out = rule(torch.tensor(rows, dtype=torch.float32))
    for row, values in zip(out, rows, strict=True):
        assert same_bits(row, slow([f32(value) for value in values])), values[0]


@pytest.mark.parametrize("rule", [fake_fp4, fake_fp4_e4m3])
def test_fp4_ties_go_to_the_even_code(rule):
    """With 6 in the block the scale is 1: ties .25 1.25 2.5 5 go down, .75 1.75 3.5 up."""
    values = [6.0, 0.25, 1.25, 2.5, 5.0, 0.75, 1.75, 3.5, -0.25, -0.75, -2.5, -5.0]
    out = rule(torch.tensor([values + [0.0] * 20]))[0, :12]
    assert same_bits(out.contiguous(), [6.0, 0.0, 1.0, 2.0, 4.0, 1.0, 2.0, 4.0, -0.0, -1.0, -2.0, -4.0])


def test_every_e4m3_code_and_midpoint_keeps_or_rounds_to_even():
    for low, high in pairwise(E4M3):
        out = fake_fp8(torch.tensor([[448.0, low, high, (low + high) / 2, *[0.0] * 28]]))[0]
        assert out[:4].tolist() == [448.0, low, high, nearest((low + high) / 2, E4M3)]


def test_result_is_exact_in_bf16_and_stays_put():
    """Quantised values fit bf16 without loss, and quantising them again changes nothing."""
    x = torch.randn(200, 64, generator=torch.Generator().manual_seed(5)) * 3
    for rule in (fake_fp8, fake_fp4):
        once = rule(x)
        assert torch.equal(once, once.to(torch.bfloat16).float())
        assert torch.equal(rule(once), once)
    once = fake_fp4_e4m3(x)
    assert torch.equal(once, once.to(torch.bfloat16).float())


@pytest.mark.parametrize("rule", [fake_fp8, fake_fp4, fake_fp4_e4m3])
def test_nan_is_not_hidden(rule):
    x = torch.ones(1, 64)
    x[0, 3] = float("nan")
    out = rule(x)
    assert out[0, 3].isnan()
    assert torch.equal(out[0, 32:], rule(torch.ones(1, 32))[0])
