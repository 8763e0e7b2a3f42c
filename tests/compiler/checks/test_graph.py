"""Graphs judged by themselves: wirings that run and are wrong, reads re-pointed, ops left out, transfers dropped."""

import importlib.util
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dsv41c.compiler.checks import check_graph
from dsv41c.compiler.ir import parse
from dsv41c.diagnostics import UserFault


def _triggers(name):
    file = Path(__file__).parents[2] / "diagnostics" / "triggers" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"graph_{name}", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


FLOW, PLACED = _triggers("state_flow"), _triggers("placement")
TOY = FLOW.toy()


def only(found):
    assert len(found) == 1, [(each.code, each.message) for each in found]
    return found[0]


def test_the_toy_is_sound():
    assert not check_graph(TOY)
    assert not check_graph(parse(str(TOY)))


@pytest.mark.parametrize("code", FLOW.GRAPHS)
def test_each_change_gives_its_code_alone(code):
    finding = only(check_graph(FLOW.GRAPHS[code](TOY)))
    assert finding.code == code
    assert finding.help and finding.span.file == "specs/toy.yaml"


@pytest.mark.parametrize(
    ("op", "port", "value", "code"),
    [
        ("layers.3.attn.collapse", "pre", "pre@L3.attn", "DSV427"),
        ("layers.3.ffn.collapse", "pre", "pre@L3.ffn", "DSV427"),
        ("layers.3.ffn.collapse", "pre", "pre@L2.ffn", "DSV427"),
        ("layers.0.attn.collapse", "pre", "pre@L0.attn", "DSV427"),
        ("final.collapse", "pre", "pre@L7.attn", "DSV427"),
        ("final.collapse", "streams", "streams@L6.ffn", "DSV428"),
        ("layers.4.attn.mix", "streams", "streams@L3.ffn", "DSV428"),
        ("layers.4.attn.expand", "streams", "streams@L4.ffn", "DSV428"),
        ("layers.6.attn.attend", "topk", "topk@L4", "DSV405"),
        ("layers.6.attn.attend", "compress_kv", "compress_kv@L2", "DSV403"),
        ("layers.7.attn.index_score", "index_k", "index_k@L2", "DSV403"),
        ("layers.3.ffn.expand", "comb", "comb@L3.attn", "DSV426"),
        ("layers.3.attn.attend", "window_kv", "window_kv@L2.before", "DSV426"),
        ("layers.3.attn.attend", "compress_kv", "compress_kv@L2.before", "DSV429"),
        ("layers.3.attn.attend", "window_kv", "window_kv@L3", "DSV429"),
        ("layers.2.attn.compress", "group_tail", "window_kv@L2.before", "DSV424"),
        ("layers.3.ffn.experts", "x", "collapsed@L3.ffn", "DSV424"),
        ("layers.3.ffn.experts", "x", "normed@L3.attn", "DSV426"),
        ("layers.6.attn.attend", "topk", "topk@L7", "DSV422"),
    ],
)
def test_wrong_wirings(op, port, value, code):
    finding = only(check_graph(FLOW.reading(TOY, op, port, value)))
    assert finding.code == code


def test_index_source_without_candidates_is_a_matter_of_choice():
    """A mask left off is another model, not an inconsistent one; what nobody reads then is a warning."""
    graph = FLOW.changed(
        TOY,
        "layers.7.attn.index_score",
        lambda op: replace(op, reads=tuple(pair for pair in op.reads if pair[0] != "candidates")),
    )
    assert only(check_graph(graph)).code == "DSV410"


SETTINGS = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


@SETTINGS
@given(st.data())
def test_a_read_of_another_value_of_its_kind_is_found(data):
    """Any read re-pointed to any other value of the same kind; a selection of the same history is legal."""
    op = data.draw(st.sampled_from([op for op in TOY.ops if op.reads]))
    port, old = data.draw(st.sampled_from(op.reads))
    kind = TOY.values[old].kind
    others = [value for value in TOY.values.values() if value.kind == kind and value.id != old]
    if not others:
        return
    new = data.draw(st.sampled_from(others)).id
    errors = [each for each in check_graph(FLOW.reading(TOY, op.id, port, new)) if each.severity == "error"]
    legal = port == "topk" and (old, new) in {("topk@L4", "topk@L2"), ("topk@L7", "topk@L5")}
    assert legal or errors, (op.id, port, old, new)


@pytest.mark.parametrize("op", [op.id for op in TOY.ops if op.kind != "head"])
def test_an_op_left_out_is_found(op):
    assert check_graph(FLOW.without(TOY, op))


@SETTINGS
@given(st.integers(0, len(TOY.ops) - 1), st.integers(0, len(TOY.ops) - 1))
def test_any_order_that_breaks_a_read_is_found(first, second):
    ops = list(TOY.ops)
    ops.insert(second, ops.pop(first))
    broken = False
    seen = {value.id for value in TOY.inputs}
    for op in ops:
        broken |= not set(op.read_ids) <= seen
        seen |= set(op.write_ids)
    codes = {each.code for each in check_graph(replace(TOY, ops=tuple(ops)))}
    assert ("DSV422" in codes) == broken


def test_placed_graphs():
    placed = PLACED.placed()
    assert not check_graph(placed, PLACED.DEVICES)
    for change in (PLACED.undeclared, PLACED.dropped):
        finding = only(check_graph(change(placed), PLACED.DEVICES))
        assert finding.message == "layer 6 (stage 1) reads `topk@L5` (stage 0), no transfer declared"
    assert only(check_graph(PLACED.copied_whole(placed), PLACED.DEVICES)).code == "DSV506"
    # stages of one device need no transfer
    unplaced = replace(TOY, ops=tuple(replace(op, stage=int(op.layer == 7)) for op in TOY.ops))
    assert not check_graph(unplaced, ("cpu:0", "cpu:0"))
    assert {each.code for each in check_graph(unplaced, ("cpu:0", "cpu:1"))} == {"DSV505"}


@SETTINGS
@given(st.data())
def test_no_change_of_a_text_gives_an_exception(data):
    lines = str(TOY).splitlines()
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(1, len(lines) - 1))
        words = [
            "@L3",
            "@L5",
            "compress",
            "topk",
            "streams",
            "reads",
            "ratio=2",
            "ratio=0",
            "ratio=1",
            "k=8",
            ".before",
        ]
        lines[at] = lines[at].replace(data.draw(st.sampled_from(words)), data.draw(st.sampled_from(words)))
        if data.draw(st.booleans()):
            del lines[at]
    try:
        graph = parse("\n".join(lines))
    except UserFault:
        return
    check_graph(graph)
    check_graph(graph, ("cpu:0",))
