"""Two graphs in one picture: what is told and drawn of each difference, and that equal ones have none."""

import json
import re

import pytest

from dsv41c.compiler.draw import page
from dsv41c.compiler.draw.build_view import view
from dsv41c.compiler.draw.compare import Side
from dsv41c.compiler.draw.facts import facts
from dsv41c.compiler.draw.merge import merged
from dsv41c.compiler.draw.view import View
from dsv41c.compiler.passes import Program

from .test_view import FLASH, data_of, program

MORE = ["layers.kv_source_layers=[2, 8, 14, 20, 28]", "layers.candidate_source_layer=28"]
LONGER = ["model.n_layers=9", "placement.layer_ends=[9]", "layers.compress_ratios=[0, 0, 2, 2, 2, 1, 1, 1, 1]"]


def side(placed: Program, level: str = "layer") -> Side:
    return Side(placed.graph, view(placed.graph, placed.devices, facts(placed), level=level), "a side")


def compared(before: Program, after: Program, level: str = "layer") -> View:
    return merged(side(before, level), side(after, level))


def told(found: View) -> list[str]:
    return [f"{change.kind}: {change.sentence}" for change in found.differences]


@pytest.fixture(scope="module")
def flash() -> Program:
    return program(FLASH)


@pytest.fixture(scope="module")
def more(flash: Program) -> View:
    return compared(flash, program(FLASH, sets=MORE))


def test_another_kv_source_resources_its_readers(more: View):
    assert told(more) == [
        "added: compress_kv@L28, index_k@L28, candidates@L28, made by layer 28",
        "removed: candidates@L20, no longer made by layer 20",
        "re-sourced: layers 28, 32, 36 read index_k@L28, before index_k@L20",
        "re-sourced: layers 28-39 read compress_kv@L28, before compress_kv@L20",
        "re-sourced: layers 32, 36 read candidates@L28, before candidates@L20",
        "changed: layers 24, 28 no longer read candidates@L20",
        "changed: layer 20 without attn.select_candidates",
        "changed: layer 28 with attn.compress, attn.index_keys, attn.select_candidates",
    ]
    marks = {item.id: item.changes for item in more.items}
    assert marks["layers.30"] == ("re-sourced",)
    assert marks["layers.27"] == ()
    assert marks["layers.28"] == ("re-sourced", "changed")


def test_reads_that_are_no_more_are_drawn_too(more: View):
    ends = {
        (arc.origin, more.items[arc.source].id, more.items[arc.target].id): arc.change
        for arc in more.arcs
        if arc.kind == "compress_kv"
    }
    assert ends["compress_kv@L20", "layers.20", "layers.30"] == "removed"
    assert ends["compress_kv@L28", "layers.28", "layers.30"] == "re-sourced"
    assert ends["compress_kv@L20", "layers.20", "layers.27"] is None
    states = {state.id: state for state in more.states}
    assert states["candidates@L20"].changes == ("removed",)
    assert states["candidates@L28"].changes == ("added",)
    assert dict(states["compress_kv@L20"].was)["read by"] == "layers 20-39"


def test_another_placement_moves_layers(flash: Program):
    one = program("toy", sets=['placement.devices=["cpu:0", "cpu:1"]', "placement.layer_ends=[3, 8]"])
    other = program("toy", sets=['placement.devices=["cpu:0", "cpu:1"]', "placement.layer_ends=[5, 8]"])
    moved = compared(one, other)
    assert "moved: layers 3-4 to cpu:0, before on cpu:1" in told(moved)
    lone = [change.what for change in moved.differences if change.kind in ("added", "removed")]
    assert lone == ["stages.1.engram_ids"]  # hashed on the second device as long as a layer there needs it
    rows = {item.id: item for item in moved.items}
    assert (rows["layers.3"].from_column, rows["layers.2"].from_column) == (1, None)
    assert dict(rows["layers.3"].was)["device"] == "cpu:1"
    text = page.svg(moved)
    assert text.count('class="ghost"') == 2
    assert "→ moved" in text


def test_layers_at_the_end_are_added_and_taken_away():
    short, long = program("toy"), program("toy", sets=LONGER)
    grown = compared(short, long)
    assert told(grown)[0] == "added: layer 8 on cpu:0"
    assert "re-sourced: head reads streams@L8.ffn, before streams@L7.ffn" in told(grown)
    shrunk = compared(long, short)
    assert told(shrunk)[0] == "removed: layer 8 on cpu:0"
    order = [item.id for item in shrunk.items if item.row]
    assert order[-3:] == ["layers.7", "layers.8", "head"]
    (ghost,) = [item for item in shrunk.items if item.id == "layers.8"]
    assert ghost.changes == ("removed",)
    assert [arc for arc in shrunk.arcs if shrunk.items[arc.target] is ghost and arc.change == "removed"]


def test_other_sizes_are_changes():
    wide = told(compared(program("toy"), program("toy", sets=["indexer.topk=4"])))
    assert "changed: layers 2, 4-5, 7: attn.select_topk.k 4, before 8" in wide
    assert "changed: topk@L2, topk@L4, topk@L5, topk@L7: i64 [B, T, 4], before i64 [B, T, 8]" in wide
    assert len(wide) == 2


