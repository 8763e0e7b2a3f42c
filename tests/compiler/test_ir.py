"""The text form of a graph: stable, one line an op, and the same again after parsing."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv41c.compiler.build import build
from dsv41c.compiler.ir import Graph, layer_of, parse
from dsv41c.compiler.spec import load
from dsv41c.diagnostics import UserFault


def graph_of(name: str) -> Graph:
    loaded = load(name)
    assert loaded.spec is not None
    return build(loaded.spec, loaded.spans)


TOY = graph_of("toy")
TEXT = str(TOY)


@pytest.mark.parametrize("name", ["toy", "deepseek-v4.1-flash"])
def test_text_round_trips(name: str) -> None:
    text = str(graph_of(name))
    again = parse(text)
    assert str(again) == text
    assert str(parse(str(again))) == text


def test_parsing_keeps_ops_values_and_attributes() -> None:
    again = parse(TEXT)
    assert [(op.id, op.reads, op.writes, op.weights, op.attrs) for op in again.ops] == [
        (op.id, op.reads, op.writes, op.weights, op.attrs) for op in TOY.ops
    ]
    assert {v.id: (v.kind, v.shape, v.dtype) for v in again.values.values()} == {
        v.id: (v.kind, v.shape, v.dtype) for v in TOY.values.values()
    }


def test_one_line_an_op_with_its_yaml_position() -> None:
    lines = TEXT.splitlines()
    assert len(lines) == 1 + len(TOY.inputs) + len(TOY.ops)
    assert all(" ; specs/toy.yaml:" in line for line in lines[1:])


def test_comments_and_blank_lines_are_passed_over() -> None:
    assert str(parse(TEXT.replace("\n", "\n# remark\n\n"))) == TEXT


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("dsv41c.graph/1", "dsv41c.graph/9"),
        ("= embed(", "= embedding("),
        (": streams bf16", ": river bf16"),
        ("| streams=4)", "| streams=four)"),
        (") -> (", ") => ("),
    ],
)
def test_a_text_of_another_form_is_refused_with_its_line(old: str, new: str) -> None:
    assert old in TEXT
    with pytest.raises(UserFault) as fault:
        parse(TEXT.replace(old, new, 1), "g.txt")
    (diagnostic,) = fault.value.diagnostics
    assert diagnostic.code == "DSV130" and diagnostic.span is not None and diagnostic.span.file == "g.txt"


@settings(max_examples=200, deadline=None)
@given(st.integers(0, len(TEXT) - 1), st.text(max_size=8))
def test_no_text_gives_an_exception(position: int, inserted: str) -> None:
    try:
        parse(TEXT[:position] + inserted + TEXT[position + len(inserted) :])
    except UserFault as fault:
        assert fault.diagnostics[0].code == "DSV130"


def test_layer_of() -> None:
    assert [layer_of(i) for i in ("compress_kv@L20.before", "topk@L3", "logits", "pre@init")] == [20, 3, None, None]


def test_storage_is_shared_between_versions_of_session_state_only() -> None:
    assert TOY.storage("compress_kv@L2") == "compress_kv@L2.before"
    assert TOY.storage("token_history") == "token_history.before"
    assert TOY.storage("topk@L2") == "topk@L2"


def test_the_digraph_has_no_cycle() -> None:
    import networkx as nx

    assert nx.is_directed_acyclic_graph(TOY.digraph())
