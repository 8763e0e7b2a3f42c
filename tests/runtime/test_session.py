"""Sessions: nothing of one reaches another, and reset, fork and reuse give what a fresh session gives."""

from __future__ import annotations

import itertools
import random
from functools import cache
from typing import Any

import pytest
import torch
from golden_tiny import LOGITS_BOUND, ORACLE, apart, ids
from golden_tiny import engine as engine_of
from torch import Tensor

from dsv41c.diagnostics import UserFault
from dsv41c.runtime.engine import Engine
from dsv41c.runtime.session import Session

A = ids()[:20]
B = ids()[30:49]
C = ids()[8:26]


def engine(**options: Any) -> Engine:
    """Fewer iterations of a loop that knows no sessions."""
    return engine_of(ORACLE, ("sinkhorn_iters: 20", "sinkhorn_iters: 2"), **options)


@pytest.fixture(scope="module")
def shared() -> Engine:
    """Empty slots hold NaN, so whatever reads what another session left there shows."""
    return engine(debug=2)


@pytest.fixture(autouse=True)
def nothing_stays_open(shared: Engine) -> None:
    assert shared.free_sessions == 4


@cache
def _alone(tokens: tuple[int, ...]) -> Tensor:
    with engine().open() as session:
        return torch.stack([session.feed([token]) for token in tokens])


def alone(tokens: list[int]) -> Tensor:
    """Logits of every position, token by token, in an engine that never had another session."""
    return _alone(tuple(tokens))


def test_interleaved_sessions_are_bit_identical(shared: Engine) -> None:
    with shared.open() as a, shared.open() as b:
        rows: dict[str, list[Tensor]] = {"a": [], "b": []}
        for one, two in itertools.zip_longest(A, B):
            if one is not None:
                rows["a"].append(a.feed([one]))
            if two is not None:
                rows["b"].append(b.feed([two]))
    assert torch.equal(torch.stack(rows["a"]), alone(A))
    assert torch.equal(torch.stack(rows["b"]), alone(B))


def test_interleaved_chunks_are_bit_identical(shared: Engine) -> None:
    with shared.open() as a, shared.open() as b:
        got = [
            (a if row == "a" else b).feed(part)
            for row, part in (("a", A[:7]), ("b", B[:5]), ("a", A[7:]), ("b", B[5:]))
        ]
    for tokens, cut, first, second in ((A, 7, got[0], got[2]), (B, 5, got[1], got[3])):
        with shared.open() as session:
            assert torch.equal(session.feed(tokens[:cut]), first)
            assert torch.equal(session.feed(tokens[cut:]), second)


@pytest.mark.parametrize("disturb", ["reset", "close", "fork", "feed", "break"])
def test_others_do_not_notice(shared: Engine, disturb: str) -> None:
    """Whatever is done to B between any two tokens of A and C, both stay bit-identical to running alone."""
    generator = random.Random(disturb)
    with shared.open() as a, shared.open() as b, shared.open() as c:
        rows: list[list[Tensor]] = [[], []]
        for one, two in zip(A, C, strict=False):
            rows[0].append(a.feed([one]))
            if disturb == "reset":
                b.reset()
                b.feed(generator.sample(B, generator.randint(1, 9)))
            elif disturb == "close":
                b.close()
                b = shared.open()
                b.feed(generator.sample(B, generator.randint(1, 9)))
            elif disturb == "fork":
                if b.room < 10 or not b.length:
                    b.reset()
                b.feed(B[:3])
                copy = b.fork()
                copy.feed(B[3:5])
                copy.close()
            elif disturb == "feed" and b.room:
                b.feed([B[0]])
            else:
                with pytest.raises(UserFault):
                    b.feed([512])
            rows[1].append(c.feed([two]))
        b.close()
    length = len(rows[0])
    assert torch.equal(torch.stack(rows[0]), alone(A[:length]))
    assert torch.equal(torch.stack(rows[1]), alone(C[:length]))


def test_reset_is_a_fresh_session(shared: Engine) -> None:
    expected = alone(B)
    with shared.open() as session:
        session.feed(A[:7])
        session.reset()
        assert session.length == 0
        assert torch.equal(torch.stack([session.feed([token]) for token in B]), expected)


@pytest.mark.parametrize("length", [1, 2, 7, 15, 16, 17])
def test_fork_goes_on_like_its_origin(shared: Engine, length: int) -> None:
    with shared.open() as whole, shared.open() as session:
        whole.feed(A[:length])
        session.feed(A[:length])
        with session.fork() as copy:
            assert copy.length == length
            session.feed(B[:5])  # must not reach the copy
            assert torch.equal(copy.feed(A[length:]), whole.feed(A[length:]))


def test_a_reused_slot_starts_empty(shared: Engine) -> None:
    expected = alone(B)
    for length in (1, 17):
        session = shared.open()
        slot = session.slot
        session.feed(A[:length])
        session.close()
        again = shared.open()
        assert again.slot == slot
        assert torch.equal(torch.stack([again.feed([token]) for token in B]), expected)
        again.close()


