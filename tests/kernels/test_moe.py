"""Routing and experts: published edge cases, ties, and a loop over tokens."""

import math

import pytest
import torch

from dsv41c.kernels.reference.encodings import dense, encode_fp4_32
from dsv41c.kernels.reference.fake_quant import fake_fp8
from dsv41c.kernels.reference.moe import experts, experts_static, route, shared_expert


def routed(logits, bias=None, active=6, **options):
    """Route a token whose gate logits are these."""
    logits = torch.tensor(logits)
    bias = torch.zeros(len(logits)) if bias is None else torch.tensor(bias)
    options = {"score_func": "sqrtsoftplus", "gate_temp": 1.0, "route_scale": 1.5} | options
    weights, ids = route(torch.ones(1, 1, 1), logits[:, None], bias, active=active, **options)
    return weights[0, 0], ids[0, 0].tolist()


def test_very_negative_logits():
    weights, ids = routed([-20.0] * 8)
    assert weights.tolist() == pytest.approx([0.25] * 6)
    assert ids == [0, 1, 2, 3, 4, 5]
    weights, _ = routed([-200.0] * 8)
    assert torch.isfinite(weights).all()


def test_bias_takes_part_in_the_choice_only():
    weights, ids = routed([6.0, 2.0], [0.0, 0.2], active=1)
    assert (ids, weights.tolist()) == ([0], [1.5])
    _, ids = routed([6.0, 2.0], [0.0, 1.2], active=1)
    assert ids == [1]
    weights, ids = routed([6.0, 2.0], [0.0, 5.0], active=2)
    scores = [math.sqrt(math.log1p(math.exp(x))) for x in (2.0, 6.0)]
    assert ids == [1, 0]
    assert weights.tolist() == pytest.approx([1.5 * score / sum(scores) for score in scores], rel=1e-6)


def test_ties_go_to_the_lower_expert():
    assert routed([1.0, 3.0, 1.0, 3.0, 1.0, 3.0], active=4)[1] == [1, 3, 5, 0]


def test_gate_temperature():
    assert torch.allclose(routed([4.0, 2.0, 1.0], active=2, gate_temp=2.0)[0], routed([2.0, 1.0, 0.5], active=2)[0])


def test_other_score_functions_are_refused():
    with pytest.raises(ValueError, match="sigmoid"):
        routed([1.0, 2.0], active=1, score_func="sigmoid")


@pytest.mark.parametrize(
    ("gate", "up", "limit", "expected"),
    [
        (20.0, 15.0, 10.0, 99.9955),
        (20.0, -15.0, 10.0, -99.9955),
        (20.0, 15.0, 0.0, 300.0),
        (-20.0, 10.0, 10.0, -4.12e-7),  # no lower clamp of the gate
    ],
)
def test_clamps_of_both_paths(gate, up, limit, expected):
    one = torch.ones(1, 1, 1)
    w1, w2, w3 = torch.tensor([[gate]]), torch.ones(1, 1), torch.tensor([[up]])
    options = {"limit": limit, "activation_quant": "none"}
    weights, ids = torch.ones(1, 1, 1), torch.zeros(1, 1, 1, dtype=torch.long)
    assert experts(one, weights, ids, [w1], [w2], [w3], **options).item() == pytest.approx(expected, rel=1e-3)
    shared = shared_expert(one, torch.zeros(1, 1, 1), w1, w2, w3, **options)
    assert shared.item() == pytest.approx(expected, rel=1e-3)


def swiglu(x, w1, w2, w3, weight, quant, limit=2.0):
    """One token through one expert."""
    if quant:
        x = fake_fp8(x)
    g, u = (w1 @ x).clamp(max=limit), (w3 @ x).clamp(-limit, limit)
    hidden = weight * (g * torch.sigmoid(g) * u)
    return w2 @ (fake_fp8(hidden) if quant else hidden)


