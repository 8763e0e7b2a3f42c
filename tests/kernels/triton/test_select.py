"""Selections bit for bit: single ops, and the fused kinds with lengths from the step, against the reference's sort."""

import pytest
import torch

from dsv41c.compiler.targets import LIMITS
from dsv41c.kernels.fusion import FUSED
from dsv41c.kernels.reference import select as reference
from dsv41c.kernels.reference.rows import stored
from dsv41c.kernels.registry import kernels_for
from dsv41c.kernels.step import Step
from dsv41c.kernels.triton import index, select

INF = float("inf")


def normal(seed, *shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def scores_with_ties(seed, *shape):
    random = torch.Generator().manual_seed(seed)
    score = torch.randint(-3, 4, shape, generator=random).float() / 2
    score = torch.where(torch.rand(shape, generator=random) < 0.1, -score * 0.0, score)  # zeros of both signs
    return score.masked_fill(torch.rand(shape, generator=random) < 0.3, -INF)


@pytest.mark.parametrize("count", [1, 8, 9, 300, 2100])
@pytest.mark.parametrize("k", [8, 64])
def test_topk(count, k):
    ties = scores_with_ties(count, 1, 3, count)
    ties[0, 0] = -INF
    ties[0, 1] = 1.0
    for score in (ties, normal(count, 1, 1, count), normal(count, 1, 1, count) * 1e-40):
        assert torch.equal(select.select_topk(score, k=k), reference.select_topk(score, k=k))


def test_topk_takes_nan_and_infinity_first_and_what_is_tiny_in_order():
    score = torch.tensor([[[1.0, INF, -1e38, 2.0, float("nan"), -0.0, 0.0, -INF, -3.4e38, 1e-45, INF]]])
    for k in (1, 2, 3, 4, 7, 11):
        assert torch.equal(select.select_topk(score, k=k), reference.select_topk(score, k=k))


def test_nothing_to_select_from():
    step = Step(torch.tensor([0]), torch.tensor([0]), 1)
    score = torch.empty(1, 1, 0)
    assert select.select_topk(score, k=4).shape == (1, 1, 0)
    assert select.select_candidates(step, score, ratio=2, block_size=4, blocks=2).shape == (1, 1, 0)


@pytest.mark.parametrize(("size", "count", "ratio"), [(4, 5, 1), (3, 33, 2), (8, 33, 1), (4, 260, 1)])
def test_candidates(count, size, ratio):
    tokens = 2
    positions = torch.tensor([0, count * ratio // 2, count * ratio - tokens])
    step = Step(torch.arange(3), positions, count * ratio)
    score = scores_with_ties(count, 3, tokens, count)
    hidden = torch.arange(count) >= ((step.token_positions(tokens) + 1) // ratio)[..., None]
    score = score.masked_fill(hidden, -INF)
    for blocks in (1, 4, 100):
        options = {"ratio": ratio, "block_size": size, "blocks": blocks}
        assert torch.equal(
            select.select_candidates(step, score, **options), reference.select_candidates(step, score, **options)
        )


def test_blocks_as_large_as_compile_allows():
    (limit,) = (limit for limit in LIMITS if limit.kind == "select_candidates")
    count = limit.most + 5
    step, score = Step(torch.tensor([0]), torch.tensor([count - 1]), count), normal(1, 1, 1, count)
    options = {"ratio": 1, "block_size": limit.most, "blocks": 1}
    kept = select.select_candidates(step, score, **options)
    assert torch.equal(kept, reference.select_candidates(step, score, **options))
    with pytest.raises(Exception, match="must not be zero"):  # what DSV602 keeps from being run
        select.select_candidates(step, score, **{**options, "block_size": limit.most + 1})


def case(positions, tokens, context, *, ratio, cache, ties, heads=4, channels=32, seed=0):
    batch = len(positions)
    query, weight = normal(seed, batch, tokens, heads, channels), normal(seed + 1, batch, tokens, heads)
    keys = normal(seed + 2, batch + 1, context // ratio, channels)
    if ties:
        query, weight, keys = query.round(), weight.sign(), keys.round()
    slots = torch.randperm(batch, generator=torch.Generator().manual_seed(seed))
    step = Step(slots, torch.tensor(positions), context)
    return step, query.bfloat16(), weight.bfloat16(), stored("index_k", keys.bfloat16(), cache)


CASES = [
    ([0], 1, 40, 1, "reference"),
    ([1, 0, 38], 1, 40, 2, "packed"),
    ([599, 255, 256], 1, 700, 1, "reference"),
    ([599], 1, 700, 1, "packed"),
    ([9, 28], 3, 40, 1, "packed"),
    ([1], 18, 40, 2, "reference"),
]


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize(("positions", "tokens", "context", "ratio", "cache"), CASES)
def test_fused_kinds(positions, tokens, context, ratio, cache, ties):
    """Given its own scores, a fused kind selects what the reference does, with candidates too."""
    step, query, weight, keys = case(positions, tokens, context, ratio=ratio, cache=cache, ties=ties)
    scored, selected = {"ratio": ratio, "block_size": 4}, {"k": 8}
    score = index.index_score(step, query, weight, keys, **scored)
    kept = reference.select_candidates(step, score, **scored, blocks=5)
    attrs = {"index_score_ratio": ratio, "index_score_block_size": 4, "select_topk_k": 8}
    more = {"select_candidates_ratio": ratio, "select_candidates_block_size": 4, "select_candidates_blocks": 5}
    found = select.index_candidates(step, query, weight, keys, **attrs, **more)
    assert torch.equal(found[0], kept)
    assert torch.equal(found[1], reference.select_topk(score, **selected))
    within = index.index_score(step, query, weight, keys, candidates=kept, **scored)
    assert torch.equal(within, score.masked_fill(~kept[..., torch.arange(context // ratio) // 4], -INF))
    topk = select.index_select(step, query, weight, keys, candidates=kept, **attrs)
    assert torch.equal(topk, reference.select_topk(within, **selected))


def test_many_rows_in_parts(monkeypatch):
    step, query, weight, keys = case([5, 20], 3, 40, ratio=1, cache="reference", ties=True)
    attrs = {"index_score_ratio": 1, "index_score_block_size": 4, "select_topk_k": 8}
    more = {"select_candidates_ratio": 1, "select_candidates_block_size": 4, "select_candidates_blocks": 3}
    whole = select.index_candidates(step, query, weight, keys, **attrs, **more)
    monkeypatch.setattr(select, "_SCRATCH_ELEMENTS", 2 * 40 * 2)
    parts = select.index_candidates(step, query, weight, keys, **attrs, **more)
    assert all(torch.equal(a, b) for a, b in zip(whole, parts, strict=True))


def test_what_is_not_visible_does_not_matter():
    """Rows that earlier sessions left behind, of NaN, and the capacity that a plan reserves."""
    step, query, weight, keys = case([300, 30], 1, 700, ratio=1, cache="reference", ties=False)
    attrs = {"index_score_ratio": 1, "index_score_block_size": 4, "select_topk_k": 8}
    clean = select.index_select(step, query, weight, keys, **attrs)
    dirty = keys.clone()
    dirty[step.slots[0], 301:] = float("nan")
    dirty[step.slots[1], 31:] = float("nan")
    assert torch.equal(select.index_select(step, query, weight, dirty, **attrs), clean)
    short = Step(step.slots, step.positions, 301)
    assert torch.equal(select.index_select(short, query, weight, dirty, **attrs), clean)


@pytest.mark.parametrize("kind", ["index_select", "index_candidates"])
def test_other_dtypes_go_to_the_reference(kind):
    step, query, weight, keys = case([9, 33], 2, 40, ratio=1, cache="none", ties=False)
    arguments = (step, query.float(), weight.float(), keys.float())
    sizes = {"select_topk_k": 8, "select_candidates_blocks": 3}
    attrs = {name: sizes.get(name, 4 if name.endswith("size") else 1) for name in FUSED[kind].signature.attrs}
    found = getattr(kernels_for("cuda", "triton"), kind)(*arguments, **attrs)
    wanted = getattr(kernels_for("cuda", "static"), kind)(*arguments, **attrs)
    if kind == "index_select":
        found, wanted = (found,), (wanted,)
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))