def test_preempted_and_resumed_by_recompute(shared: Engine) -> None:
    """Preempt A after 7 tokens, with a tail held; run B in its slot; resume A by feeding it again. Twice."""
    expected = alone(A)
    for _ in range(2):
        a = shared.open()
        slot = a.slot
        a.feed(A[:7])
        a.close()
        with shared.open() as b:
            assert b.slot == slot
            b.feed(B)
        with shared.open() as resumed:
            assert resumed.length == 0
            rows = resumed.feed(A[:7], all_logits=True)
            assert apart(rows, expected[:7]) <= LOGITS_BOUND
            assert apart(torch.stack([resumed.feed([token]) for token in A[7:]]), expected[7:]) <= LOGITS_BOUND


@pytest.mark.parametrize("length", range(1, 10))
def test_lengths_around_group_boundaries(shared: Engine, length: int) -> None:
    """One prefill and token by token agree, and the rows of complete groups are there: floor(L / 2), and L."""
    with shared.open() as once, shared.open() as stepped:
        got = once.feed(A[:length], all_logits=True)
        rows = torch.stack([stepped.feed([token]) for token in A[:length]])
        assert apart(got, rows) <= LOGITS_BOUND
        for layer, groups in ((2, length // 2), (4, length // 2), (6, length)):
            for kind in ("compress_kv", "index_k"):
                held = [shared.pools.rows(f"{kind}@L{layer}", session.slot) for session in (once, stepped)]
                assert apart(held[0][:groups], held[1][:groups]) <= LOGITS_BOUND
                assert held[0][:groups].isfinite().all()
        assert apart(once.feed(A[length : length + 3]), stepped.feed(A[length : length + 3])) <= LOGITS_BOUND


def test_state_does_not_depend_on_the_row_in_a_batch(shared: Engine) -> None:
    """A (7 tokens) and B (4) as [A, B], then [B, A], then [A] after B ends, then [A, C] in B's old slot."""
    expected = alone(A)
    a, b = shared.open(), shared.open()
    a.feed(A[:7])
    b.feed(B[:4])
    assert apart(shared.decode({a: A[7], b: B[4]})[a], expected[7]) <= LOGITS_BOUND
    assert apart(shared.decode({b: B[5], a: A[8]})[a], expected[8]) <= LOGITS_BOUND
    slot = b.slot
    b.close()
    assert apart(shared.decode({a: A[9]})[a], expected[9]) <= LOGITS_BOUND
    c = shared.open()
    assert c.slot == slot
    logits = shared.decode({a: A[10], c: C[0]})
    assert apart(logits[a], expected[10]) <= LOGITS_BOUND
    assert apart(logits[c], alone(C[:1])[0]) <= LOGITS_BOUND
    a.close()
    c.close()


def test_history_carries_over_a_cut(shared: Engine) -> None:
    """The n-gram history of [5, 9 | 9, 2, 7] is that of the unsplit run; BOS alone is a prompt."""
    with shared.open() as whole, shared.open() as split, shared.open() as first:
        split.feed([5, 9])
        assert apart(split.feed([9, 2, 7]), whole.feed([5, 9, 9, 2, 7])) <= LOGITS_BOUND
        slots = [shared.pools.rows("token_history", session.slot) for session in (whole, split)]
        assert torch.equal(*slots) and slots[0].shape == (3,)
        assert first.feed([0]).shape == (512,)


@pytest.mark.parametrize("seed", range(4))
def test_random_lives(shared: Engine, seed: int) -> None:
    """Opened, fed, forked, reset and closed at random, each session ends as if it had been alone with its feeds."""
    generator = random.Random(seed)
    lives: dict[Session, list[list[int]]] = {}
    last: dict[Session, Tensor] = {}
    for _ in range(30):
        session = generator.choice(list(lives)) if lives else None
        act = generator.choice(["open", "fork", "reset", "close", "feed", "feed", "feed", "feed"])
        if act == "open" and shared.free_sessions:
            lives[shared.open()] = []
        elif session is None:
            continue
        elif act == "fork" and shared.free_sessions and session in last:
            copy = session.fork()
            lives[copy], last[copy] = list(lives[session]), last[session]
        elif act == "reset":
            session.reset()
            lives[session] = []
            last.pop(session, None)
        elif act == "close":
            session.close()
            del lives[session]
            last.pop(session, None)
        elif act == "feed":
            part = generator.choices(range(512), k=generator.randint(1, 5))
            last[session] = session.feed(part)
            lives[session].append(part)
    for session in lives:
        session.close()
    fresh = engine()
    for session, logits in last.items():
        with fresh.open() as again:
            for part in lives[session]:
                expected = again.feed(part)
        assert torch.equal(logits, expected)
