"""Plans of several stages in one process: the same numbers as one stage, and no more on the way than the plan says."""

from __future__ import annotations

import pytest
import torch
from golden_tiny import ORACLE, ids, plan
from splits import engine_of, split

from dsv41c.runtime.engine import Engine
from dsv41c.runtime.stages.transport import LocalTransport

CUTS = [
    *(([end, 10], None) for end in (3, 5, 7)),  # `test_splits` has every one, with a shorter story
    ([3, 7, 10], None),
    ([5, 6, 7, 10], [0, 1, 0, 1]),
    ([1, 2, 8, 9, 10], None),
    ([2, 4, 7, 8, 10], [0, 1, 2, 0, 1]),
]


def story(running: Engine) -> list[torch.Tensor]:
    """Logits of prompts in odd chunks, decode steps of several sessions, a fork, a reset, a session in a freed slot."""
    tokens, found = ids(), []
    a, b = running.open(), running.open()
    found += [a.feed(tokens[:23], chunk=7), b.feed(tokens[5:6]), b.feed(tokens[6:45], chunk=16)]
    for step in range(3):
        logits = running.decode({a: tokens[30 + step], b: tokens[40 + step]})
        found += [logits[a], logits[b]]
    c = a.fork()
    found += [c.feed(tokens[50:61]), a.feed(tokens[3:5], all_logits=True)]
    b.close()
    c.reset()
    d = running.open()
    found += [d.feed(tokens[:40]), c.feed(tokens[20:31], all_logits=True)]
    found += list(running.decode({d: 9, c: 8, a: 7}).values())
    for session in (a, c, d):
        session.close()
    return found


@pytest.fixture(scope="module")
def expected() -> list[torch.Tensor]:
    return story(engine_of(plan()))


@pytest.mark.parametrize(("ends", "devices"), CUTS, ids=str)
def test_every_cut_gives_the_numbers_of_one_stage(
    ends: list[int], devices: list[int] | None, expected: list[torch.Tensor]
) -> None:
    within(story(engine_of(split(ends, devices))), expected)


def within(got: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    """The same story, number by number."""
    assert all(torch.equal(a, b) for a, b in zip(got[:-3], expected[:-3], strict=True))
    # The last step has a padding row, of which only the first stage knows the tokens: 4e-6 seen, as for other padding.
    assert all(torch.allclose(a, b, rtol=0, atol=2e-5) for a, b in zip(got[-3:], expected[-3:], strict=True))


@pytest.mark.parametrize("tail", ["every", "exact", "bounded"])
def test_tails_cross_boundaries(tail: str) -> None:
    room = ("max_context: 80", "max_context: 160"), ("prefill_chunk: 64", "prefill_chunk: 37")
    one, cut = engine_of(plan(ORACLE, *room), tail=tail), engine_of(split([7, 9, 10], None, *room), tail=tail)
    tokens = (ids() * 3)[:150]
    with one.open() as a, cut.open() as b:
        assert torch.equal(a.feed(tokens), b.feed(tokens))
        for token in tokens[:4]:
            assert torch.equal(a.feed([token]), b.feed([token]))


def test_captured_steps_cross_boundaries() -> None:
    one = ("decode_buckets: [1, 2, 4]", "decode_buckets: [4]")  # with a row of padding
    eager, captured = engine_of(plan(ORACLE, one)), engine_of(split([5, 6, 7, 10], [0, 1, 0, 1], one), strict=True)
    assert captured.captured is not None
    tokens = ids()
    pairs = [(eager.open(), captured.open()) for _ in range(3)]
    for number, (a, b) in enumerate(pairs):
        assert torch.allclose(a.feed(tokens[: 9 + 8 * number]), b.feed(tokens[: 9 + 8 * number]), atol=1e-5)
    for step in range(6):
        wanted, got = (
            running.decode(dict(zip(sessions, tokens[step : step + 3], strict=True)))
            for running, sessions in zip((eager, captured), zip(*pairs, strict=True), strict=True)
        )
        for a, b in zip(wanted.values(), got.values(), strict=True):
            assert torch.allclose(a, b, rtol=0, atol=5e-5)


@pytest.mark.parametrize(("ends", "devices"), CUTS[::2], ids=str)
def test_no_more_crosses_than_the_plan_says(ends: list[int], devices: list[int] | None) -> None:
    running = engine_of(split(ends, devices))
    transport = running.executor.transport
    assert isinstance(transport, LocalTransport)
    story(running)
    said = {stage.index: 0.0 for stage in running.layout.stages[1:]}
    for move in running.manifest.transfers:
        said[move.to_stage] += move.bytes_per_token
    for stage, traffic in transport.traffic.items():
        # A session that starts inside a group may complete one more than its tokens' share.
        rest = sum(m.bytes_per_token for m in running.manifest.transfers if m.to_stage == stage and m.how == "mirror")
        assert 0 < traffic.bytes <= said[stage] * traffic.tokens + rest * traffic.steps


def test_state_of_each_place_is_its_own() -> None:
    running = engine_of(split([5, 6, 7, 10], [0, 1, 0, 1]))
    values = {value.id: value for value in running.manifest.values}
    addresses = {storage: pool.data_ptr() for storage, pool in running.pools.tensors.items()}
    assert len(set(addresses.values())) == len(addresses)
    mirrors = [move for move in running.manifest.transfers if move.how == "mirror"]
    assert mirrors and all(values[move.arrives_as].device != values[move.value].device for move in mirrors)
    with running.open() as session:
        session.feed(ids()[:30])
        for move in mirrors:
            here, there = (running.pools.rows(value, session.slot) for value in (move.value, move.arrives_as))
            assert torch.equal(here, there), move
