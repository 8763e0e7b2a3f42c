"""Index scores, candidates and top-k against loops, with ties, pins, and fewer candidates than wanted."""

import pytest
import torch

from dsv41c.kernels.reference import index as index_module
from dsv41c.kernels.reference.fake_quant import fake_fp4
from dsv41c.kernels.reference.index import index_query, index_score
from dsv41c.kernels.reference.rope import apply_rope, window_frequencies
from dsv41c.kernels.reference.select import best, select_candidates, select_topk
from dsv41c.kernels.step import Step

IH, IC = 3, 8
INF = float("inf")


def step_at(positions, tokens, slots=None):
    positions = torch.tensor(positions)
    slots = torch.arange(len(positions)) if slots is None else torch.tensor(slots)
    return Step(slots, positions, int(positions.max()) + tokens)


def inputs(batch, tokens, groups, seed=0):
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(batch, tokens, IH, IC, generator=generator)
    w = torch.randn(batch, tokens, IH, generator=generator)
    return q, w, torch.randn(batch + 1, groups, IC, generator=generator)


@pytest.mark.parametrize("ratio", [1, 2, 3])
def test_scores_against_a_loop(ratio):
    q, w, keys = inputs(2, 5, 20)
    step = step_at([3, 8], 5, [1, 0])
    score = index_score(step, q, w, keys, ratio=ratio, block_size=4)
    assert score.shape == (2, 5, 13 // ratio)
    for b in range(2):
        for t in range(5):
            for j in range(score.shape[2]):
                seen = j < (int(step.positions[b]) + t + 1) // ratio
                dots = [max(0.0, float(q[b, t, h] @ keys[1 - b, j])) for h in range(IH)]
                want = sum(float(w[b, t, h]) * dots[h] for h in range(IH)) if seen else -INF
                assert float(score[b, t, j]) == pytest.approx(want, abs=1e-5)


def test_blocks_of_queries_change_nothing(monkeypatch):
    q, w, keys = inputs(2, 7, 20)
    whole = index_score(step_at([0, 4], 7), q, w, keys, ratio=1, block_size=4)
    monkeypatch.setattr(index_module, "_SCORE_ELEMENTS", 2 * IH * 11 * 2)
    assert torch.allclose(index_score(step_at([0, 4], 7), q, w, keys, ratio=1, block_size=4), whole, atol=1e-6)


def test_candidates_mask_scores():
    q, w, keys = inputs(1, 2, 10)
    mask = torch.tensor([[[True, False, True], [False, True, False]]])
    plain = index_score(step_at([8], 2), q, w, keys, ratio=1, block_size=4)
    masked = index_score(step_at([8], 2), q, w, keys, candidates=mask, ratio=1, block_size=4)
    for t in range(2):
        for j in range(10):
            assert masked[0, t, j] == (plain[0, t, j] if mask[0, t, j // 4] else -INF)


def test_what_keys_of_earlier_sessions_hold_does_not_matter():
    q, w, keys = inputs(1, 2, 6)
    dirty = keys.clone()
    dirty[0, 2:] = float("nan")
    step = Step(torch.tensor([0]), torch.tensor([2]), 6)
    clean = index_score(step, q, w, keys, ratio=2, block_size=2)
    assert torch.equal(index_score(step, q, w, dirty, ratio=2, block_size=2), clean)


def test_bf16_rounds_dots_products_and_sum():
    q, w, keys = (part.bfloat16() for part in inputs(1, 3, 6))
    score = index_score(step_at([3], 3), q, w, keys, ratio=1, block_size=2)
    assert score.dtype == torch.float32
    for t in range(3):
        for j in range(4 + t):
            products = [(q[0, t, h].float() @ keys[0, j].float()).bfloat16().relu() * w[0, t, h] for h in range(IH)]
            assert score[0, t, j] == sum(product.float() for product in products).bfloat16().float()


def test_no_groups_yet():
    q, w, keys = inputs(2, 1, 4)
    step = step_at([0, 0], 1)
    score = index_score(step, q, w, keys, ratio=2, block_size=4)
    assert score.shape == (2, 1, 0)
    assert select_candidates(step, score, ratio=2, block_size=4, blocks=2).shape == (2, 1, 0)
    assert select_topk(score, k=8).shape == (2, 1, 0)


def slow_candidates(score, position, ratio, block_size, blocks):
    """Kept blocks of one query, from a list of scores."""
    starts = range(0, len(score), block_size)
    largest = [max(score[start : start + block_size]) for start in starts]
    visible = (position + 1) // ratio
    if visible:
        largest[(visible - 1) // block_size] = INF
    order = sorted(range(len(largest)), key=lambda block: (-largest[block], block))[:blocks]
    return [block in order and largest[block] > -INF for block in range(len(largest))]


@pytest.mark.parametrize("ratio", [1, 2])
@pytest.mark.parametrize("tokens", [1, 2, 7, 23])
def test_candidates_against_a_loop(tokens, ratio):
    generator = torch.Generator().manual_seed(tokens)
    step = step_at([0, 6, 13], tokens)
    score = torch.randint(-3, 3, (3, tokens, step.context // ratio), generator=generator).float()  # many ties
    number = torch.arange(score.shape[2])
    hidden = number >= ((step.token_positions(tokens) + 1) // ratio)[..., None]
    score = score.masked_fill(hidden, -INF)
    kept = select_candidates(step, score, ratio=ratio, block_size=4, blocks=2)
    for b in range(3):
        for t in range(tokens):
            position = int(step.positions[b]) + t
            assert kept[b, t].tolist() == slow_candidates(score[b, t].tolist(), position, ratio, 4, 2)


def test_newest_block_is_pinned_and_hidden_blocks_are_not_kept():
    step = step_at([8], 1)
    score = torch.tensor([[[5.0, 1, 4, 1, 3, 1, 2, 1, -9.0]]])
    assert select_candidates(step, score, ratio=1, block_size=2, blocks=2).tolist() == [[[True, *[False] * 3, True]]]
    assert select_candidates(step, score, ratio=1, block_size=2, blocks=9).all()
    early = Step(torch.tensor([0]), torch.tensor([1]), 9)
    score = score.masked_fill(torch.arange(9) >= 2, -INF)
    kept = select_candidates(early, score, ratio=1, block_size=2, blocks=9)
    assert kept.tolist() == [[[True, *[False] * 4]]]
    nothing = select_candidates(step_at([0], 1), torch.full((1, 1, 3), -INF), ratio=2, block_size=2, blocks=2)
    assert not nothing.any()


@pytest.mark.parametrize("groups", [1, 3, 4, 9, 40])
def test_topk_against_a_loop(groups):
    generator = torch.Generator().manual_seed(groups)
    score = torch.randint(-3, 3, (2, 6, groups), generator=generator).float()  # many ties
    score = score.masked_fill(torch.rand(2, 6, groups, generator=generator) < 0.4, -INF)
    score[0, 0] = -INF
    chosen = select_topk(score, k=4)
    assert chosen.dtype == torch.int64
    assert chosen.shape == (2, 6, min(4, groups))
    for b in range(2):
        for t in range(6):
            row = score[b, t].tolist()
            order = sorted((j for j in range(groups) if row[j] > -INF), key=lambda j: (-row[j], j))[:4]
            want = sorted(order)
            assert chosen[b, t].tolist() == want + [-1] * (chosen.shape[2] - len(want))


def test_ties_go_to_the_lower_number():
    assert best(torch.tensor([1.0, 2.0, 2.0, 2.0, 1.0]), 2).tolist() == [1, 2]
    assert best(torch.zeros(1000), 7).tolist() == list(range(7))
    assert select_topk(torch.zeros(1, 1, 300), k=5).tolist() == [[[0, 1, 2, 3, 4]]]


def test_fewer_candidates_than_topk():
    """Two groups in the only candidate block, four wanted: the rest is -1."""
    q, w, keys = inputs(1, 1, 8)
    mask = torch.tensor([[[False, True, False, False]]])
    score = index_score(step_at([7], 1), q, w, keys, candidates=mask, ratio=1, block_size=2)
    assert select_topk(score, k=4).tolist() == [[[2, 3, -1, -1]]]


def test_index_query():
    generator = torch.Generator().manual_seed(8)
    x, latent, wq_b, proj = (torch.randn(*s, generator=generator) for s in ((1, 2, 16), (1, 2, 32), (64, 32), (2, 16)))
    rope, step = window_frequencies(8, 100.0), step_at([4], 2)
    options = {"heads": 2, "rope_dim": 8, "activation_quant": "none"}
    queries, weights = index_query(step, x, latent, rope, wq_b, proj, kv_cache="none", **options)
    flat = (latent @ wq_b.T).reshape(1, 2, 2, 32)
    assert torch.allclose(queries, apply_rope(flat, torch.tensor([[4, 5]]), rope, 8), atol=1e-5)
    assert torch.allclose(weights, x @ proj.T * 32**-0.5 * 2**-0.5)
    rounded, _ = index_query(step, x, latent, rope, wq_b, proj, kv_cache="reference", **options)
    assert torch.equal(rounded, fake_fp4(queries))
