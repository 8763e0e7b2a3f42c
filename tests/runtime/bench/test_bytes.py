"""Bytes and operations of the released model, against numbers that were worked out apart from this project's code."""

from __future__ import annotations

from functools import cache

import pytest

from dsv41c.compiler.plan import compile_spec
from dsv41c.compiler.spec import load
from dsv41c.runtime.bench.bytes import Moved, expected_distinct, step_bytes
from dsv41c.runtime.bench.flops import prefill_flops, sum_of_visible
from dsv41c.runtime.manifest import Manifest

LAYERS, EXPERTS, DIM, STREAMS = 40, 384, 5120, 4
# Of a hand calculation from the model's widths alone: a gate in fp32, Engram's q and k in fp32, no biases.
WEIGHTS, PLAIN_LAYER, ONE_EXPERT, HEAD = 13_192_411_520, 286_787_840, 18_800_640, 1_323_827_200


@cache
def flash(*sets: str) -> Manifest:
    return compile_spec(load("deepseek-v4.1-flash", sets=("runtime.max_context=1048576", *sets))).manifest


def step(context: int, batch: int = 1, *sets: str, **options: object) -> Moved:
    return step_bytes(flash(*sets), batch=batch, positions=[context - 1], **options).whole()  # type: ignore[arg-type]


def test_weights_are_those_of_the_hand_calculation_but_for_what_is_stored_otherwise():
    moved = step(1024)
    gates = LAYERS * EXPERTS * DIM * 2  # bf16 as stored
    engram = 2 * 2 * STREAMS * DIM * 2  # q and k of two layers, bf16 as stored
    left_out = LAYERS * (EXPERTS * 4 + 2 * (3 + 24) * 4) + 4 * (512 + 128) * 2  # biases, mixing, norms of sources
    assert moved.weights + moved.experts + moved.table_rows == WEIGHTS - gates - engram + left_out
    assert moved.experts == LAYERS * 6 * ONE_EXPERT


def test_layers_add_up_to_the_step():
    found = step_bytes(flash(), batch=1, positions=[1023])
    plain = found.layers[3]
    small = EXPERTS * 4 + 2 * (3 + 24) * 4
    assert plain.weights + plain.experts == PLAIN_LAYER - EXPERTS * DIM * 2 + small
    assert found.layers[None].weights == HEAD + DIM * 2  # and the last norm
    assert sum(moved.total for moved in found.layers.values()) == found.whole().total
    assert set(found.layers) == {None, *range(LAYERS)}


@pytest.mark.parametrize(
    ("context", "selected", "keys", "scores"),
    [(1024, 5.60, 0.45, 0.05), (16384, 5.60, 7.24, 0.85), (131072, 5.60, 26.7, 3.15), (1048576, 5.60, 182.7, 21.5)],
)
def test_packed_caches_are_those_of_the_hand_calculation(context: int, selected: float, keys: float, scores: float):
    moved = step(context, 1, "numerics.kv_cache=packed")
    assert moved.selected / 1e6 == pytest.approx(selected, abs=0.005)
    assert moved.index_keys / 1e6 == pytest.approx(keys, rel=0.01)
    assert moved.scores / 1e6 == pytest.approx(scores, abs=0.005 + scores / 500)
    assert moved.window == LAYERS * 127 * 528  # the row of the step's own token is not in the ring yet


def test_rows_of_caches_that_are_not_packed_are_bf16():
    moved = step(1024)
    assert moved.window == LAYERS * 127 * 1024
    assert moved.selected == 38 * 512 * 1024
    # Window rows of all layers; compressed rows and keys of four sources, three of which close a group of two.
    assert moved.written == LAYERS * 1024 + 4 * (1024 + 256)
    assert step(1023).written == LAYERS * 1024 + 1 * (1024 + 256)


def test_a_batch_reads_its_own_rows_and_each_expert_once():
    one, eight = step(1024), step(1024, 8)
    assert eight.weights == one.weights
    assert eight.window == 8 * one.window and eight.written == 8 * one.written
    assert eight.experts == pytest.approx(LAYERS * ONE_EXPERT * 45.5, rel=1e-3)
    assert step(1024, 8, stored_experts=128).experts == pytest.approx(LAYERS * ONE_EXPERT * 40.8, rel=1e-3)
    measured = step(1024, 8, distinct=dict.fromkeys(range(LAYERS), 41.5))
    assert measured.experts == pytest.approx(LAYERS * ONE_EXPERT * 41.5)
    assert expected_distinct(384, 6, 1) == pytest.approx(6)


def test_several_positions_are_their_mean():
    both = step_bytes(flash(), batch=1, positions=[1022, 1023]).whole()
    assert both.total == pytest.approx((step(1023).total + step(1024).total) / 2)


@pytest.mark.parametrize(
    ("tokens", "whole"), [(1024, 33.22), (8192, 34.27), (131072, 36.01), (1048576, 45.45)]
)  # GFLOP a token, by the hand calculation
def test_operations_of_a_prompt(tokens: int, whole: float):
    assert prefill_flops(flash(), tokens, tail="every") / tokens / 1e9 == pytest.approx(whole, abs=0.01)


def test_the_exact_tail_takes_fewer_operations():
    every, tail = (prefill_flops(flash(), 32768, tail=kept) for kept in ("every", "exact"))
    short = prefill_flops(flash(), 131072, tail="exact") / 131072
    # The hand calculation has 128 rows in every layer behind the last source, 19.55; the plan's rows are exact.
    assert 19.5e9 < short < 19.8e9
    assert 0.5 < tail / every < 0.6
    assert prefill_flops(flash(), 1, tail="exact") == prefill_flops(flash(), 1, tail="every")
    assert prefill_flops(flash(), 32768, tail="bounded") < tail
    assert prefill_flops(flash(), 128, tail="bounded") == prefill_flops(flash(), 128, tail="exact")


@pytest.mark.parametrize("ratio", [1, 2, 3])
@pytest.mark.parametrize("most", [0, 1, 4, 100])
def test_the_sum_of_visible_rows(ratio: int, most: int):
    for first in range(0, 14, 3):
        for end in range(first, 15):
            want = sum(min((position + 1) // ratio, most) for position in range(first, end))
            assert sum_of_visible(ratio, most, first, end) == want
