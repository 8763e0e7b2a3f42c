"""Attention over many rows against the reference: ring edges, sessions, selections, packed rows, padding."""

from dataclasses import replace

import pytest
import torch

from dsv41c.kernels.reference.attend import attend
from dsv41c.kernels.reference.fake_quant import fake_fp4_e4m3, fake_fp8
from dsv41c.kernels.reference.rows import pack, unpack
from dsv41c.kernels.step import Step
from dsv41c.kernels.triton import attend_rows as module
from dsv41c.kernels.triton.attend_rows import attend_rows

W, R = 16, 16
ROPE = 10000.0 ** -torch.arange(0, 1, 2 / R)


def case(positions, tokens, *, heads=3, channels=64, ratio=1, selected=20, packed=False, padding=0, seed=0):
    """A step and the arguments of `attend`: pools hold junk that must not matter, a third of the selection is -1."""
    random = torch.Generator().manual_seed(seed)

    def normal(*shape, dtype=torch.bfloat16):
        return torch.randn(shape, generator=random).to(dtype)

    batch, spare = len(positions) + padding, len(positions) + 2
    slots = [len(positions) - i for i in range(len(positions))] + [spare] * padding
    positions = [*positions, *[0] * padding]
    step = Step(torch.tensor(slots), torch.tensor(positions), max(positions) + tokens)
    capacity = (max(positions) + tokens) // max(ratio, 1) + 3
    ring, pool = fake_fp8(normal(spare + 1, W, channels)), fake_fp4_e4m3(normal(spare + 1, capacity, channels))
    ring, pool = (pack("window_kv", ring), pack("compress_kv", pool)) if packed else (ring, pool)
    given = [normal(batch, tokens, heads, channels), ring, fake_fp8(normal(batch, tokens, channels)), ROPE]
    named = {"window": W, "ratio": ratio, "rope_dim": R}
    if ratio:
        topk = torch.randint(0, capacity, (batch, tokens, selected), generator=random)
        topk[torch.rand(topk.shape, generator=random) < 0.3] = -1
        named |= {"compress_kv": pool, "topk": topk}
    return step, [*given, normal(heads, dtype=torch.float32)], named


def check(step, given, named):
    query, ring, rows, *rest = given
    wide = {**named, "compress_kv": None if "compress_kv" not in named else unpack("compress_kv", named["compress_kv"])}
    arbiter = attend(step, query.float(), unpack("window_kv", ring).float(), rows.float(), *rest, **wide)
    error = (attend(step, *given, **named).float() - arbiter).norm()
    ours = attend_rows(step, *given, **named)
    assert ours.dtype == torch.bfloat16
    assert (ours.float() - arbiter).norm() <= 1.2 * error
    return ours, arbiter


@pytest.mark.parametrize("packed", [False, True], ids=["floats", "packed"])
@pytest.mark.parametrize("ratio", [0, 1, 2])
@pytest.mark.parametrize("positions", [[0], [W - 1], [W], [3 * W + 5]], ids=str)
def test_ring_edges(positions, ratio, packed):
    check(*case(positions, 5, ratio=ratio, packed=packed))


@pytest.mark.parametrize("packed", [False, True], ids=["floats", "packed"])
def test_sessions_with_padding_and_more_tokens_than_the_window(packed):
    step, given, named = case([0, 40], W + 3, ratio=2, packed=packed, padding=1, heads=2)
    check(step, given, named)


@pytest.mark.parametrize("tile", [module.Tile(64, 64, 8, 2), module.Tile(32, 128, 8, 1), module.Tile(16, 16, 4, 1)])
@pytest.mark.parametrize(("heads", "channels"), [(20, 32), (16, 96), (64, 128)])
def test_tiles_and_widths(monkeypatch, tile, heads, channels):
    monkeypatch.setattr(module, "tile_for", lambda *_: tile)
    check(*case([W + 3], 2, heads=heads, channels=channels, selected=70))
    check(*case([W + 3], 2, heads=heads, channels=channels, selected=70, packed=True))


def test_ids_twice_and_in_any_order():
    step, given, named = case([50], 3, ratio=1)
    named["topk"][:, :, 5:10] = named["topk"][:, :, :5]
    check(step, given, named)


@pytest.mark.parametrize("selected", [0, 3])
def test_no_selection_and_no_groups(selected):
    step, given, named = case([2], 3, ratio=1, selected=selected)
    named["topk"].fill_(-1)
    check(step, given, named)
    named |= {"compress_kv": given[1][:, :0], "topk": named["topk"][:, :, :0]}
    check(step, given, named)


def test_with_nothing_to_see_it_returns_0():
    step, given, named = case([5], 2, ratio=1)
    before_all = Step(step.slots, step.positions - 1000, step.context)
    assert (attend_rows(before_all, *given, **named) == 0).all()


def test_junk_in_pools_does_not_matter():
    step, given, named = case([3], 4, ratio=1)
    expected = attend_rows(step, *given, **named)
    slot = int(step.slots[0])
    ring, pool = given[1], named["compress_kv"]
    kept_ring, kept_pool = ring[slot, :3].clone(), pool[slot, :7].clone()
    ring.fill_(float("nan"))
    pool.fill_(float("nan"))
    ring[slot, :3], pool[slot, :7] = kept_ring, kept_pool
    assert torch.equal(attend_rows(step, *given, **named), expected)


def test_sinks_that_outweigh_everything():
    step, given, named = case([20], 2, ratio=1)
    given[-1].copy_(torch.tensor([100.0, -100.0, 0.0]))
    ours, _ = check(step, given, named)
    assert (ours[:, :, 0].abs() < 1e-30).all()


@pytest.mark.parametrize("packed", [False, True], ids=["floats", "packed"])
@pytest.mark.parametrize("begin", [3 * W + 1, 3 * W + 5])
def test_rings_that_lack_rows(begin, packed):
    """A prompt's rows before the window of its tail: whatever the ring holds in their places is not seen."""
    step, given, named = case([3 * W + 5], W + 3, packed=packed)
    step = replace(step, window_begin=begin)
    ours, _ = check(step, given, named)
    there = {position % W for position in range(begin, 3 * W + 5)}
    ring = given[1].clone()
    ring[step.slots[0], [place for place in range(W) if place not in there]] = 99
    assert torch.equal(attend_rows(step, given[0], ring, *given[2:], **named), ours)
