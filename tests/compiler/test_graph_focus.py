"""`--focus` and `--depth`: what is around one thing, in every format, and which options do not go together."""

import json
import re

import pytest

from dsv41c.compiler.draw.around import around
from dsv41c.compiler.select import original, select

from .test_view import FLASH, data_of, program


@pytest.fixture(scope="module")
def flash():
    return program(FLASH)


def kept(placed, expression: str, depth: int, level: str = "layer") -> list[int]:
    found = around(placed.graph, select(placed.graph, expression), depth, level)
    return sorted({placed.graph.by_id[op].layer for op in found.ops} - {None})


def test_steps_lead_to_makers_and_readers(flash):
    assert kept(flash, "layers.30", 0) == [30]
    assert kept(flash, "layers.30", 1) == [20, 28, 29, 30, 31]  # its KV, its selection, the layer before, the one after
    assert kept(flash, "compress_kv@L20", 1) == list(range(20, 40))
    assert kept(flash, "compress_kv@L20", 0) == []
    assert 14 not in kept(flash, "layers.20", 1)
    assert kept(flash, "layers.30", 100) == list(range(40))


def test_by_op_a_step_is_an_op(flash):
    found = around(flash.graph, select(flash.graph, "layers.30.attn.attend"), 1, "op")
    assert set(found.ops) == {
        "layers.20.attn.compress",
        "layers.28.attn.select_topk",
        "layers.30.attn.query",
        "layers.30.attn.window_rows",
        "layers.30.attn.attend",
        "layers.30.attn.output",
    }


def test_across_devices_what_carries_is_kept():
    placed = program(FLASH, "rocm8")
    found = around(placed.graph, select(placed.graph, "layers.30"), 1, "layer")
    copies = {op for op in found.ops if placed.graph.by_id[op].kind in ("transfer", "mirror")}
    assert copies
    assert {placed.graph.by_id[op].layer for op in found.ops - copies} == {20, 28, 29, 30, 31}


def test_across_devices_what_is_near_is_the_same(flash):
    """Layer 19 is two steps from 28, and so is 24; what they send to the devices of 20 and 27 is left out with them."""
    near = set(around(flash.graph, select(flash.graph, "layers.28"), 1, "layer").ops)
    placed = program(FLASH, "rocm8")
    found = around(placed.graph, select(placed.graph, "layers.28"), 1, "layer")
    copies = {op for op in found.ops if placed.graph.by_id[op].kind in ("transfer", "mirror")}
    assert copies and found.ops - copies == near
    carried = {original(placed.graph, value) for op in copies for value in placed.graph.by_id[op].write_ids}
    assert {placed.graph.producer(value).layer for value in carried} == {20, 28, 29}


@pytest.mark.parametrize("form", ["text", "json", "dot", "mermaid"])
def test_formats_without_a_page_draw_what_is_around(run, form):
    near = run("graph", "toy", "--focus", "layers.3", "--level", "layer", "--format", form)
    assert near.code == 0
    assert {"layer 2", "layer 3", "layer 4"} <= set(re.findall(r"layer \d", near.out))
    assert "layer 6;" not in near.out and "layer 6\\n" not in near.out
    alone = run("graph", "toy", "--focus", "layers.3", "--depth", "0", "--level", "layer", "--format", form)
    assert len(alone.out) < len(near.out)
    strong = {"dot": r'"layers\.3" \[.*penwidth=3', "mermaid": r"style n1 stroke-width"}
    if form in strong:
        assert re.search(strong[form], near.out)


def test_a_page_begins_with_the_focus(run):
    data = data_of(run("graph", FLASH, "--focus", "layers.22", "--format", "html").out)
    assert data["focus"] == ["row", "layers.22"]
    folds = {fold["label"]: fold["closed"] for fold in data["folds"]}
    assert (folds["layers 21-23"], folds["layers 25-27"]) == (False, True)
    assert len([item for item in data["items"] if item["row"]]) == 42
    near = data_of(run("graph", FLASH, "--focus", "compress_kv@L20", "--depth", "1", "--format", "html").out)
    assert near["focus"] == ["state", "compress_kv@L20"]
    assert [item["id"] for item in near["items"]] == [f"layers.{n}" for n in range(20, 40)]


