"""Compressor and indexer kernels against the reference: pools, tails, queries and scores.

Sums are made in another order, so that a rounding may fall the other way; in Triton's interpreter this was seen in one
element of 2,700. A difference is bounded by one step of what the value is rounded to, and so is how many there are.
"""

import pytest
import torch

from dsv41c.kernels.reference import compress as reference_compress
from dsv41c.kernels.reference import index as reference_index
from dsv41c.kernels.reference.encodings import encode_fp8_32x32
from dsv41c.kernels.reference.rope import window_frequencies
from dsv41c.kernels.reference.rows import stored, unpack
from dsv41c.kernels.step import Step
from dsv41c.kernels.triton import compress, index

ROPE = window_frequencies(16, 10000.0)
CHANNELS, KEYS, DIM = 32, 32, 96


def normal(seed, *shape, scale=1.0, dtype=torch.bfloat16):
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * scale).to(dtype)


def assert_near(found, wanted, step=2.0**-7, share=0.01):
    """At most a share of elements differs, by no more than a step relative to the larger one."""
    found, wanted = found.float(), wanted.float()
    assert found.shape == wanted.shape
    if found.numel() == 0:
        return
    apart = (found - wanted).abs()
    assert (apart > 0).float().mean() <= share
    assert (apart <= step * torch.maximum(found.abs(), wanted.abs()) + 1e-6).all()


def assert_rows(kind, found, wanted, slots):
    """Rows of the sessions' slots; rounded ones may differ by one step of E2M1, a half of the value."""
    found, wanted = (unpack(kind, pool[slots]) for pool in (found, wanted))
    assert_near(found, wanted, step=0.5, share=0.02)


@pytest.mark.parametrize(
    ("positions", "tokens", "ratio", "capacity", "cache"),
    [
        ([0, 7, 8], 1, 1, 20, "reference"),
        ([0, 7], 1, 2, 20, "reference"),
        ([7], 1, 2, 20, "packed"),
        ([7], 1, 1, 20, "packed"),
        ([7], 1, 2, 20, "none"),
        ([4, 3], 3, 2, 20, "packed"),
        ([5], 35, 4, 20, "reference"),  # more rows than the row kernel takes
        ([18], 4, 1, 20, "packed"),  # past the capacity
        ([2], 1, 4, 20, "reference"),
        ([1], 1, 2, 0, "none"),
    ],
)
def test_compress_and_keys(positions, tokens, ratio, capacity, cache):
    batch = len(positions)
    x, norm = normal(0, batch, tokens, DIM), normal(1, CHANNELS, dtype=torch.float32)
    wkv, wgate = normal(2, CHANNELS, DIM, scale=0.1), normal(3, CHANNELS, DIM, scale=0.1)
    slots = torch.randperm(batch, generator=torch.Generator().manual_seed(4))
    step = Step(slots, torch.tensor(positions), max(positions) + tokens)
    pool = stored("compress_kv", normal(5, batch + 1, capacity, CHANNELS), cache)
    tail = normal(6, batch + 1, 2, ratio, CHANNELS, dtype=torch.float32)
    options = {"ratio": ratio, "rope_dim": 16, "eps": 1e-20, "kv_cache": cache}
    wide = wkv.float() if ratio > 1 else wkv
    gated, found_gated = {}, {}
    if ratio > 1:
        gated = {"group_tail": tail.clone(), "wgate": wgate.float()}
        found_gated = {"group_tail": tail.clone(), "wgate": wgate}
    wanted = reference_compress.compress(step, x, pool.clone(), ROPE, wide, norm, **gated, **options)
    found = compress.compress(step, x, pool.clone(), ROPE, wkv, norm, **found_gated, **options)
    assert len(found) == len(wanted)
    assert_near(found[0], wanted[0])
    assert_rows("compress_kv", found[1], wanted[1], slots)
    if ratio > 1:
        assert torch.allclose(found[2][slots], wanted[2][slots], atol=2e-6)

    keys = stored("index_k", normal(7, batch + 1, capacity, KEYS), cache)
    weights = (normal(8, KEYS, CHANNELS, scale=0.1), normal(9, KEYS, dtype=torch.float32))
    there = reference_index.index_keys(step, wanted[0], keys.clone(), ROPE, *weights, **options)
    here = index.index_keys(step, wanted[0], keys.clone(), ROPE, *weights, **options)
    assert_rows("index_k", here, there, slots)


