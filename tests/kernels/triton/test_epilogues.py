"""What follows projections of many rows, against the reference."""

import pytest
import torch

from dsv41c.kernels.reference.fake_quant import fake_fp8
from dsv41c.kernels.reference.moe import route
from dsv41c.kernels.reference.norm import norm
from dsv41c.kernels.reference.rope import apply_rope
from dsv41c.kernels.step import Step
from dsv41c.kernels.triton.epilogues import norm_rows, rope_rows, route_rows, window_rows_rows

from .decode_cases import Maker

R = 16
ROPE = 10000.0 ** -torch.arange(0, 1, 2 / R)
STEP = Step(torch.tensor([0, 1]), torch.tensor([0, 9000]), 9005)


def close(ours, expected):
    """Equal but for a last bit of bf16 here and there, where fp32 sums of another order fall on the other side."""
    apart = (ours.float() - expected.float()).abs() > 0
    assert ((ours.float() - expected.float()).abs() <= expected.float().abs() / 128 + 1e-6).all()
    assert apart.float().mean() < 0.02


def test_norm():
    make = Maker(0)
    x, weight = make.normal(5, 90, dtype=torch.bfloat16), make.normal(90)
    close(norm_rows(x, weight, 1e-20), norm(x, weight, eps=1e-20))


@pytest.mark.parametrize("heads", [1, 5, 20])
def test_rope(heads):
    x = Maker(1).normal(2, 3, heads, 48, dtype=torch.bfloat16)
    expected = apply_rope(x, STEP.token_positions(3), ROPE, R)
    close(rope_rows(STEP, x, ROPE, R), expected)


@pytest.mark.parametrize("kv_cache", ["none", "reference", "packed"])
@pytest.mark.parametrize("channels", [64, 96])
def test_window_rows(kv_cache, channels):
    make = Maker(2)
    x, weight = make.normal(2, 4, channels, dtype=torch.bfloat16), 1 + make.normal(channels, scale=0.1)
    rows = apply_rope(norm(x, weight, eps=1e-20), STEP.token_positions(4), ROPE, R)
    options = {"rope_dim": R, "eps": 1e-20}
    ours = window_rows_rows(STEP, x, ROPE, weight, **options, kv_cache="none")
    close(ours, rows)
    if kv_cache != "none":
        rounded = window_rows_rows(STEP, x, ROPE, weight, **options, kv_cache=kv_cache)
        assert torch.equal(rounded, fake_fp8(ours))


@pytest.mark.parametrize("value", [0.0, -0.0, 1e-6, 1e30, float("inf"), float("nan")])
def test_rounding_of_window_rows_at_the_edges(value):
    x = Maker(3).normal(1, 2, 64, dtype=torch.bfloat16)
    x[0, 1, 5] = value
    weight = torch.ones(64)
    plain, rounded = (
        window_rows_rows(STEP, x, ROPE, weight, rope_dim=R, eps=1e-20, kv_cache=kind) for kind in ("none", "packed")
    )
    assert torch.equal(rounded.view(torch.int16)[0, 0], fake_fp8(plain).view(torch.int16)[0, 0])
    assert torch.allclose(rounded, fake_fp8(plain), rtol=0, atol=0, equal_nan=True)


def test_route():
    make = Maker(4)
    logits, bias = make.normal(30, 40, scale=6.0), make.normal(40)
    logits[0] = 1.0
    logits[1, :3] = torch.tensor([30.0, -60.0, -30.0])
    options = {"active": 6, "score_func": "sqrtsoftplus", "gate_temp": 1.5, "route_scale": 2.5}
    weights, ids = route(logits[None], torch.eye(40), bias, **options)
    ours, picked = route_rows(logits, bias, **options)
    assert torch.equal(picked, ids[0])
    assert torch.allclose(ours, weights[0], rtol=2e-6, atol=0)
    equal = route_rows(logits[:1], torch.zeros(40), **options)[1]
    assert equal.tolist() == [[0, 1, 2, 3, 4, 5]]
    with pytest.raises(ValueError, match="unknown score function"):
        route_rows(logits, bias, **{**options, "score_func": "softmax"})
