"""The window ring and attention against a loop over queries and positions."""

import math
from dataclasses import replace

import pytest
import torch

from dsv41c.kernels.reference import attend as attend_module
from dsv41c.kernels.reference.attend import attend
from dsv41c.kernels.reference.fake_quant import fake_fp8
from dsv41c.kernels.reference.norm import norm
from dsv41c.kernels.reference.output import output
from dsv41c.kernels.reference.query import query
from dsv41c.kernels.reference.rope import apply_rope, window_frequencies
from dsv41c.kernels.reference.window import window_rows, window_store
from dsv41c.kernels.step import Step

W, C, H, R = 4, 8, 3, 4
ROPE = window_frequencies(R, 100.0)


def step_at(positions, tokens, slots=None):
    positions = torch.tensor(positions)
    slots = torch.arange(len(positions)) if slots is None else torch.tensor(slots)
    return Step(slots, positions, int(positions.max()) + tokens)


def slow_attention(q, rows, groups, sink, position):
    """One query [H, C] over a list of rows; rope undone at its position."""
    seen = torch.stack([*rows, *groups]) if rows or groups else torch.zeros(0, C)
    out = torch.zeros(H, C)
    for h in range(H):
        scores = [float(q[h] @ row) / math.sqrt(C) for row in seen]
        total = sum(math.exp(score) for score in scores) + math.exp(float(sink[h]))
        for score, row in zip(scores, seen, strict=True):
            out[h] += math.exp(score) / total * row
    return apply_rope(out[None, None], torch.tensor([[position]]), ROPE, R, undo=True)[0, 0]


