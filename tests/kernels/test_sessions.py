"""Whole-model state across calls: batches, row orders, padding rows, and slots used again."""

from functools import cache

import pytest
import torch

from .harness import Run, TinyModel

LENGTH = 21  # past the window of 16, and odd


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@cache
def model():
    return TinyModel()


@cache
def lines():
    return torch.randint(3, 500, (3, LENGTH), generator=torch.Generator().manual_seed(1))


@cache
def alone(session):
    """Logits and pools of a session that runs by itself, fed at once."""
    run = Run(model(), context=LENGTH)
    return run.call(lines()[session][None], torch.tensor([0]), torch.tensor([0]))[0], run.pools


def feed(run, starts, sessions, count, padding=0, context=None):
    """Feed `count` tokens to these sessions, session s in slot s; the spare slot takes padding rows."""
    ids = [lines()[s, starts[s] : starts[s] + count] for s in sessions] + [lines()[0, :count]] * padding
    slots = torch.tensor([*sessions, *[run.pools["token_history"].shape[0] - 1] * padding])
    positions = torch.tensor([*[starts[s] for s in sessions], *[0] * padding])
    logits = run.call(torch.stack(ids), slots, positions, context)
    for row, s in enumerate(sessions):
        want = alone(s)[0][starts[s] : starts[s] + count]
        assert (logits[row] - want).abs().max() < 5e-5  # measured at most 9.8e-6
        starts[s] += count


@pytest.mark.parametrize("padding", [0, 2])
def test_batches_in_any_row_order(padding):
    run, starts = Run(model(), context=LENGTH, sessions=3, fill=5.0), [0, 0, 0]
    calls = (([1], 7), ([2, 0], 1), ([0, 1, 2], 3), ([2, 1], 4), ([1, 2, 0], 1), ([2, 0, 1], 1))
    for sessions, count in calls:
        feed(run, starts, sessions, count, padding)
    for s in range(3):
        feed(run, starts, [s], LENGTH - starts[s], padding)
    for s in range(3):
        for name, pool in alone(s)[1].items():
            if "group_tail" in name and pool.shape[2] == 1:
                continue  # a ratio-1 source keeps no tail
            assert (run.pools[name][s].float() - pool[0].float()).abs().max() < 5e-5, name


def test_a_longer_context_than_needed_changes_nothing():
    """What a bucket of context lengths does: more groups in sight, all of them invisible."""
    run, starts = Run(model(), context=64, fill=float("nan")), [0, 0, 0]
    run.pools["token_history"].fill_(77)
    for count in (3, 1, 1, 9, 7):
        feed(run, starts, [0], count, context=64)


def test_a_slot_used_again_and_resumed_by_recompute():
    """A session is dropped after 7 tokens (a tail is open), another takes its slot, the first one starts over."""
    run = Run(model(), context=LENGTH, sessions=3)
    feed(run, [0, 0, 0], [1], 7)
    for session in (0, 1, 1):
        ids, slot = lines()[session][None], torch.tensor([1])
        logits = [run.call(ids[:, a:b], slot, torch.tensor([a]))[0] for a, b in ((0, 6), (6, 7), (7, LENGTH))]
        assert (torch.cat(logits) - alone(session)[0]).abs().max() < 5e-5


def test_other_sessions_are_untouched():
    run, starts = Run(model(), context=LENGTH, sessions=2), [0, 0, 0]
    feed(run, starts, [0], 9)
    before = {name: pool[0].clone() for name, pool in run.pools.items()}
    for count in (5, 1, 1):
        feed(run, starts, [1], count, padding=1)
    assert all(torch.equal(run.pools[name][0], pool) for name, pool in before.items())


def test_bf16_chunks_give_the_same_cache_kinds_and_finite_logits():
    bf16 = TinyModel("bf16", "fp8", "reference")
    run = Run(bf16, context=LENGTH)
    for start, count in ((0, 5), (5, 1), (6, LENGTH - 6)):
        logits = run.call(lines()[0][None, start : start + count], torch.tensor([0]), torch.tensor([start]))
        assert logits.dtype == torch.float32
        assert torch.isfinite(logits).all()
    assert run.values["L9.streams"].dtype == torch.bfloat16
    assert run.pools["compress_kv@L2"].dtype == torch.bfloat16