def test_by_op_the_layer_of_the_focus_is_open(run):
    data = data_of(run("graph", "toy", "--level", "op", "--focus", "layers.5.attn.attend", "--format", "html").out)
    assert data["focus"] == ["row", "layers.5.attn.attend"]
    assert [fold["label"] for fold in data["folds"] if not fold["closed"]] == ["layer 5"]


@pytest.mark.parametrize("expression", ["layers.3-5", "compress_kv@L5+", "layers.5.attn.compress"])
def test_a_focus_within_a_selection(run, expression):
    data = data_of(run("graph", "toy", "--select", expression, "--focus", "compress_kv@L5", "--format", "html").out)
    assert data["focus"] == ["state", "compress_kv@L5"]


def test_svg_shows_the_focus_stronger(run):
    text = run("graph", FLASH, "--focus", "compress_kv@L20", "--format", "svg").out
    rows = re.findall(r'<g class="row( faint)?"><title>layer (\d+)', text)
    assert [int(layer) for faint, layer in rows if not faint] == list(range(20, 40))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--depth", "2"], "give `--focus` or `--select` with it"),
        (["--focus", "layers.2-4"], "is not one thing"),
        (["--focus", "+layers.2"], "is not one thing"),
        (["--focus", "layers.2,layers.3"], "is not one thing"),
        (["--focus", "kind:topk"], "is not one thing"),
        (["--focus", "layers.2", "--select", "layers.3"], "give one of them"),
        (["--focus", "layers.2", "--select", "layers.3", "--depth", "1", "--format", "svg"], "give one of them"),
        (["--focus", "layers.2", "--compare", "toy"], "goes with `--format html` and `svg`"),
        (
            ["--focus", "layers.5", "--select", "layers.3", "--format", "svg"],
            "is not in what `--select layers.3` draws",
        ),
        (["--depth", "-1", "--focus", "layers.2"], "not a number of 0 or more"),
        (["--compare", "-", "--overlay", "-", "--format", "svg"], "can be read once"),
        (["--focus", "layers.99"], "<--focus>:1:1"),
    ],
)
def test_what_does_not_go_together_says_the_way_out(run, options, says):
    refused = run("graph", "toy", *options)
    assert (refused.code, refused.out) == (2, "")
    assert says in refused.err


def test_a_depth_around_a_selection(run):
    found = json.loads(run("graph", "toy", "--select", "layers.6", "--depth", "1", "--level", "layer", "--json").out)
    assert [node["id"] for node in found["nodes"]] == ["layers.5", "layers.6", "layers.7"]


def test_hostile_file_names_stay_within_their_line(run, tmp_path):
    name = 'evil\x1b[31m\x9b\u202e"];x\n<b>--><script>.yaml'
    if not hostile_file(tmp_path, name):
        pytest.skip("this file system has no such names")
    for form in ("text", "json", "dot", "mermaid", "html", "svg"):
        out = run("graph", name, "--format", form, "--focus", "layers.0").out
        assert out
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", out)
        assert "evil\\x1b[31m" in out.replace("\\\\", "\\") or form in ("mermaid", "svg")
        assert form not in ("html", "svg") or out.count("<script") == 2 * (form == "html")
    assert not re.search("[\x1b\x9b\u202e]", run("graph", name, "--compare", "toy").out)


def hostile_file(folder, name: str) -> bool:
    try:
        (folder / name).write_text("extends: toy\nlayers:\n  compress_ratios: [0, 0, 2, 2, 2, 1, 1, 1]\n")
    except (OSError, ValueError):
        return False
    return True