def sequence(length, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(length, H, C, generator=generator), torch.randn(length, C, generator=generator)


def selection(length, ratio, seed=0):
    """Random visible groups of each position, ascending and -1 padded to 3, and the groups' rows."""
    generator = torch.Generator().manual_seed(100 + seed)
    pool = torch.randn(length // ratio + 1, C, generator=generator)
    topk = torch.full((length, 3), -1)
    for p in range(length):
        count = min(3, (p + 1) // ratio)
        chosen = torch.randperm((p + 1) // ratio, generator=generator)[:count].sort().values
        topk[p, :count] = chosen
    return pool, topk


SINK = torch.tensor([0.3, -1.0, 2.0])
CUTS = [[1] * 11, [11], [W, W, 3], [W - 1, W + 1, 3], [W + 1, W - 1, 3], [2, 9], [9, 2], [5, 1, 5], [1, 10]]


@pytest.mark.parametrize("ratio", [0, 1, 2])
@pytest.mark.parametrize("cut", CUTS)
def test_any_cut_against_a_loop(cut, ratio):
    q, rows = sequence(11)
    pool, topk = selection(11, ratio or 1)
    ring = torch.full((2, W, C), float("nan"))  # what a slot held before must not matter
    far = torch.full((2, *pool.shape), float("nan"))
    far[0] = pool
    position = 0
    for count in cut:
        part = slice(position, position + count)
        step = step_at([position], count)
        branch = {"compress_kv": far, "topk": topk[None, part]} if ratio else {}
        options = {"window": W, "ratio": ratio, "rope_dim": R}
        out = attend(step, q[None, part], ring, rows[None, part], ROPE, SINK, **branch, **options)
        assert window_store(step, rows[None, part], ring, window=W) is ring
        for t in range(count):
            p = position + t
            near = [rows[i] for i in range(max(0, p - W + 1), p + 1)]
            groups = [pool[j] for j in topk[p].tolist() if j >= 0] if ratio else []
            assert torch.allclose(out[0, t], slow_attention(q[p], near, groups, SINK, p), atol=2e-6)
        position += count
        for p in range(max(0, position - W), position):
            assert torch.equal(ring[0, p % W], rows[p])
    assert ring[1].isnan().all()


def test_sessions_at_different_positions_in_any_row_order_with_padding():
    lines = [sequence(9, seed) for seed in range(3)]
    pools = [selection(9, 2, seed) for seed in range(3)]
    ring, far = torch.full((4, W, C), float("nan")), torch.full((4, 5, C), float("nan"))
    for s in range(3):
        far[s] = pools[s][0]
    starts = [0, 0, 0]
    for sessions, count in (([1], 3), ([2, 0], 2), ([0, 1, 2], 3), ([2, 0, 1], 2), ([2, 0], 2)):
        parts = [slice(starts[s], starts[s] + count) for s in sessions]
        stacked = [
            torch.stack(
                [values[s][i][part] for s, part in zip(sessions, parts, strict=True)] + [values[0][i][:count]] * 2
            )
            for values, i in ((lines, 0), (lines, 1), (pools, 1))
        ]
        step = step_at([*[starts[s] for s in sessions], 0, 0], count, [*sessions, 3, 3])
        branch = {"compress_kv": far, "topk": stacked[2], "window": W, "ratio": 2, "rope_dim": R}
        out = attend(step, stacked[0], ring, stacked[1], ROPE, SINK, **branch)
        window_store(step, stacked[1], ring, window=W)
        for row, s in enumerate(sessions):
            for t in range(count):
                p = starts[s] + t
                near = [lines[s][1][i] for i in range(max(0, p - W + 1), p + 1)]
                groups = [pools[s][0][j] for j in pools[s][1][p].tolist() if j >= 0]
                assert torch.allclose(out[row, t], slow_attention(lines[s][0][p], near, groups, SINK, p), atol=2e-6)
            starts[s] += count


def test_blocks_of_queries_change_nothing(monkeypatch):
    q, rows = sequence(11)
    pool, topk = selection(11, 1)
    arguments = (q[None], torch.zeros(2, W, C), rows[None], ROPE, SINK)
    options = {"compress_kv": pool[None], "topk": topk[None], "window": W, "ratio": 1, "rope_dim": R}
    whole = attend(step_at([0], 11), *arguments, **options)
    monkeypatch.setattr(attend_module, "_GATHER_ELEMENTS", 3 * C * (W + 3))
    assert (attend(step_at([0], 11), *arguments, **options) - whole).abs().max() < 1e-6


def test_no_groups_yet():
    """The first token at ratio 2: the selection is empty, and so may the pool be."""
    q, rows = sequence(1)
    options = {"window": W, "ratio": 2, "rope_dim": R}
    arguments = (step_at([0], 1), q[None], torch.zeros(2, W, C), rows[None], ROPE, SINK)
    plain = attend(*arguments, **options)
    for capacity in (0, 4):
        empty = {"compress_kv": torch.zeros(2, capacity, C), "topk": torch.zeros(1, 1, 0, dtype=torch.long)}
        assert torch.equal(attend(*arguments, **empty, **options), plain)


@pytest.mark.parametrize("begin", [6, 8])
def test_rings_that_lack_rows(begin):
    """Positions before `window_begin` are not seen, whatever is in their places."""
    rows, q, sink = torch.randn(10, C), torch.randn(1, 2, H, C), torch.randn(H)
    ring = torch.full((1, W, C), float("nan"))
    for position in range(begin, 8):
        ring[0, position % W] = rows[position]
    step = replace(step_at([8], 2), window_begin=begin)
    found = attend(step, q, ring, rows[None, 8:], ROPE, sink, window=W, ratio=0, rope_dim=R)
    for token, position in enumerate((8, 9)):
        seen = [rows[at] for at in range(max(begin, position - W + 1), position + 1)]
        torch.testing.assert_close(found[0, token], slow_attention(q[0, token], seen, [], sink, position))


def test_nothing_to_see_gives_zero_and_extreme_sinks_are_finite():
    from dsv41c.kernels.reference.attend import _softmax_with_sink

    rows, there = torch.randn(1, 1, 5, C), torch.zeros(1, 1, 5, dtype=torch.bool)
    sink = torch.tensor([-300.0, 0.0, 300.0])
    assert torch.equal(_softmax_with_sink(torch.randn(1, 1, H, C), rows, there, sink), torch.zeros(1, 1, H, C))
    out = _softmax_with_sink(torch.randn(1, 1, H, C), rows, ~there, sink)
    assert torch.isfinite(out).all()
    assert torch.equal(out[0, 0, 2], torch.zeros(C))


def test_groups_that_are_not_there_are_not_read():
    """An unfinished group is never attended, and what its row holds (row 0 stands in for -1) does not matter."""
    q, rows = sequence(1)
    options = {"window": W, "ratio": 2, "rope_dim": R}
    arguments = (step_at([0], 1), q[None], torch.zeros(1, W, C), rows[None], ROPE, SINK)
    plain = attend(*arguments, **options)
    far = torch.full((1, 4, C), float("nan"))
    for first in (0, 3, -1):
        out = attend(*arguments, compress_kv=far, topk=torch.tensor([[[first, -1]]]), **options)
        assert torch.allclose(out, plain, atol=1e-6)


def test_window_rows_and_query():
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(1, 3, 32, generator=generator)
    wkv, weight = torch.randn(64, 32, generator=generator), torch.rand(64, generator=generator)
    step, rope = step_at([5], 3), window_frequencies(16, 100.0)
    options = {"rope_dim": 16, "eps": 1e-20}
    exact = window_rows(step, x, rope, wkv, weight, activation_quant="none", kv_cache="none", **options)
    want = apply_rope(norm(x @ wkv.T, weight, eps=1e-20), torch.tensor([[5, 6, 7]]), rope, 16)
    assert torch.allclose(exact, want)
    cached = window_rows(step, x, rope, wkv, weight, activation_quant="none", kv_cache="reference", **options)
    assert torch.equal(cached, fake_fp8(exact))
    quantised = window_rows(step, x, rope, wkv, weight, activation_quant="fp8", kv_cache="none", **options)
    plain = window_rows(step, fake_fp8(x), rope, wkv, weight, activation_quant="none", kv_cache="none", **options)
    assert torch.equal(quantised, plain)

    wq_a, q_norm, wq_b = (torch.randn(*s, generator=generator) for s in ((32, 32), (32,), (48, 32)))
    options = {"heads": 3, "rope_dim": 16, "eps": 1e-20}
    heads, latent = query(step, x, rope, wq_a, q_norm, wq_b, activation_quant="none", **options)
    assert torch.allclose(latent, norm(x @ wq_a.T, q_norm, eps=1e-20))
    flat = (latent @ wq_b.T).reshape(1, 3, 3, 16)
    assert torch.allclose(heads, apply_rope(flat, torch.tensor([[5, 6, 7]]), rope, 16), atol=1e-6)


def test_query_heads_are_not_normed():
    """A head scaled by 100 stays so."""
    generator = torch.Generator().manual_seed(4)
    x, wq_a, wq_b = (torch.randn(*s, generator=generator) for s in ((1, 2, 32), (32, 32), (16, 32)))
    scaled = wq_b.clone()
    scaled[8:] *= 100
    options = {"heads": 2, "rope_dim": 4, "eps": 1e-20, "activation_quant": "none"}
    plain, big = (query(step_at([3], 2), x, ROPE[:2], wq_a, torch.ones(32), w, **options)[0] for w in (wq_b, scaled))
    assert torch.allclose(big[:, :, 1], plain[:, :, 1] * 100, rtol=1e-4)
    assert torch.equal(big[:, :, 0], plain[:, :, 0])


def test_output_is_grouped():
    generator = torch.Generator().manual_seed(5)
    attended = torch.randn(2, 3, 4, 8, generator=generator)
    wo_a, wo_b = torch.randn(64, 16, generator=generator), torch.randn(10, 64, generator=generator)
    out = output(attended, wo_a, wo_b, groups=2, activation_quant="none")
    low = torch.cat([attended[:, :, 2 * g : 2 * g + 2].flatten(2) @ wo_a[32 * g : 32 * g + 32].T for g in range(2)], -1)
    assert torch.allclose(out, low @ wo_b.T, atol=1e-3)
    quantised = output(attended, wo_a, wo_b, groups=2, activation_quant="fp8")
    assert torch.allclose(quantised, fake_fp8(low) @ wo_b.T, atol=5e-2)
