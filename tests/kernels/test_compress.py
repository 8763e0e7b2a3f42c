"""The compressor and the index keys against a loop over groups, for any cut and any row order."""

import pytest
import torch

from dsv41c.kernels.reference.compress import compress
from dsv41c.kernels.reference.fake_quant import fake_fp4, fake_fp4_e4m3
from dsv41c.kernels.reference.index import index_keys
from dsv41c.kernels.reference.norm import norm
from dsv41c.kernels.reference.rope import apply_rope, window_frequencies
from dsv41c.kernels.step import Step

D, C, IC, R, EPS = 6, 32, 32, 4, 1e-20
ROPE = window_frequencies(R, 100.0)
GENERATOR = torch.Generator().manual_seed(0)
WKV, WGATE = torch.randn(C, D, generator=GENERATOR), torch.randn(C, D, generator=GENERATOR)
NORM, WK, K_NORM = (torch.randn(*s, generator=GENERATOR) for s in ((C,), (IC, C), (IC,)))


def slow_group(x, ratio, number):
    """Latent, cache row and index key of group `number` of a sequence x [L, D], before fake quantisation."""
    tokens = x[number * ratio : (number + 1) * ratio]
    if ratio == 1:
        pooled = WKV @ tokens[0]
    else:
        weights = torch.softmax(torch.stack([WGATE @ t for t in tokens]), 0)
        pooled = sum(w * (WKV @ t) for w, t in zip(weights, tokens, strict=True))
    latent = norm(pooled, NORM, eps=EPS)
    at = torch.tensor([[number * ratio]])
    row = apply_rope(latent[None, None], at, ROPE, R)[0, 0]
    key = apply_rope(norm(WK @ latent, K_NORM, eps=EPS)[None, None], at, ROPE, R)[0, 0]
    return latent, row, key


class Pools:
    def __init__(self, ratio, sessions=1, capacity=6, fill=0.0):
        slots = sessions + 1
        self.ratio = ratio
        self.kv, self.keys = torch.full((slots, capacity, C), fill), torch.full((slots, capacity, IC), fill)
        self.tail = torch.full((slots, 2, ratio, C), fill)

    def feed(self, x, positions, slots, kv_cache="none"):
        positions = torch.tensor(positions)
        step = Step(torch.tensor(slots), positions, int(positions.max()) + x.shape[1])
        gated = {"group_tail": self.tail, "wgate": WGATE} if self.ratio > 1 else {}
        common = {"ratio": self.ratio, "rope_dim": R, "eps": EPS, "kv_cache": kv_cache}
        latent, kv, *tail = compress(step, x, self.kv, ROPE, WKV, NORM, **gated, **common)
        assert kv is self.kv
        assert not tail or tail[0] is self.tail
        assert index_keys(step, latent, self.keys, ROPE, WK, K_NORM, **common) is self.keys
        return latent


