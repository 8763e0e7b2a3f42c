"""The engine: batches, buckets and padding, what it refuses, and what a failed step leaves behind."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from golden_tiny import LOGITS_BOUND, TINY, apart, engine, ids, plan, weights
from torch import Tensor

from dsv41c.diagnostics import UserFault
from dsv41c.kernels.registry import kernels_for
from dsv41c.runtime.engine import Engine
from dsv41c.runtime.plan import Plan
from dsv41c.runtime.recording import Trace
from dsv41c.runtime.session import Session

MANY = (
    "max_sessions: 4, prefill_chunk: 64, decode_buckets: [1, 2, 4]",
    "max_sessions: 9, prefill_chunk: 64, decode_buckets: [1, 2, 4, 8]",
)
PROMPTS = [ids()[start : start + 2 + start % 5] for start in range(9)]


@pytest.fixture(scope="module")
def shared() -> Engine:
    return engine(debug=2)


def codes(fault: pytest.ExceptionInfo[UserFault]) -> list[str]:
    return [diagnostic.code for diagnostic in fault.value.diagnostics]


# --- batches --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 7, 8, 9])
def test_padded_batches_equal_single_rows(count: int) -> None:
    """Three tokens for each of `count` sessions; 9 is above the largest bucket and takes two steps."""
    many = engine("f32-act_none-kv_none", MANY, debug=2)
    sessions = [many.open() for _ in range(count)]
    for session, prompt in zip(sessions, PROMPTS, strict=False):
        session.feed(prompt)
    got = [many.decode({session: 20 + step for session in sessions}) for step in range(3)]
    for index, session in enumerate(sessions):
        assert session.length == len(PROMPTS[index]) + 3
        session.reset()
        session.feed(PROMPTS[index])
        for step in range(3):
            assert apart(session.feed([20 + step]), got[step][session]) <= LOGITS_BOUND
    if count == 9:
        batches = [entry[0] for entry in many.timings[count : count + 6]]
        assert batches == [8, 1, 8, 1, 8, 1]


def test_batches_are_padded_to_the_next_bucket() -> None:
    padded = engine("f32-act_none-kv_none", ("decode_buckets: [1, 2, 4]", "decode_buckets: [3]"))
    assert padded.buckets == (3,)
    trace = Trace(frozenset({"logits"}))
    sessions = [padded.open() for _ in range(4)]
    padded.decode({session: 5 for session in sessions}, trace=trace)
    assert [step.values["logits"].shape[0] for step in trace.steps] == [3, 3]


def test_rows_may_come_in_any_order(shared: Engine) -> None:
    orders = list(itertools.permutations(range(3)))
    results: list[list[Tensor]] = []
    for order in orders:
        sessions = [shared.open() for _ in range(3)]
        for session, prompt in zip(sessions, PROMPTS, strict=False):
            session.feed(prompt)
        logits = shared.decode([(sessions[index], 30 + index) for index in order])
        results.append([logits[session] for session in sessions])
        for session in sessions:
            session.close()
    for result in results[1:]:
        assert all(apart(a, b) <= LOGITS_BOUND for a, b in zip(result, results[0], strict=True))


def test_padding_touches_only_the_spare_slot(shared: Engine) -> None:
    """With 3 of 4 rows of a bucket, the fourth slot keeps every bit."""
    sessions = [shared.open() for _ in range(4)]
    for session in sessions:
        session.feed(PROMPTS[3])
    idle = sessions.pop(1)
    before = {name: pool[idle.slot].clone() for name, pool in shared.pools.tensors.items()}
    shared.decode({session: 9 for session in sessions})
    for name, pool in shared.pools.tensors.items():
        assert torch.equal(pool[idle.slot].nan_to_num(123.0), before[name].nan_to_num(123.0)), name
    for session in (*sessions, idle):
        session.close()


def test_the_same_call_twice_gives_the_same(shared: Engine) -> None:
    with shared.open() as one, shared.open() as two:
        assert torch.equal(one.feed(ids()[:9]), two.feed(ids()[:9]))


def test_tensors_are_ids_too(shared: Engine) -> None:
    with shared.open() as one, shared.open() as two:
        assert torch.equal(one.feed(torch.tensor([3, 5, 7])), two.feed([3, 5, 7]))


def test_a_session_can_be_filled_to_the_last_token(shared: Engine) -> None:
    tokens = (ids() * 2)[:80]
    with shared.open() as once, shared.open() as stepped:
        once.feed(tokens)
        for start in range(0, 80, 9):
            last = stepped.feed(tokens[start : start + 9])
        assert once.room == stepped.room == 0
        once.reset()
        assert apart(once.feed(tokens, chunk=80), last) <= LOGITS_BOUND


# --- refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tokens", "code", "words"),
    [
        ([5, 512], "DSV850", "512 at position 3"),
        ([-1], "DSV850", "-1 at position 2"),
        ([2**80], "DSV850", str(2**80)),
        ([1.5], "DSV850", "1.5"),
        (["7"], "DSV850", "'7'"),
        ([None], "DSV850", "None"),
        ([], "DSV854", "no token"),
        ([1] * 79, "DSV851", "78 more fit"),
    ],
)
def test_refused_feeds_change_nothing(shared: Engine, tokens: list[Any], code: str, words: str) -> None:
    with shared.open() as session, shared.open() as other:
        session.feed([3, 4])
        other.feed([3, 4])
        with pytest.raises(UserFault, match=words) as fault:
            session.feed(tokens)
        assert codes(fault) == [code]
        assert session.length == 2 and not session.broken
        assert torch.equal(session.feed([5]), other.feed([5]))


def test_refused_batches_change_nothing(shared: Engine) -> None:
    """All findings at once, and not even the good rows are decoded."""
    with shared.open() as good, shared.open() as full:
        good.feed([3])
        full.feed((ids() * 2)[:80])
        with pytest.raises(UserFault) as fault:
            shared.decode([(good, 4), (full, 4), (good, 600)])
        assert codes(fault) == ["DSV857", "DSV851", "DSV850"]
        assert good.length == 1
        with pytest.raises(UserFault) as fault:
            shared.decode({})
        assert codes(fault) == ["DSV854"]


def test_slots_run_out(shared: Engine) -> None:
    sessions = [shared.open() for _ in range(4)]
    with pytest.raises(UserFault, match="all 4 sessions") as fault:
        shared.open()
    assert codes(fault) == ["DSV852"]
    with pytest.raises(UserFault) as fault:
        sessions[0].fork()
    assert codes(fault) == ["DSV852"]
    for session in sessions:
        session.close()


@pytest.mark.parametrize("use", ["feed", "decode", "fork", "reset"])
def test_a_closed_session_is_stale(shared: Engine, use: str) -> None:
    def using(session: Session) -> object:
        return {
            "feed": lambda: session.feed([1]),
            "decode": lambda: shared.decode({session: 1}),
            "fork": session.fork,
            "reset": session.reset,
        }[use]()

    stale = shared.open()
    stale.close()
    stale.close()
    with shared.open() as heir:
        assert heir.slot == stale.slot
        with pytest.raises(UserFault) as fault:
            using(stale)
        assert codes(fault) == ["DSV853"]
        stale.close()  # must not close the heir
        assert not heir.closed
        heir.feed([1])


def test_sessions_of_other_engines_are_refused(shared: Engine) -> None:
    other = engine()
    with other.open() as foreign:
        for call in (
            lambda: shared.feed(foreign, [1]),
            lambda: shared.decode({foreign: 1}),
            lambda: shared.close(foreign),
        ):
            with pytest.raises(UserFault) as fault:
                call()
            assert codes(fault) == ["DSV855"]


def test_chunks_below_one_are_refused(shared: Engine) -> None:
    with shared.open() as session, pytest.raises(UserFault) as fault:
        session.feed([1], chunk=0)
    assert codes(fault) == ["DSV859"]


class Failing:
    """Kernels of which one fails when told to."""

    def __init__(self) -> None:
        self.armed = False

    def __getattr__(self, kind: str) -> Any:
        if kind == "route" and self.armed:
            raise MemoryError("no memory")
        return getattr(kernels_for("cpu"), kind)


def test_a_failed_step_breaks_its_sessions_only() -> None:
    kernels = Failing()
    failing = engine(kernels=kernels)
    a, b, c = failing.open(), failing.open(), failing.open()
    for session in (a, b, c):
        session.feed([3, 4, 5])
    kernels.armed = True
    with pytest.raises(UserFault) as error:
        failing.decode({a: 6, b: 6})
    assert codes(error) == ["DSV841"]
    kernels.armed = False
    assert a.broken and b.broken and not c.broken
    for call in (lambda: a.feed([6]), a.fork, lambda: failing.decode({b: 6})):
        with pytest.raises(UserFault) as fault:
            call()
        assert codes(fault) == ["DSV856"]
    expected = c.feed([6])
    a.reset()
    a.feed([3, 4, 5])
    assert torch.equal(a.feed([6]), expected)


def test_plans_for_other_machines_are_refused() -> None:
    manifest = plan().manifest
    manifest = manifest.model_copy(update={"target": manifest.target.model_copy(update={"family": "hpu"})})
    with pytest.raises(UserFault, match="does not run here") as fault:
        Engine(Plan(TINY, manifest, {}), TINY, weights=weights())
    assert codes(fault) == ["DSV858"]
