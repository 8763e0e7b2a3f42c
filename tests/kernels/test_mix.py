"""Hyper-connections against loops over Python numbers, and the iteration count of Sinkhorn."""

import math

import torch

from dsv41c.kernels.reference.mix import collapse, expand, mix

S, D = 4, 6
EPS = 1e-6


def inputs(seed=0):
    generator = torch.Generator().manual_seed(seed)
    streams = torch.randn(2, 3, S, D, generator=generator)
    fn = torch.randn((2 + S) * S, S * D, generator=generator)
    base = torch.randn((2 + S) * S, generator=generator)
    return streams, fn, torch.tensor([0.7, 1.3, 2.0]), base


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def slow_mix(flat, fn, scale, base, iterations, norm_eps):
    """One token: lists of numbers in, (pre, post, comb) out, in double precision."""
    inverse = 1 / math.sqrt(sum(x * x for x in flat) / len(flat) + norm_eps)
    m = [sum(w * x for w, x in zip(row, flat, strict=True)) * inverse for row in fn]
    pre = [sigmoid(m[i] * scale[0] + base[i]) + EPS for i in range(S)]
    post = [2 * sigmoid(m[S + i] * scale[1] + base[S + i]) for i in range(S)]
    at = [[m[2 * S + i * S + j] * scale[2] + base[2 * S + i * S + j] for j in range(S)] for i in range(S)]
    comb = [[math.exp(v) / sum(math.exp(w) for w in row) + EPS for v in row] for row in at]

    def columns(c):
        sums = [sum(c[i][j] for i in range(S)) + EPS for j in range(S)]
        return [[c[i][j] / sums[j] for j in range(S)] for i in range(S)]

    comb = columns(comb)
    for _ in range(iterations - 1):
        comb = columns([[v / (sum(row) + EPS) for v in row] for row in comb])
    return pre, post, comb


def test_mix_against_numbers():
    streams, fn, scale, base = inputs()
    pre, post, comb = mix(streams, fn, scale, base, iterations=20, eps=EPS, norm_eps=1e-20)
    for b in range(2):
        for t in range(3):
            want = slow_mix(streams[b, t].flatten().tolist(), fn.tolist(), scale.tolist(), base.tolist(), 20, 1e-20)
            for ours, theirs in zip((pre, post, comb), want, strict=True):
                assert (ours[b, t] - torch.tensor(theirs)).abs().max() < 2e-6  # measured 3.6e-7


def test_nineteen_iterations_differ():
    """Slowly converging logits tell 20 from 19 column divisions."""
    streams, fn, scale, base = inputs()
    sharp = scale.clone()
    sharp[2] = 8.0
    combs = {n: mix(streams, fn, sharp, base, iterations=n, eps=EPS, norm_eps=1e-20)[2] for n in (19, 20)}
    assert (combs[19] - combs[20]).abs().max() > 1e-4
    token = streams[0, 0].flatten().tolist()
    for n, comb in combs.items():
        want = slow_mix(token, fn.tolist(), sharp.tolist(), base.tolist(), n, 1e-20)[2]
        assert (comb[0, 0] - torch.tensor(want)).abs().max() < 5e-5
    assert (combs[20].sum(2) - 1).abs().max() < 1e-4  # columns were divided last


def test_norm_eps_matters_for_small_streams():
    streams, fn, scale, base = inputs()
    small = [mix(streams * 1e-4, fn, scale, base, iterations=20, eps=EPS, norm_eps=eps)[0] for eps in (1e-20, 1e-6)]
    large = mix(streams, fn, scale, base, iterations=20, eps=EPS, norm_eps=1e-20)[0]
    assert (small[0] - large).abs().max() < 1e-5
    assert (small[1] - large).abs().max() > 1e-2


def test_collapse_and_expand_against_loops():
    generator = torch.Generator().manual_seed(4)
    streams = torch.randn(2, 3, S, D, generator=generator)
    pre, post = torch.rand(2, 3, S, generator=generator), torch.rand(2, 3, S, generator=generator)
    comb, out = torch.rand(2, 3, S, S, generator=generator), torch.randn(2, 3, D, generator=generator)
    flat, wide = collapse(streams, pre), expand(out, streams, post, comb)
    for b in range(2):
        for t in range(3):
            h = streams[b, t]
            assert torch.allclose(flat[b, t], sum(pre[b, t, s] * h[s] for s in range(S)), atol=1e-6)
            for j in range(S):
                want = post[b, t, j] * out[b, t] + sum(comb[b, t, i, j] * h[i] for i in range(S))
                assert torch.allclose(wide[b, t, j], want, atol=1e-6)


def test_one_rounding_in_bf16():
    streams = torch.randn(1, 2, S, D, generator=torch.Generator().manual_seed(6)).bfloat16()
    pre = torch.rand(1, 2, S)
    assert collapse(streams, pre).dtype == torch.bfloat16
    assert torch.equal(collapse(streams, pre), collapse(streams.float(), pre).bfloat16())
    comb, out = torch.rand(1, 2, S, S), torch.randn(1, 2, D).bfloat16()
    rounded = expand(out.float(), streams.float(), pre, comb).bfloat16()
    assert torch.equal(expand(out, streams, pre, comb), rounded)