@pytest.mark.parametrize("ratio", [1, 2, 3])
@pytest.mark.parametrize("chunk", range(1, 10))
@pytest.mark.parametrize("length", [1, 5, 9])
def test_any_cut_against_a_loop(length, chunk, ratio):
    x = torch.randn(length, D, generator=torch.Generator().manual_seed(length))
    pools = Pools(ratio, capacity=9, fill=7.0)
    for start in range(0, length, chunk):
        part = x[None, start : start + chunk]
        latent = pools.feed(part, [start], [0])[0]
        assert latent.shape[0] == (ratio - 1 + part.shape[1]) // ratio
        end = start + part.shape[1]
        for j in range(latent.shape[0]):
            number = start // ratio + j
            complete = (number + 1) * ratio <= end
            want = slow_group(x, ratio, number)[0] if complete else torch.zeros(C)
            assert torch.allclose(latent[j], want, atol=1e-5)
    for number in range(length // ratio):
        _, row, key = slow_group(x, ratio, number)
        assert torch.allclose(pools.kv[0, number], row, atol=1e-5)
        assert torch.allclose(pools.keys[0, number], key, atol=1e-5)
    if ratio > 1:
        opened = length % ratio
        for i in range(ratio):
            token = x[length - opened + i] if i < opened else torch.zeros(D)
            assert torch.allclose(pools.tail[0, 0, i], WKV @ token, atol=1e-5)
            assert torch.allclose(pools.tail[0, 1, i], WGATE @ token, atol=1e-5)


@pytest.mark.parametrize("ratio", [1, 2])
def test_sessions_in_any_row_order_with_padding(ratio):
    lines = torch.randn(3, 11, D, generator=torch.Generator().manual_seed(1))
    pools, starts = Pools(ratio, sessions=3, capacity=11, fill=9.0), [0, 0, 0]
    calls = (([1], 3), ([2, 0], 1), ([0, 1, 2], 2), ([1, 0], 3), ([2, 1], 3), ([0], 5), ([2], 5))
    for sessions, count in calls:
        x = torch.stack([lines[s, starts[s] : starts[s] + count] for s in sessions] + [lines[0, :count]] * 2)
        pools.feed(x, [*[starts[s] for s in sessions], 0, 0], [*sessions, 3, 3])
        for s in sessions:
            starts[s] += count
    assert starts == [11, 11, 11]
    for s in range(3):
        for number in range(11 // ratio):
            _, row, key = slow_group(lines[s], ratio, number)
            assert torch.allclose(pools.kv[s, number], row, atol=1e-5)
            assert torch.allclose(pools.keys[s, number], key, atol=1e-5)


def test_a_freed_slot_starts_clean():
    """An odd-length session leaves a tail; the next one in the slot must not see it, nor NaN in it."""
    x = torch.randn(4, D, generator=torch.Generator().manual_seed(2))
    used = Pools(2, fill=float("nan"))
    used.feed(x[None, :3], [0], [0])
    used.feed(x[None, 2:], [0], [0])
    assert torch.allclose(used.kv[0, 0], slow_group(x[2:], 2, 0)[1], atol=1e-5)
    assert torch.equal(used.tail[0], torch.zeros(2, 2, C))


def test_full_pool_and_empty_pool():
    """A group beyond the capacity touches no session; a pool for less than a group holds nothing."""
    x = torch.randn(1, 4, D, generator=torch.Generator().manual_seed(3))
    pools = Pools(2, sessions=2, capacity=1)
    pools.feed(x, [0], [0])
    assert torch.allclose(pools.kv[0, 0], slow_group(x[0], 2, 0)[1], atol=1e-5)
    assert torch.equal(pools.kv[1], torch.zeros(1, C))
    Pools(2, capacity=0).feed(x[:, :1], [0], [0])


def test_caches_are_rounded_as_released():
    x = torch.randn(1, 4, D, generator=torch.Generator().manual_seed(4))
    exact, rounded = Pools(2), Pools(2)
    latents = [exact.feed(x, [0], [0]), rounded.feed(x, [0], [0], kv_cache="reference")]
    assert torch.equal(*latents)
    assert torch.equal(rounded.kv[0, :2], fake_fp4_e4m3(exact.kv[0, :2]))
    assert torch.equal(rounded.keys[0, :2], fake_fp4(exact.keys[0, :2]))


def test_bf16_pools_in_f32():
    """At ratio 2 the weights are f32 and one rounding follows the pooling; the tail stays f32."""
    x = torch.randn(1, 2, D, generator=torch.Generator().manual_seed(5)).bfloat16()
    pools = Pools(2)
    pools.kv, pools.keys = pools.kv.bfloat16(), pools.keys.bfloat16()
    step = Step(torch.tensor([0]), torch.tensor([0]), 2)
    gated = {"group_tail": pools.tail, "wgate": WGATE}
    common = {"ratio": 2, "rope_dim": R, "eps": EPS, "kv_cache": "none"}
    latent = compress(step, x, pools.kv, ROPE, WKV, NORM, **gated, **common)[0]
    score, kv = x[0].float() @ WGATE.T, x[0].float() @ WKV.T
    pooled = (torch.softmax(score, 0) * kv).sum(0).bfloat16()
    assert latent.dtype == torch.bfloat16
    assert torch.equal(latent[0, 0], norm(pooled, NORM, eps=EPS))
