"""The graph of a spec: who reads what, in the places where ports of this model go wrong."""

from __future__ import annotations

import pytest

from dsv41c.compiler.build import build
from dsv41c.compiler.ir import Graph
from dsv41c.compiler.shapes import Shapes
from dsv41c.compiler.spec import load


def graph_of(name: str, *sets: str) -> Graph:
    loaded = load(name, sets=sets)
    assert loaded.spec is not None, loaded.diagnostics
    return build(loaded.spec, loaded.spans)


@pytest.fixture(scope="module")
def flash() -> Graph:
    return graph_of("deepseek-v4.1-flash")


@pytest.fixture(scope="module")
def toy() -> Graph:
    return graph_of("toy")


def reader_layers(graph: Graph, value: str) -> list[int | None]:
    return [op.layer for op in graph.readers(value)]


def outside_reads(graph: Graph, layer: int) -> set[str]:
    """What the ops of a layer read that none of them writes."""
    ops = [op for op in graph.ops if op.layer == layer]
    written = {value for op in ops for value in op.write_ids}
    return {value for op in ops for value in op.read_ids} - written


def test_the_decoder_half_reads_the_history_of_layer_20(flash: Graph) -> None:
    assert reader_layers(flash, "compress_kv@L20") == list(range(20, 40))
    assert reader_layers(flash, "compress_kv@L8") == list(range(8, 14))


def test_layer_30_reads_history_selection_window_and_the_carried_streams_and_pre(flash: Graph) -> None:
    expected = {"streams@L29.ffn", "pre@L29.ffn", "window_kv@L30.before", "compress_kv@L20", "topk@L28"}
    assert outside_reads(flash, 30) == expected


def test_index_sources_without_keys_read_those_of_the_latest_kv_source(flash: Graph) -> None:
    assert reader_layers(flash, "index_k@L20") == [20, 24, 28, 32, 36]
    assert not any(value.startswith("index_k@L24") for value in flash.values)


def test_candidates_are_read_by_every_later_index_source_and_not_by_their_own(flash: Graph) -> None:
    assert reader_layers(flash, "candidates@L20") == [24, 28, 32, 36]


def test_pre_is_the_one_made_by_the_sublayer_before(toy: Graph) -> None:
    carried = "pre@init"
    for layer in range(8):
        for part in ("attn", "ffn"):
            assert toy.by_id[f"layers.{layer}.{part}.collapse"].read("pre") == carried
            expand = toy.by_id[f"layers.{layer}.{part}.expand"]
            assert expand.read("post") == f"post@L{layer}.{part}"
            assert expand.read("comb") == f"comb@L{layer}.{part}"
            carried = f"pre@L{layer}.{part}"
    assert toy.by_id["final.collapse"].read("pre") == carried


def test_engram_comes_before_the_mix_of_its_layer(toy: Graph) -> None:
    assert toy.by_id["layers.1.engram_gate"].read("streams") == "streams@L0.ffn"
    for op in ("mix", "collapse", "expand"):
        assert toy.by_id[f"layers.1.attn.{op}"].read("streams") == "streams@L1.engram"
    assert [toy.by_id[f"layers.{layer}.engram_rows"].attr("index") for layer in (1, 4)] == [0, 1]


def test_attention_reads_the_ring_as_it_was_before_the_chunk(toy: Graph) -> None:
    for layer in range(8):
        assert toy.by_id[f"layers.{layer}.attn.attend"].read("window_kv") == f"window_kv@L{layer}.before"
    stores = dict(toy.overwrites())
    assert stores["layers.3.attn.attend"] == "layers.3.attn.window_store"


def test_ratio_1_compresses_without_gate_or_tail_and_ratio_0_has_no_branch(toy: Graph) -> None:
    pooled, plain = toy.by_id["layers.2.attn.compress"], toy.by_id["layers.5.attn.compress"]
    assert "wgate" in dict(pooled.weights) and pooled.read("group_tail") == "group_tail@L2.before"
    assert "wgate" not in dict(plain.weights) and plain.read("group_tail") is None
    assert toy.by_id["layers.0.attn.attend"].read("compress_kv") is None
    assert toy.by_id["layers.6.attn.attend"].read("compress_kv") == "compress_kv@L5"


def test_rope_tables_go_by_the_ratio_of_the_layer(toy: Graph) -> None:
    for op in toy.ops:
        rope = dict(op.weights).get("rope")
        if rope is not None:
            assert rope == ("rope.window" if op.layer in (0, 1) else "rope.compress")


def test_an_explicit_read_replaces_the_latest_producer() -> None:
    graph = graph_of("toy", "layers.reads={6: {topk: 4, compress_kv: 2}}")
    attend = graph.by_id["layers.6.attn.attend"]
    assert (attend.read("topk"), attend.read("compress_kv")) == ("topk@L4", "compress_kv@L2")


def test_a_read_that_no_layer_produces_is_left_for_the_checks() -> None:
    graph = graph_of("toy", "layers.kv_source_layers=[5]")
    assert graph.by_id["layers.2.attn.attend"].read("compress_kv") == "compress_kv@none"


@pytest.mark.parametrize("name", ["toy", "deepseek-v4.1-flash"])
def test_every_value_is_written_once_and_every_read_resolves_to_an_earlier_one(name: str) -> None:
    graph = graph_of(name)
    there = {value.id for value in graph.inputs}
    for op in graph.ops:
        assert set(op.read_ids) <= there, op.id
        assert not set(op.write_ids) & there, op.id
        there |= set(op.write_ids)
    assert there == set(graph.values)


def test_every_op_and_value_knows_its_yaml_position(flash: Graph) -> None:
    for item in (*flash.ops, *flash.values.values()):
        assert item.span.file == "specs/deepseek-v4.1-flash.yaml" and item.span.line > 1
    lines = {op.id: op.span.line for op in flash.ops}
    assert lines["layers.20.attn.compress"] != lines["layers.20.attn.select_candidates"]


def test_shapes_carry_the_widths_of_the_spec(flash: Graph) -> None:
    assert flash.values["compress_kv@L8"].shape == (4096 // 2, 512)
    assert flash.values["index_k@L20"].shape == (4096, 128)
    assert flash.values["group_tail@L2"].shape == (2, 2, 512)
    assert flash.values["streams@L5.attn"].shape == ("B", "T", 4, 5120)
    assert flash.values["candidates@L20"].shape == ("B", "T", "context/1/8")
    assert flash.values["engram_ids"].shape == ("B", "T", 2, 24)


def test_bytes_count_complete_groups_and_every_block_of_them(loaded) -> None:
    shapes = Shapes(loaded("runtime: {max_context: 30, prefill_chunk: 8}").spec)
    assert shapes.bytes(("B", "T", "context/4"), "f32") == 7 * 4
    assert shapes.bytes(("B", "T", "context/4/3"), "bool") == 3
