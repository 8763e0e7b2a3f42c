"""The selection language, on the graph of the released model."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv41c.compiler import passes
from dsv41c.compiler.build import build
from dsv41c.compiler.draw.words import answers
from dsv41c.compiler.ir import Graph, parse
from dsv41c.compiler.select import Selection, select
from dsv41c.compiler.spec import load
from dsv41c.diagnostics import UserFault


def graph_of(name: str, target: str | None = None) -> tuple[Graph, tuple[str, ...]]:
    loaded = load(name, target=target)
    assert loaded.spec is not None
    program = passes.Program(loaded.spec, loaded.spans, build(loaded.spec, loaded.spans))
    placed = passes.run(program, pipeline=passes.PIPELINE[:4])
    return placed.graph, placed.devices


@pytest.fixture(scope="module")
def flash() -> Graph:
    return graph_of("deepseek-v4.1-flash")[0]


def layers(graph: Graph, selection: Selection) -> list[int]:
    return sorted({layer for op in selection.ops if (layer := graph.by_id[op].layer) is not None})


def test_who_reads_a_state(flash: Graph):
    selection = select(flash, "compress_kv@L20+")
    assert layers(flash, selection) == list(range(20, 40))
    assert not selection.values
    assert answers(flash, selection) == ("compress_kv@L20: written by layer 20, read by layers 20-39",)


def test_what_a_layer_reads(flash: Graph):
    selection = select(flash, "+layers.30")
    assert selection.values == {
        "streams@L29.ffn",
        "pre@L29.ffn",
        "window_kv@L30.before",
        "compress_kv@L20",
        "topk@L28",
    }
    assert not selection.ops
    first, *rest = answers(flash, selection)
    assert first == ("layers.30 reads: streams@L29.ffn, pre@L29.ffn, window_kv@L30.before, compress_kv@L20, topk@L28")
    assert "topk@L28: written by layer 28, read by layers 28-31" in rest


def test_what_a_layer_feeds(flash: Graph):
    assert select(flash, "layers.28+").values == {"streams@L28.ffn", "pre@L28.ffn", "window_kv@L28", "topk@L28"}


def test_who_writes_a_state(flash: Graph):
    assert select(flash, "+compress_kv@L20").ops == {"layers.20.attn.compress"}


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("layers.20-22", [20, 21, 22]),
        ("layers.3,layers.7", [3, 7]),
        ("layers.3.ffn", [3]),
        ("kind:compress", [2, 8, 14, 20]),
        ("layers.30.attn.attend", [30]),
        (" layers.1 , layers.2 ", [1, 2]),
    ],
)
def test_ops_by_name(flash: Graph, expression: str, expected: list[int]):
    assert layers(flash, select(flash, expression)) == expected


def test_kinds_of_state(flash: Graph):
    sources = (2, 8, 14, 20, 24, 28, 32, 36)
    assert select(flash, "kind:topk").values == {f"topk@L{layer}" for layer in sources}


def test_a_name_of_both_an_op_and_a_value_is_both(flash: Graph):
    selection = select(flash, "engram_ids")
    assert selection.values == {"engram_ids"}
    assert len(selection.ops) <= 1


def test_all_the_way_before_and_after(flash: Graph):
    before = select(flash, "++layers.1")
    assert layers(flash, before) == [0]
    assert "ids" in before.values
    after = select(flash, "topk@L36++")
    assert layers(flash, after) == [36, 37, 38, 39]
    assert "logits" in after.values


def test_union_and_roots(flash: Graph):
    selection = select(flash, "topk@L28,topk@L28+")
    assert selection.values == {"topk@L28"}
    assert layers(flash, selection) == [28, 29, 30, 31]
    assert "topk@L28" in select(flash, "topk@L28+").shown_values


@pytest.mark.parametrize("expression", ["compress_kv@L20+", "+layers.30", "layers.30", "kind:topk", "++layers.2"])
def test_a_selection_is_a_graph_that_round_trips(flash: Graph, expression: str):
    text = str(select(flash, expression).subgraph(flash))
    assert str(parse(text)) == text


def test_devices_and_copies():
    graph, devices = graph_of("deepseek-v4.1-flash", "rocm8")
    assert layers(graph, select(graph, "device:rocm:4", devices)) == [20, 21, 22, 23, 24]
    selection = select(graph, "compress_kv@L20+", devices)
    assert layers(graph, selection) == list(range(20, 40))
    (line,) = answers(graph, selection, devices)
    assert line == "compress_kv@L20: written by layer 20 on rocm:4, read by layers 20-39"
    reads = select(graph, "+layers.30", devices).values
    assert {"compress_kv@L20.S6", "topk@L28.S6"} <= reads
    assert not [value for value in reads if value.startswith(("index_k", "candidates"))]


@pytest.mark.parametrize(
    ("expression", "code", "column", "width"),
    [
        ("", "DSV150", 1, 1),
        ("layers.1,", "DSV150", 10, 1),
        ("layers.1,+++layers.2", "DSV150", 10, 11),
        ("layers.1 layers.2", "DSV150", 1, 17),
        ("+", "DSV150", 1, 1),
        ("layers.1, topk@L27", "DSV151", 11, 8),
        ("layers.40", "DSV151", 1, 9),
        ("layers.5-3", "DSV151", 1, 10),
        ("kind:topks", "DSV151", 1, 10),
        ("device:cuda:0", "DSV151", 1, 13),
    ],
)
def test_bad_expressions(flash: Graph, expression: str, code: str, column: int, width: int):
    with pytest.raises(UserFault) as caught:
        select(flash, expression, ("cpu:0",))
    (finding,) = caught.value.diagnostics
    assert finding.code == code
    assert finding.span is not None
    assert (finding.span.file, finding.span.line, finding.span.column) == ("<--select>", 1, column)
    assert finding.span.end_column == column + width


def test_every_bad_item_is_told_and_near_names_proposed(flash: Graph):
    with pytest.raises(UserFault) as caught:
        select(flash, "compres_kv@L20,layers.99")
    first, second = caught.value.diagnostics
    assert first.help is not None
    assert "compress_kv@L20" in first.help
    assert ("layers of this graph", "0-39") in second.facts


@settings(max_examples=300, deadline=None)
@given(st.one_of(st.text(max_size=40), st.text("layers.0123456789@L+,-:kindtopk ", max_size=40)))
def test_no_expression_is_an_exception(flash: Graph, expression: str):
    try:
        selection = select(flash, expression, ("cpu:0",))
    except UserFault as fault:
        assert {finding.code for finding in fault.diagnostics} <= {"DSV150", "DSV151"}
    else:
        assert answers(flash, selection)


def test_a_number_of_many_digits(flash: Graph):
    with pytest.raises(UserFault):
        select(flash, "layers." + "9" * 5000)