@pytest.mark.parametrize("quant", ["none", "fp8"])
def test_against_a_loop_over_tokens(quant):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(2, 5, 64, generator=generator)
    packed = [
        [encode_fp4_32(torch.randn(*shape, generator=generator) * 0.2) for _ in range(7)]
        for shape in ((32, 64), (64, 32), (32, 64))
    ]
    plain = [[dense(weight, torch.float32) for weight in role] for role in packed]
    weights = torch.rand(2, 5, 3, generator=generator)
    ids = torch.stack([torch.randperm(6, generator=generator)[:3] for _ in range(10)]).reshape(2, 5, 3)
    options = {"limit": 2.0, "activation_quant": quant}
    out = experts(x, weights, ids, *packed, **options)
    assert out.dtype == torch.float32
    both = shared_expert(x, out, *(role[6] for role in plain), **options)
    for b in range(2):
        for t in range(5):
            chosen = [(e, weights[b, t, k]) for k, e in enumerate(ids[b, t].tolist())]
            want = sum(swiglu(x[b, t], *(r[e] for r in plain), weight, quant == "fp8") for e, weight in chosen)
            # With fp8, a difference in the last bit may move a code of the hidden vector: 1/16 of it.
            assert (out[b, t] - want).abs().max() < (1e-4 if quant == "none" else 5e-2)
            want = out[b, t] + swiglu(x[b, t], *(r[6] for r in plain), 1.0, quant == "fp8")
            assert (both[b, t] - want).abs().max() < (1e-4 if quant == "none" else 5e-2)


def test_bf16_rounds_each_expert_and_sums_in_f32():
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(1, 4, 32, generator=generator).bfloat16()
    w1, w2, w3 = ([torch.randn(32, 32, generator=generator) for _ in range(4)] for _ in range(3))
    weights = torch.rand(1, 4, 2, generator=generator)
    ids = torch.tensor([[[0, 1], [1, 2], [2, 3], [3, 0]]])
    options = {"limit": 0.0, "activation_quant": "none"}
    both = experts(x, weights, ids, w1, w2, w3, **options)
    parts = [experts(x, weights[..., k : k + 1], ids[..., k : k + 1], w1, w2, w3, **options) for k in range(2)]
    assert all(torch.equal(part, part.bfloat16().float()) for part in parts)
    assert torch.equal(both, parts[0] + parts[1])
    shared = [w[0].bfloat16() for w in (w1, w2, w3)]
    assert shared_expert(x, both, *shared, **options).dtype == torch.bfloat16


@pytest.mark.parametrize("quant", ["none", "fp8"])
def test_static_experts_are_the_same_experts(quant):
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(3, 1, 64, generator=generator)
    w1, w2, w3 = (
        [encode_fp4_32(torch.randn(*shape, generator=generator)) for _ in range(4)]
        for shape in ((32, 64), (64, 32), (32, 64))
    )
    ids = torch.tensor([[[0, 3]], [[3, 1]], [[1, 0]]])  # nobody chose expert 2
    weights = torch.rand(3, 1, 2, generator=generator)
    want = experts(x, weights, ids, w1, w2, w3, limit=2.0, activation_quant=quant)
    assert torch.allclose(
        experts_static(x, weights, ids, w1, w2, w3, limit=2.0, activation_quant=quant), want, rtol=1e-5, atol=1e-4
    )
    alone = [part[:1] for part in (x, weights, ids)]
    got = experts_static(*alone, w1, w2, w3, limit=2.0, activation_quant=quant)
    assert torch.equal(got, experts(*alone, w1, w2, w3, limit=2.0, activation_quant=quant)), "one row rounds alike"


def test_static_experts_keep_what_nobody_chose_out():
    w = [torch.ones(4, 4), torch.full((4, 4), float("nan"))]
    x, weights, ids = torch.ones(1, 1, 4), torch.ones(1, 1, 1), torch.zeros(1, 1, 1, dtype=torch.long)
    assert experts_static(x, weights, ids, w, w, w, limit=0.0, activation_quant="none").isfinite().all()
