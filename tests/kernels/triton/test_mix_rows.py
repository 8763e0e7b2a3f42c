"""Hyper-connections over many rows against the reference."""

import pytest
import torch

from dsv41c.kernels.reference import mix as reference
from dsv41c.kernels.reference.norm import norm
from dsv41c.kernels.triton.mix_rows import collapse_norm_rows, expand_rows, mix_rows

from .decode_cases import Maker


@pytest.mark.parametrize(
    ("batch", "tokens", "count", "dim"), [(1, 9, 4, 80), (3, 23, 4, 48), (1, 2, 2, 30), (1, 3, 3, 32)]
)
def test_mix(batch, tokens, count, dim):
    make = Maker(1)
    mixes = (2 + count) * count
    streams = make.normal(batch, tokens, count, dim, dtype=torch.bfloat16) * 3
    weights = make.normal(mixes, count * dim, scale=(count * dim) ** -0.5), make.normal(3), make.normal(mixes)
    options = {"iterations": 20, "eps": 1e-6, "norm_eps": 1e-20}
    exact = _double_mix(streams, *weights, **options)
    for ours, arbiter in zip(mix_rows(streams, *weights, 20, 1e-6, 1e-20), exact, strict=True):
        assert ours.shape == arbiter.shape
        assert ((ours - arbiter).abs() <= 2e-6 * arbiter.abs() + 1e-7).all()


def _double_mix(streams, fn, scale, base, *, iterations, eps, norm_eps):
    """`mix` in float64."""
    count = streams.shape[2]
    flat = streams.double().flatten(2)
    mixes = flat @ fn.double().T * torch.rsqrt(flat.square().mean(-1, keepdim=True) + norm_eps)
    cuts = [count, count, count * count]
    (pre, post, comb), bases = mixes.split(cuts, -1), base.double().split(cuts)
    square = (comb * scale[2].double() + bases[2]).unflatten(-1, (count, count))
    return (
        torch.sigmoid(pre * scale[0].double() + bases[0]) + eps,
        2 * torch.sigmoid(post * scale[1].double() + bases[1]),
        reference._sinkhorn(square, iterations, eps),
    )


@pytest.mark.parametrize(("count", "dim"), [(4, 80), (3, 34)])
def test_collapse_and_norm(count, dim):
    make = Maker(2)
    streams = make.normal(2, 7, count, dim, dtype=torch.bfloat16)
    pre, weight = make.normal(2, 7, count), 1 + make.normal(dim, scale=0.1)
    expected = norm(reference.collapse(streams, pre), weight, eps=1e-20)
    arbiter = norm(reference.collapse(streams.float(), pre), weight, eps=1e-20)
    normed, halves = collapse_norm_rows(streams, pre, weight, 1e-20, halves=True)
    assert (normed.float() - arbiter).norm() <= 1.1 * (expected.float() - arbiter).norm()
    assert torch.equal(halves, torch.cat([normed[..., 0::2], normed[..., 1::2]], -1))


@pytest.mark.parametrize(("count", "dim"), [(4, 80), (3, 34)])
def test_expand(count, dim):
    make = Maker(3)
    streams, out = make.normal(2, 5, count, dim, dtype=torch.bfloat16), make.normal(2, 5, dim, dtype=torch.bfloat16)
    post, comb = make.normal(2, 5, count), make.normal(2, 5, count, count)
    expected = reference.expand(out, streams, post, comb)
    arbiter = reference.expand(out.float(), streams.float(), post, comb)
    ours = expand_rows(out, streams, post, comb)
    assert (ours.float() - arbiter).norm() <= 1.05 * (expected.float() - arbiter).norm()
