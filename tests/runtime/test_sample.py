"""Sampling: ties, seeds, temperature, top-p, and parameters out of range."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
import torch

from dsv41c.diagnostics import UserFault
from dsv41c.runtime.sample import MAX_SEED, Sampler


def test_greedy_takes_the_lowest_of_equals() -> None:
    logits = torch.zeros(1000)
    logits[[17, 400, 999]] = 3.0
    assert Sampler().next(logits) == 17
    assert Sampler().next(torch.full((5,), -2.0)) == 0
    assert Sampler().next(torch.tensor([float("-inf"), 1.0])) == 1


def test_a_seed_decides() -> None:
    logits = torch.linspace(-1, 1, 50)
    draws = [[sampler.next(logits) for _ in range(20)] for sampler in (Sampler(1.0, 1.0, 7), Sampler(1.0, 1.0, 7))]
    assert draws[0] == draws[1]
    other = Sampler(1.0, 1.0, 8)
    assert draws[0] != [other.next(logits) for _ in range(20)]
    drawn = Sampler(1.0)
    assert len(str(drawn.seed)) <= 18, "`--seed` takes no more digits"
    again = Sampler(1.0, seed=drawn.seed)
    assert [drawn.next(logits) for _ in range(20)] == [again.next(logits) for _ in range(20)]


def test_it_leaves_the_global_generator_alone() -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    Sampler(1.0, 1.0, 7).next(torch.zeros(9))
    assert torch.equal(torch.get_rng_state(), before)


def test_frequencies_follow_the_softmax() -> None:
    logits = torch.tensor([0.0, 1.0, 2.0])
    sampler, count = Sampler(0.5, 1.0, 1), 4000
    seen = Counter(sampler.next(logits) for _ in range(count))
    expected = torch.softmax(logits / 0.5, 0)
    for token in range(3):
        assert abs(seen[token] / count - expected[token].item()) < 0.03


@pytest.mark.parametrize(("top_p", "allowed"), [(0.5, {3}), (0.75, {3, 1}), (0.85, {3, 1, 0}), (1.0, {0, 1, 2, 3})])
def test_top_p_keeps_the_smallest_set_that_reaches_it(top_p: float, allowed: set[int]) -> None:
    logits = torch.tensor([0.12, 0.2, 0.1, 0.58]).log()
    sampler = Sampler(1.0, top_p, 5)
    assert {sampler.next(logits) for _ in range(300)} == allowed


def test_top_p_that_is_reached_exactly_keeps_no_more() -> None:
    sampler = Sampler(1.0, 0.5, 5)
    assert {sampler.next(torch.zeros(4)) for _ in range(100)} == {0, 1}


@pytest.mark.parametrize("temperature", [1e-300, 1e-9, 1e9])
def test_extreme_temperatures(temperature: float) -> None:
    logits = torch.tensor([3.0, 1e30, -1e30])
    token = Sampler(temperature, 1.0, 1).next(logits)
    assert token == 1 or temperature == 1e9


def test_tiny_top_p_is_greedy() -> None:
    assert {Sampler(1.0, 1e-12, seed).next(torch.tensor([0.0, 0.1, 0.1])) for seed in range(9)} == {1}


@pytest.mark.parametrize(
    ("parameters", "count"),
    [
        ({"temperature": -0.1}, 1),
        ({"temperature": math.nan}, 1),
        ({"temperature": math.inf}, 1),
        ({"top_p": 0.0}, 1),
        ({"top_p": 1.01}, 1),
        ({"top_p": math.nan}, 1),
        ({"seed": -1}, 1),
        ({"seed": MAX_SEED + 1}, 1),
        ({"temperature": -1.0, "top_p": 2.0, "seed": -1}, 3),
    ],
)
def test_bad_parameters(parameters: dict[str, Any], count: int) -> None:
    with pytest.raises(UserFault) as fault:
        Sampler(**parameters)
    assert [diagnostic.code for diagnostic in fault.value.diagnostics] == ["DSV860"] * count


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_not_finite(bad: float, temperature: float) -> None:
    with pytest.raises(UserFault) as fault:
        Sampler(temperature).next(torch.tensor([0.0, bad]))
    assert fault.value.diagnostics[0].code == "DSV868"