def test_weights_in_f32_and_bf16_say_the_same():
    x, weights = normal(0, 1, 1, DIM), [normal(seed, CHANNELS, DIM, scale=0.1) for seed in (1, 2)]
    step = Step(torch.tensor([1]), torch.tensor([3]), 8)
    made = []
    for dtypes in ((torch.bfloat16,) * 2, (torch.float32,) * 2, (torch.bfloat16, torch.float32)):
        wkv, wgate = (weight.to(dtype) for weight, dtype in zip(weights, dtypes, strict=True))
        pool, tail = torch.zeros(3, 4, CHANNELS, dtype=x.dtype), normal(4, 3, 2, 2, CHANNELS, dtype=torch.float32)
        norm = torch.ones(CHANNELS)
        options = {"ratio": 2, "rope_dim": 16, "eps": 1e-20, "kv_cache": "none"}
        made.append(compress.compress(step, x, pool, ROPE, wkv, norm, group_tail=tail, wgate=wgate, **options))
    for other in made[1:]:
        assert_near(other[0], made[0][0])
        assert torch.allclose(other[2], made[0][2], atol=2e-6)


def test_other_dtypes_go_to_the_reference():
    x, wkv = normal(0, 1, 2, DIM, dtype=torch.float32), normal(1, CHANNELS, DIM, dtype=torch.float32)
    step = Step(torch.tensor([0]), torch.tensor([0]), 4)
    pools = torch.zeros(2, 2, 4, CHANNELS)
    options = {"ratio": 1, "rope_dim": 16, "eps": 1e-20, "kv_cache": "reference"}
    norm = torch.ones(CHANNELS)
    found = compress.compress(step, x, pools[0], ROPE, wkv, norm, **options)
    wanted = reference_compress.compress(step, x, pools[1], ROPE, wkv, norm, **options)
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


@pytest.mark.parametrize("cache", ["none", "reference"])
@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize(("positions", "tokens"), [([0, 7, 50], 1), ([3, 9], 5)])
def test_query(positions, tokens, packed, cache):
    batch, heads, low = len(positions), 4, 96
    x, latent = normal(0, batch, tokens, DIM), normal(1, batch, tokens, low)
    matrix = normal(2, heads * KEYS, low, scale=0.1)
    wq_b = encode_fp8_32x32(matrix.float()) if packed else matrix
    projection = normal(3, heads, DIM, scale=0.1)
    step = Step(torch.arange(batch), torch.tensor(positions), 64)
    options = {"heads": heads, "rope_dim": 16, "activation_quant": "none", "kv_cache": cache}
    wanted = reference_index.index_query(step, x, latent, ROPE, wq_b, projection, **options)
    found = index.index_query(step, x, latent, ROPE, wq_b, projection, **options)
    assert found[0].dtype == found[1].dtype == torch.bfloat16
    assert_near(found[0], wanted[0], step=2.0**-7 if cache == "none" else 0.5)
    assert_near(found[1], wanted[1])


@pytest.mark.parametrize("cache", ["none", "reference", "packed"])
@pytest.mark.parametrize(
    ("positions", "tokens", "context", "ratio", "heads"),
    [([5, 39], 1, 40, 1, 4), ([0, 3], 1, 40, 2, 20), ([3], 18, 150, 2, 4), ([0], 1, 1, 2, 4)],
)
def test_score(positions, tokens, context, ratio, heads, cache):
    batch = len(positions)
    query, weight = normal(0, batch, tokens, heads, KEYS), normal(1, batch, tokens, heads)
    keys = stored("index_k", normal(2, batch + 1, context // ratio, KEYS), cache)
    step = Step(torch.arange(batch - 1, -1, -1), torch.tensor(positions), context)
    options = {"ratio": ratio, "block_size": 4}
    wanted = reference_index.index_score(step, query, weight, keys, **options)
    found = index.index_score(step, query, weight, keys, **options)
    assert found.dtype == torch.float32
    assert torch.equal(found.isinf(), wanted.isinf())
    assert_near(found.masked_fill(found.isinf(), 0), wanted.masked_fill(wanted.isinf(), 0), step=2.0**-6, share=0.02)
