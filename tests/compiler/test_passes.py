"""Placement, transfers, order, liveness and regions, on whole specs."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv41c.compiler import passes
from dsv41c.compiler.build import build
from dsv41c.compiler.checks import check_graph
from dsv41c.compiler.ir import parse
from dsv41c.compiler.passes import PIPELINE, Program
from dsv41c.compiler.spec import load

FLASH = load("deepseek-v4.1-flash")
TOY = load("toy")


def program(loaded, ends, devices=None):
    devices = devices or [f"cuda:{index}" for index in range(len(ends))]
    placement = loaded.spec.placement.model_copy(update={"devices": tuple(devices), "layer_ends": tuple(ends)})
    spec = loaded.spec.model_copy(update={"placement": placement})
    return Program(spec, loaded.spans, build(spec, loaded.spans))


def placed(loaded, ends, devices=None):
    return passes.run(program(loaded, ends, devices), verify=True)


def crossing(result, stage):
    """What a boundary carries beside the streams and their pre-mix; without the stage it comes from."""
    values = [move.value.partition(".S")[0] for move in result.transfers if move.to_stage == stage]
    assert [value.partition("@")[0] for value in values[:2]] == ["streams", "pre"]
    return values[2:]


L20 = ["compress_kv@L20", "index_k@L20"]


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        ([20, 40], {1: []}),
        ([22, 40], {1: [*L20, "topk@L20", "candidates@L20"]}),
        (
            [10, 20, 30, 40],
            {1: ["ids", "compress_kv@L8", "topk@L8"], 2: [], 3: [*L20, "topk@L28", "candidates@L20"]},
        ),
        ([13, 26, 40], {1: ["ids", "compress_kv@L8", "topk@L8"], 2: [*L20, "topk@L24", "candidates@L20"]}),
        # Stages 1 and 2 have no reader of layer 2's keys but hand its KV on.
        ([4, 5, 6, 40], {1: ["ids", "compress_kv@L2", "topk@L2"], 2: ["ids", "compress_kv@L2", "topk@L2"]}),
    ],
)
def test_boundaries_of_flash(ends, expected):
    result = placed(FLASH, ends)
    for stage, values in expected.items():
        assert crossing(result, stage) == values


def test_boundary_names_the_versions_at_the_cut():
    moves = placed(FLASH, [13, 26, 40]).transfers
    assert [(m.value, m.arrives_as, m.how) for m in moves if m.to_stage == 1][:2] == [
        ("streams@L12.ffn", "streams@L12.ffn.S1", "chunk"),
        ("pre@L12.ffn", "pre@L12.ffn.S1", "chunk"),
    ]
    assert {m.how for m in moves if m.kind in ("compress_kv", "index_k")} == {"mirror"}


def test_bytes_per_token_count_a_share_of_a_pooled_row():
    rates = {m.value: m.bytes_per_token for m in placed(FLASH, [10, 20, 30, 40]).transfers}
    assert rates["compress_kv@L8"] == 512 * 2 / 2
    assert rates["compress_kv@L20"] == 512 * 2
    assert rates["streams@L9.ffn"] == 4 * 5120 * 2


def test_a_later_engram_layer_hashes_the_ids_itself():
    graph = placed(FLASH, [10, 20, 30, 40]).graph
    op = graph.by_id["stages.1.engram_ids"]
    assert op.reads == (("ids", "ids.S1"), ("token_history", "token_history.before.S1"))
    assert op.write_ids == ("engram_ids.S1", "token_history.S1")
    assert graph.by_id["layers.14.engram_rows"].read_ids == ("engram_ids.S1",)
    assert graph.storage("token_history.S1") == "token_history.before.S1"


def test_no_stage_hashes_for_nobody():
    graph = placed(FLASH, [1, 40]).graph
    assert [(op.id, op.stage) for op in graph.ops if op.kind == "engram_ids"] == [("engram.ids", 1)]


def test_a_device_that_comes_again_is_sent_nothing_twice():
    result = placed(FLASH, [10, 20, 30, 40], ["rocm:0", "rocm:1", "rocm:0", "rocm:1"])
    assert crossing(result, 3) == [*L20, "topk@L28", "candidates@L20"]
    one = placed(FLASH, [10, 20, 30, 40], ["cpu:0"] * 4)
    assert one.transfers == ()
    again = placed(FLASH, [3, 4, 40], ["hpu:0", "hpu:1", "hpu:0"])
    # Layer 4 is back on the device of layer 2 and reads it there.
    assert again.graph.by_id["layers.4.attn.attend"].read("compress_kv") == "compress_kv@L2"


def test_nothing_is_sent_where_nobody_needs_it():
    # The last stage's device gets the ids on its first visit; the stage between does not.
    result = placed(TOY, [1, 2, 3, 4, 8], ["cpu:2", "cpu:2", "cpu:0", "cpu:1", "cpu:0"])
    assert [move.arrives_as for move in result.transfers if move.kind == "ids"] == ["ids.S2"]
    result = placed(TOY, [4, 5, 6, 7, 8], ["cpu:0", "cpu:1", "cpu:2", "cpu:1", "cpu:3"])
    assert [move.arrives_as for move in result.transfers if move.kind == "compress_kv"] == [
        "compress_kv@L2.S1",
        "compress_kv@L5.S3",
        "compress_kv@L5.S4",
    ]


def test_every_read_is_on_the_reader_s_device():
    result = placed(FLASH, [5, 10, 15, 20, 25, 30, 35, 40])
    for op in result.graph.ops:
        if op.kind not in ("transfer", "mirror"):
            assert {result.graph.values[value].stage for value in (*op.read_ids, *op.write_ids)} == {op.stage}


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_placement_gives_a_graph_that_passes_its_checks(data):
    ends = [*sorted(data.draw(st.sets(st.integers(1, 7), max_size=7))), 8]
    family = data.draw(st.sampled_from(["cpu", "cuda", "rocm", "hpu"]))
    devices = [f"{family}:{data.draw(st.integers(0, 2))}" for _ in ends]
    result = placed(TOY, ends, devices)
    assert [region.id for region in result.regions if region.id.startswith("layers.")] == [
        f"layers.{n}" for n in range(8)
    ]


def test_order_does_not_depend_on_the_order_of_ops():
    start = program(TOY, [3, 8])
    expected = passes.run(start)
    for stage in PIPELINE[:3]:
        start = stage.run(start)
    graph = start.graph
    by_stage = [op for stage in (0, 1) for op in random.Random(1).sample([o for o in graph.ops if o.stage == stage],
                k=sum(o.stage == stage for o in graph.ops))]  # fmt: skip
    result = PIPELINE[3].run(replace(start, graph=replace(graph, ops=tuple(by_stage))))
    assert not check_graph(result.graph, result.devices)
    assert sorted(op.id for op in result.graph.ops) == sorted(op.id for op in expected.graph.ops)


def test_the_ring_is_written_after_it_was_read():
    ids = [op.id for op in placed(TOY, [8]).graph.ops]
    assert all(ids.index(f"layers.{n}.attn.attend") < ids.index(f"layers.{n}.attn.window_store") for n in range(8))


def test_liveness():
    result = placed(TOY, [8])
    ids = [op.id for op in result.graph.ops]
    life = result.lifetimes["topk@L2"]
    assert (ids[life.first], ids[life.last]) == ("layers.2.attn.select_topk", "layers.3.attn.attend")
    assert life.bytes == 8 * 8
    assert result.lifetimes["compress_kv@L2"].last == len(ids) - 1
    assert result.lifetimes["compress_kv@L2"].bytes == 256 * 64 * 2
    assert result.lifetimes.keys() == result.graph.values.keys()


def test_regions():
    result = placed(TOY, [4, 8])
    regions = {region.id: region for region in result.regions}
    assert list(regions) == ["embed", *[f"layers.{n}" for n in range(4)], "stages.1.engram_ids",
                             *[f"layers.{n}" for n in range(4, 8)], "head"]  # fmt: skip
    assert regions["layers.3"].reads == (
        "streams@L2.ffn",
        "pre@L2.ffn",
        "topk@L2",
        "compress_kv@L2",
        "window_kv@L3.before",
    )
    assert regions["layers.2"].writes[:3] == ("streams@L2.ffn", "pre@L2.ffn", "topk@L2")
    assert regions["head"].writes == ("logits",)
    inside = [op for region in result.regions for op in region.ops]
    assert inside == [op.id for op in result.graph.ops if op.kind not in ("transfer", "mirror")]


def test_passes_need_what_earlier_ones_give():
    given: set[str] = set()
    for step in PIPELINE:
        assert set(step.needs) <= given
        given |= set(step.gives)
    assert len({step.name for step in PIPELINE}) == len(PIPELINE)


def test_passes_change_nothing_in_place():
    start = program(TOY, [4, 8])
    before = str(start)
    passes.run(start)
    assert str(start) == before


def test_dump_and_round_trip(tmp_path):
    result = passes.run(program(TOY, [4, 8]), dump=tmp_path)
    names = [path.name for path in sorted(tmp_path.iterdir())]
    passed = ("place", "shards", "transfers", "order", "liveness", "segment", "fuse", "rows")
    assert names == [f"{number:02d}-{name}.txt" for number, name in enumerate(passed, start=1)]
    text = (tmp_path / names[-1]).read_text()
    assert str(parse(text)) == str(result.graph)
    assert "# region layers.4 @1" in text


def test_a_pass_that_breaks_the_graph_is_found():
    start = program(TOY, [8])
    cut = replace(PIPELINE[0], run=lambda p: replace(p, graph=replace(p.graph, ops=p.graph.ops[1:])))
    with pytest.raises(ValueError, match="pass place broke the graph"):
        passes.run(start, pipeline=(cut,), verify=True)
