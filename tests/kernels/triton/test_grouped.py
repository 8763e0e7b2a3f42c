"""The mixture of experts over many rows against the reference, with its f32 form as the arbiter."""

import pytest
import torch

from dsv41c.kernels.reference import moe
from dsv41c.kernels.reference.encodings import dense, encode_fp8_32x32
from dsv41c.kernels.triton import grouped
from dsv41c.kernels.triton.matmul import matmul

from .decode_cases import Maker


def case(n, dim, inter, experts, active, seed=0):
    make = Maker(seed)
    x = make.normal(n, dim, dtype=torch.bfloat16)
    ids = torch.stack([torch.randperm(experts, generator=make.random)[:active] for _ in range(n)])
    weights = make.normal(n, active).sigmoid()
    return x, weights, ids, make.fp4(experts, inter, dim), make.fp4(experts, dim, inter), make.fp4(experts, inter, dim)


def exact(x, weights, ids, w1, w2, w3, limit):
    wide = [[dense(matrix, torch.float32) for matrix in w] for w in (w1, w2, w3)]
    return moe.experts(x.float()[None], weights[None], ids[None], *wide, limit=limit, activation_quant="none")[0]


def expected(x, weights, ids, w1, w2, w3, limit):
    return moe.experts(x[None], weights[None], ids[None], w1, w2, w3, limit=limit, activation_quant="none")[0]


def halves(x):
    """Even columns before odd ones, as `collapse_norm_rows` leaves them."""
    return torch.cat([x[:, ::2], x[:, 1::2]], 1)


def routed_sum(x, weights, ids, w1, w2, w3, limit):
    return grouped.add_pairs(grouped.expert_pairs(halves(x), weights, ids, w1, w2, w3, limit), ids, None)


CASES = {
    "odd rows, experts nobody chose": (7, 64, 96, 20, 2),
    "more rows than a tile": (45, 96, 32, 3, 2),
    "all to two experts": (33, 128, 64, 2, 2),
    "one row": (1, 64, 64, 5, 3),
}


@pytest.mark.parametrize("limit", [0.0, 0.7])
@pytest.mark.parametrize("name", CASES)
def test_routed_experts(name, limit):
    given = case(*CASES[name])
    arbiter = exact(*given, limit)
    error = (routed_sum(*given, limit) - arbiter).norm()
    assert error <= 1.1 * (expected(*given, limit) - arbiter).norm()


@pytest.mark.parametrize("shared", [grouped.HOPPER_SHARED, 64 * 1024])
@pytest.mark.parametrize("pairs", [3, 700, 40_000])
def test_every_tile_gives_the_same(monkeypatch, shared, pairs):
    given = case(7, 64, 96, 4, 2)
    tiles = grouped.tiles_for(pairs, 12, shared)
    arbiter = exact(*given, 0.7)
    monkeypatch.setattr(grouped, "tiles_for", lambda *_: tiles)
    error = (routed_sum(*given, 0.7) - arbiter).norm()
    assert error <= 1.1 * (expected(*given, 0.7) - arbiter).norm()


def test_an_expert_chosen_twice_counts_twice():
    x, weights, ids, *matrices = case(9, 64, 32, 4, 3)
    ids[:, 1] = ids[:, 0]
    wide = [[dense(matrix, torch.float32) for matrix in w] for w in matrices]
    arbiter = moe.experts_static(x.float()[None], weights[None], ids[None], *wide, limit=0.0, activation_quant="none")[
        0
    ]
    error = (routed_sum(x, weights, ids, *matrices, 0.0) - arbiter).norm()
    assert error <= 1e-2 * arbiter.norm()


def test_scales_at_the_ends_of_their_range():
    x, weights, ids, w1, w2, w3 = case(4, 64, 32, 2, 1)
    w1.scale.fill_(0)
    w3.scale.fill_(254 - 8)
    w2.scale.fill_(127)
    arbiter = exact(x, weights, ids, w1, w2, w3, 0.0)
    assert arbiter.norm() > 0
    assert (routed_sum(x, weights, ids, w1, w2, w3, 0.0) - arbiter).norm() <= 1e-2 * arbiter.norm()


def test_plan():
    ids = torch.tensor([[3, 0], [3, 5], [0, 3], [3, 3]])
    order, tile_expert = grouped._plan(ids, 7, 6, 4)
    assert tile_expert.tolist() == [0, 3, 3, 5, -1, -1]
    assert order[:16].tolist() == [1, 4, -1, -1, 0, 2, 5, 6, 7, -1, -1, -1, 3, -1, -1, -1]


@pytest.mark.parametrize("limit", [0.0, 0.7])
def test_shared_expert(limit):
    make = Maker(3)
    x, routed = make.normal(11, 64, dtype=torch.bfloat16), torch.zeros(11, 64)
    w1, w2, w3 = (encode_fp8_32x32(make.normal(*shape, scale=0.1)) for shape in ((48, 64), (64, 48), (48, 64)))
    options = {"limit": limit, "activation_quant": "none"}
    wide = [dense(w, torch.float32) for w in (w1, w2, w3)]
    arbiter = moe.shared_expert(x.float()[None], routed[None], *wide, **options)[0]
    reference = moe.shared_expert(x[None], routed[None], w1, w2, w3, **options)[0]
    error = (matmul(grouped.shared_hidden(x, w1, w3, limit), w2, x.dtype).float() - arbiter).norm()
    assert error <= 1.1 * (reference.float() - arbiter).norm()


def test_sums_are_in_the_order_of_experts():
    parts, ids = torch.randn(15, 40).to(torch.bfloat16), torch.tensor([[4, 1, 2]] * 5)
    by_expert = parts.view(5, 3, 40)[:, [1, 2, 0]].float()
    assert torch.equal(grouped.add_pairs(parts, ids, None), (by_expert[:, 0] + by_expert[:, 1]) + by_expert[:, 2])
