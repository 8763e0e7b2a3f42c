"""Generation: how many tokens, when it stops, and what it asks room for."""

from __future__ import annotations

import pytest
import torch
from golden_tiny import engine, golden, ids
from torch import Tensor

from dsv41c.diagnostics import UserFault
from dsv41c.runtime.engine import Engine
from dsv41c.runtime.generate import generate
from dsv41c.runtime.sample import Sampler
from dsv41c.runtime.session import Session


@pytest.fixture(scope="module")
def shared() -> Engine:
    return engine()


def test_greedy_tokens_are_the_highest_logits(shared: Engine) -> None:
    with shared.open() as session:
        tokens = list(generate(session, ids()[:7], 5, Sampler(), eos=None))
        assert [token.finish for token in tokens] == [None] * 4 + ["length"]
        assert session.length == 11  # the last token is not fed
    assert tokens[0].id == int(golden()["prefill64.logits"][6].argmax())
    with shared.open() as session:
        rows = session.feed([*ids()[:7], *(token.id for token in tokens[:-1])], all_logits=True)
    assert [int(row.argmax()) for row in rows[6:]] == [token.id for token in tokens]


def test_it_stops_at_eos(shared: Engine) -> None:
    with shared.open() as session:
        free = [token.id for token in generate(session, ids()[:7], 6, Sampler(), eos=None)]
    stop = free[3]
    with shared.open() as session:
        tokens = list(generate(session, ids()[:7], 6, Sampler(), eos=stop))
    assert [token.id for token in tokens] == free[: free.index(stop) + 1]
    assert tokens[-1].finish == "eos"


def test_nothing_is_generated_but_the_prompt_is_fed(shared: Engine) -> None:
    with shared.open() as session:
        assert list(generate(session, [3, 4], 0, Sampler(), eos=1)) == []
        assert session.length == 2


@pytest.mark.parametrize(("count", "n", "fits"), [(80, 0, True), (80, 1, True), (80, 2, False), (79, 2, True)])
def test_room_is_asked_for_at_once(shared: Engine, count: int, n: int, fits: bool) -> None:
    with shared.open() as session:
        if fits:
            assert len(list(generate(session, [5] * count, n, Sampler(), eos=None))) == n
            return
        with pytest.raises(UserFault) as fault:
            generate(session, [5] * count, n, Sampler(), eos=None)
        assert [diagnostic.code for diagnostic in fault.value.diagnostics] == ["DSV851"]
        assert session.length == 0


def test_negative_counts(shared: Engine) -> None:
    with shared.open() as session, pytest.raises(UserFault) as fault:
        generate(session, [5], -1, Sampler(), eos=None)
    assert [diagnostic.code for diagnostic in fault.value.diagnostics] == ["DSV860"]


def test_sampling_repeats_by_seed(shared: Engine) -> None:
    runs = []
    for seed in (3, 3, 4):
        with shared.open() as session:
            runs.append([token.id for token in generate(session, [5, 6], 8, Sampler(1.0, 0.9, seed), eos=None)])
    assert runs[0] == runs[1] != runs[2]


def test_another_way_to_feed(shared: Engine) -> None:
    seen: list[list[int]] = []

    def feed(session: Session, tokens: list[int]) -> Tensor:
        seen.append(list(tokens))
        return torch.eye(4)[[len(seen) % 4]]

    with shared.open() as session:
        tokens = [token.id for token in generate(session, [7, 8], 3, Sampler(), eos=None, feed=feed)]
    assert tokens == [1, 2, 3] and seen == [[7, 8], [1], [2]]