def test_nothing_differs_from_itself(flash: Program):
    same = compared(flash, flash)
    assert same.differences == ()
    assert {arc.change for arc in same.arcs} == {None}
    assert not [item for item in same.items if item.changes or item.was]


def test_by_op_ops_are_compared(flash: Program):
    found = compared(flash, program(FLASH, sets=MORE), "op")
    assert (
        "added: layers.28.attn.compress, layers.28.attn.index_keys and layers.28.attn.select_candidates on cpu:0"
        in [*told(found)]
    )
    marks = {item.id: item.changes for item in found.items}
    assert marks["layers.28.attn.compress"] == ("added",)
    assert marks["layers.20.attn.select_candidates"] == ("removed",)


def test_text_json_and_pictures_tell_the_same(run):
    text = run("graph", "toy", "--set", "indexer.topk=4", "--compare", "toy")
    assert text.code == 0
    *head, _, _ = lines = text.out.splitlines()
    assert head == ["# before: toy", "# after: toy --set indexer.topk=4", "# 2 changed"]
    answer = json.loads(run("graph", "toy", "--set", "indexer.topk=4", "--compare", "toy", "--json").out)
    assert (answer["format"], answer["counts"]["changed"]) == ("dsv41c.graph-compare/1.0", 2)
    assert [f"{each['kind']:10}  {each['sentence']}" for each in answer["differences"]] == lines[3:]
    data = data_of(run("graph", "toy", "--set", "indexer.topk=4", "--compare", "toy", "--format", "html").out)
    assert [each["sentence"] for each in data["differences"]] == [each["sentence"] for each in answer["differences"]]


def test_plans_and_graphs_compare_too_and_equal_ones_say_so(run, tmp_path):
    assert run("compile", "toy", "-o", "toy.plan").code == 0
    equal = run("graph", "toy.plan", "--compare", "toy")
    assert (equal.code, "no difference" in equal.out) == (0, True)
    (tmp_path / "toy.txt").write_text(run("graph", "toy").out)
    graph = run("graph", "toy.txt", "--compare", "toy")
    assert (graph.code, re.findall(r"^(?:added|removed|re-sourced) .*", graph.out, re.M)) == (0, [])


def test_a_selection_may_name_what_one_side_has(run):
    sets = [word for each in LONGER for word in ("--set", each)]
    found = run("graph", "toy", *sets, "--compare", "toy", "--select", "layers.8")
    assert (found.code, "added       layer 8" in found.out) == (0, True)
    neither = run("graph", "toy", "--compare", "toy", "--select", "layers.9")
    assert (neither.code, "DSV151" in neither.err, neither.out) == (2, True, "")


@pytest.mark.parametrize(
    ("options", "own"),
    [
        (("--select", "compress_kv@L6+"), {"compress_kv@L6, index_k@L6, topk@L6, made by layer 6"}),
        (("--select", "+layers.7"), {"compress_kv@L6, index_k@L6, topk@L6, made by layer 6"}),
        (("--select", "layers.7", "--depth", "1"), {"compress_kv@L6, index_k@L6, topk@L6, made by layer 6"}),
        (("--select", "compress_kv@L6", "--level", "op"), {"layers.6.attn.compress on cpu:0"}),
        (("--select", "candidates@L5+"), set()),
    ],
)
def test_what_only_one_side_selects_is_not_told_as_added_or_removed(run, options, own):
    """Layer 7 reads its KV from layer 5, and then from 6: other layers are near it, and all are in both graphs."""
    sets = ("--set", "layers.kv_source_layers=[2, 5, 6]", "--set", "layers.index_source_layers=[2, 4, 5, 6, 7]")
    sets += ("--set", "layers.candidate_source_layer=-1")
    found = run("graph", "toy", *sets, "--compare", "toy", *options)
    assert found.code == 0
    assert set(re.findall(r"^added +(.*)", found.out, re.M)) == own
    gone = re.findall(r"^removed +(.*)", found.out, re.M)
    assert not [line for line in gone if "layer" in line.split(",")[0]]
    for form in ("html", "svg"):
        assert run("graph", "toy", *sets, "--compare", "toy", *options, "--format", form).code == 0


@pytest.mark.parametrize("form", ["dot", "mermaid"])
def test_formats_of_one_graph_say_where_to_go(run, form):
    refused = run("graph", "toy", "--compare", "toy", "--format", form)
    assert (refused.code, refused.out) == (2, "")
    assert "`--compare` goes with text, json, html, svg" in refused.err


def test_the_other_spec_is_checked(run, tmp_path):
    (tmp_path / "bad.yaml").write_text("extends: toy\nlayers: {kv_source_layers: [2]}\n")
    refused = run("graph", "toy", "--compare", "bad.yaml")
    assert (refused.code, "DSV403" in refused.err, refused.out) == (1, True, "")
