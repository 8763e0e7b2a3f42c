"""Clocks and rounds: what is computed of times, not the times themselves."""

from __future__ import annotations

import gc

import pytest
import torch

from dsv41c.runtime.bench.measure import Bandwidth, Clock, Spread, by_turns, matmul_rate, ratios

CLOCK = Clock(torch.device("cpu"))


def test_turns_go_there_and_back():
    called: list[str] = []
    collecting = gc.isenabled()

    def work(name: str, seconds: float):  # type: ignore[no-untyped-def]
        def run() -> float:
            assert not gc.isenabled()
            called.append(name)
            return seconds * len(called)

        return run

    times = by_turns({"a": work("a", 1.0), "b": work("b", 10.0)}, 2)
    assert "".join(called) == "abbaabba"
    assert times == {"a": [(1 + 4) / 2, (5 + 8) / 2], "b": [25.0, 65.0]}
    assert gc.isenabled() == collecting


def test_ratios_are_of_each_round():
    found = ratios({"a": [1.0, 2.0, 4.0], "b": [2.0, 6.0, 4.0], "c": [1.0, 1.0, 1.0]})
    assert set(found) == {"b/a", "c/a", "c/b"}
    assert found["b/a"] == Spread(2.0, 1.0)  # of 2, 3 and 1
    assert found["b/a"].data() == {"median": 2.0, "iqr": 1.0}
    assert Spread.of([3.0]) == Spread(3.0, 0.0)


def test_bandwidth_is_the_larger_median_and_tells_of_drift():
    rates = Bandwidth(CLOCK, 1 << 20, 2, copies=[4.0, 5.0, 4.1], reads=[4.2, 4.2])
    assert rates.best == 4.2
    assert rates.drift == pytest.approx(0.25)
    assert rates.data()["steady"] is False
    measured = Bandwidth(CLOCK, 1 << 16, 3)
    measured.measure()
    assert measured.best > 0 and measured.drift == 0 and measured.data()["steady"] is True
    assert matmul_rate(CLOCK, 64, torch.float32, 2) > 0
    assert CLOCK.wall(lambda: None) >= 0
