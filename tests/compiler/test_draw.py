"""Pictures: every format of every level, the same bytes each time, and nothing a name holds breaks out of it."""

import json
import re
import subprocess
import sys

import pytest

from dsv41c.compiler import passes
from dsv41c.compiler.build import build
from dsv41c.compiler.draw import FORMATS, Drawing, dot, draw, mermaid
from dsv41c.compiler.draw.picture import Arrow, Node, Picture
from dsv41c.compiler.ir import parse
from dsv41c.compiler.select import select
from dsv41c.compiler.spec import load
from dsv41c.diagnostics import Span

HOSTILE = 'a"];\n evil -> b; "\\"\u2028<script>`%% \x00end'


def drawing(name: str = "toy", target: str | None = None, expression: str | None = None, **options) -> Drawing:
    loaded = load(name, target=target)
    program = passes.Program(loaded.spec, loaded.spans, build(loaded.spec, loaded.spans))
    placed = passes.run(program, pipeline=passes.PIPELINE[:4])
    selection = None if expression is None else select(placed.graph, expression, placed.devices)
    return Drawing(placed.graph, selection, placed.devices, **options)


def hostile() -> Picture:
    span = Span(HOSTILE, 1, 1)
    nodes = (Node(HOSTILE, HOSTILE, "layer", "layer", 0, span), Node("b", "b", "value", "topk", 0, span))
    return Picture(
        HOSTILE, "layer", (HOSTILE, "x"), nodes, (Arrow(HOSTILE, "b", (HOSTILE,), "topk", True),), (HOSTILE,)
    )


def test_text_is_the_graph_and_comments_do_not_disturb_it():
    whole = drawing()
    assert draw(whole, "text") == str(whole.graph)
    answered = draw(drawing(expression="compress_kv@L5+"), "text")
    assert answered.startswith("# compress_kv@L5: written by layer 5, read by layers 5-7\n")
    assert str(parse(answered)) == "".join(line for line in answered.splitlines(True) if not line.startswith("#"))


@pytest.mark.parametrize("level", ["op", "layer", None])
@pytest.mark.parametrize("form", FORMATS)
def test_the_same_bytes_each_time(form: str, level: str | None):
    first, second = (draw(drawing(level=level), form) for _ in range(2))
    assert first == second
    assert first.endswith("\n")


def test_the_same_bytes_under_every_hash_seed():
    code = (
        "from dsv41c.compiler.cli import main\n"
        "for form in ('text', 'dot', 'mermaid', 'json'):\n"
        "    main(['graph', 'toy', '--format', form, '--select', '++layers.5,kind:topk,layers.7+'])\n"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, check=True, timeout=60
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(outputs) == 1
    assert outputs.pop()


def test_layer_level_shows_who_reads_whom():
    text = draw(drawing("deepseek-v4.1-flash", level="layer"), "text")
    (line,) = [line for line in text.splitlines() if line.startswith("layer 30;")]
    assert line.split("reads ")[1] == "streams@L29.ffn, pre@L29.ffn, compress_kv@L20, topk@L28"


def test_hidden_kinds_are_left_out():
    text = draw(drawing(level="layer", hidden=("compress_kv", "index_k")), "dot")
    assert "topk@L2" in text
    assert "compress_kv@" not in text


def test_dot_has_a_cluster_a_stage_and_dashed_crossings():
    text = draw(drawing("deepseek-v4.1-flash", "rocm8"), "dot")
    assert len(re.findall(r"subgraph cluster_\d+", text)) == 8
    crossing = next(line for line in text.splitlines() if '"layers.4" -> "layers.5"' in line)
    within = next(line for line in text.splitlines() if '"layers.5" -> "layers.6"' in line)
    assert "style=dashed" in crossing
    assert "dashed" not in within


def test_dot_strings_hold_hostile_names():
    remark, _, rest = dot.draw(hostile()).partition("\n")
    assert remark.startswith("// ")
    assert not re.search(r"[\x00\u2028]", remark + rest)
    outside = re.sub(r'"(?:[^"\\]|\\.)*"', "S", rest)
    assert "evil" not in outside
    assert outside.startswith("digraph S {\n")


def test_mermaid_strings_hold_hostile_names():
    lines = mermaid.draw(hostile()).splitlines()
    assert lines[0].startswith("%% ")
    assert lines[1] == "flowchart TB"
    for line in lines[2:]:
        assert line.count('"') in (0, 2)
        assert "<script>" not in line
        assert "\x00" not in line


def test_mermaid_stays_small():
    text = draw(drawing("deepseek-v4.1-flash", level="op"), "mermaid")
    assert text.startswith("%% ")
    assert "drawn by layer instead" in text
    assert len(text.splitlines()) < 250


def test_mermaid_draws_a_small_selection_by_op():
    text = draw(drawing(expression="layers.7,+layers.7", level="op"), "mermaid")
    assert "layers.7.attn.attend" in text
    assert "compress_kv@L5" in text


def test_json_has_nodes_edges_and_positions():
    data = json.loads(draw(drawing(expression="compress_kv@L5+"), "json"))
    assert data["format"] == "dsv41c.graph-json/1.0"
    assert data["selected"] == {"ops": [f"layers.{n}.attn.attend" for n in (5, 6, 7)], "values": []}
    assert {node["id"] for node in data["nodes"]} >= {"value:compress_kv@L5", "op:layers.7.attn.attend"}
    assert all(re.search(r":\d+:\d+$", node["span"]) for node in data["nodes"])
    ids = {node["id"] for node in data["nodes"]}
    assert all(edge["source"] in ids and edge["target"] in ids for edge in data["edges"])
    assert list(data) == sorted(data)
