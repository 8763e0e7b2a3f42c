"""The viewer's page and its SVG: the data, the positions, and names that try to break out."""

import dataclasses
import html
import itertools
import json
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from dsv41c.compiler import passes
from dsv41c.compiler.build import build
from dsv41c.compiler.draw import page
from dsv41c.compiler.draw.build_view import view
from dsv41c.compiler.draw.compare import Side
from dsv41c.compiler.draw.facts import facts
from dsv41c.compiler.draw.layout import layout
from dsv41c.compiler.draw.merge import merged
from dsv41c.compiler.draw.view import Facts, Measure, View
from dsv41c.compiler.select import select
from dsv41c.compiler.spec import load

FLASH = "deepseek-v4.1-flash"
HOSTILE = (
    "</script><script>window.broken=1</script>\"'&]]>--><img src=x onerror=broken=1>\x00\x1b[31m\u202e\u2028{{7*7}}"
)
OURS = ("kind", "scope", "level", "change", "changes", "focus")  # fields that no input fills
TEMPLATES = Path(page.__file__).resolve().parents[2] / "templates" / "graph"


def program(name: str = "toy", target: str | None = None, sets=()) -> passes.Program:
    loaded = load(name, target=target, sets=sets)
    return passes.run(passes.Program(loaded.spec, loaded.spans, build(loaded.spec, loaded.spans)))


def seen(name: str = "toy", target: str | None = None, expression: str | None = None, **options) -> View:
    loaded = load(name, target=target)
    placed = program(name, target, options.pop("sets", ()))
    selection = None if expression is None else select(placed.graph, expression, placed.devices)
    texts = {loaded.names.get(file, file): text for file, text in loaded.sources.items()}
    return view(placed.graph, placed.devices, facts(placed, texts), selection, **options)


@pytest.fixture(scope="module")
def flash() -> View:
    return seen(FLASH, "rocm8")


def hostile() -> View:
    """Two placements of the toy model, with numbers, and a hostile end on every text but the words that are ours."""

    def spoilt(value: object, field: str = "") -> object:
        if field in OURS:
            return value
        if isinstance(value, str):
            return value + HOSTILE if value else value
        if isinstance(value, tuple):
            return tuple(spoilt(entry) for entry in value)
        if dataclasses.is_dataclass(value):
            return type(value)(**{f.name: spoilt(getattr(value, f.name), f.name) for f in dataclasses.fields(value)})
        return value

    sets = ['placement.devices=["cpu:0", "cpu:1"]', "placement.layer_ends=[3, 8]"]
    one, other = program("toy", sets=sets), program("toy", sets=['layers.reads={7: {"topk": 5}}'])
    sides = [
        Side(each.graph, view(each.graph, each.devices, facts(each), remarks=("remark",)), "side")
        for each in (other, one)
    ]
    numbers = tuple((f"layers.{n}", n / 7) for n in range(7))
    measures = (Measure("time", "us", tuple((row + HOSTILE, number) for row, number in numbers)),)
    found = spoilt(merged(*sides))
    measured = dataclasses.replace(found, title="title" + HOSTILE, measures=measures)
    return dataclasses.replace(measured, focus=("row", "layers.5" + HOSTILE))


def data_of(text: str) -> dict:
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)[1])


def test_rows_are_layers_and_columns_devices(flash: View):
    assert flash.columns == tuple(f"rocm:{n}" for n in range(8))
    rows = [item for item in flash.items if item.row]
    assert [item.id for item in rows if item.id.startswith("layers.")] == [f"layers.{n}" for n in range(40)]
    assert {item.device for item in rows if item.stage == 4} == {"rocm:4"}
    boundaries = [item for item in flash.items if not item.row]
    assert [item.label for item in boundaries] == [f"rocm:{n} → rocm:{n + 1}" for n in range(7)]
    assert boundaries[4].detail == "44,368 B a token"


def test_states_know_readers_bytes_and_places(flash: View):
    states = {state.id: state for state in flash.states}
    kv = states["compress_kv@L20"]
    assert kv.rows == tuple(f"layers.{n}" for n in range(20, 40))
    assert (kv.read_by, kv.row, kv.device, kv.region) == ("layers 20-39", "layers.20", "rocm:4", "layers.20")
    assert (kv.bytes_per_token, kv.bytes_per_session) == (1024.0, 4096 * 1024)
    assert kv.kernel == "triton.compress"
    assert re.search(r":\d+:\d+$", kv.span)
    assert dict(flash.lines)[kv.span.rpartition(":")[0]].startswith("kv_source_layers: ")
    copy = states["compress_kv@L20.S6"]
    assert (copy.origin, copy.device, copy.rows) == ("compress_kv@L20", "rocm:6", kv.rows)
    assert states["compress_kv@L2"].bytes_per_token == 512.0  # a row is two tokens'


def test_arcs_go_through_every_boundary_on_their_way(flash: View):
    arcs = [arc for arc in flash.arcs if arc.origin == "compress_kv@L20"]
    crossings = [(flash.items[arc.source].id, flash.items[arc.target].id) for arc in arcs if arc.crossing]
    assert crossings == [("layers.20", "boundary.5"), ("boundary.5", "boundary.6"), ("boundary.6", "boundary.7")]
    readers = [flash.items[arc.target].id for arc in arcs if not arc.crossing]
    assert readers == [f"layers.{n}" for n in range(21, 40)]
    for arc in arcs:
        assert flash.items[arc.source].column == flash.items[arc.target].column or arc.crossing


def test_equal_layers_fold():
    folds = [fold.label for fold in seen(FLASH).folds]
    expected = ["3-7", "9-13", "15-19", "21-23", "25-27", "29-31", "33-35", "37-39"]
    assert folds == [f"layers {numbers}" for numbers in expected]


def test_nothing_lies_on_anything_else(flash: View):
    positions = layout(flash)
    spans = [(place.top, place.top + place.height) for place in positions.places]
    assert all(end < begin for (_, end), (begin, _) in itertools.pairwise(spans))
    for (x, width, _), (following, _, _) in itertools.pairwise(positions.columns):
        assert x + width < following
    for place, texts in zip(positions.places, positions.texts, strict=True):
        assert all(chip.x + chip.width < place.width for chip in texts.chips)
    trunks: dict[tuple[float, int], set[str]] = {}  # x and item: the values that go down there
    for arc, route in zip(flash.arcs, positions.routes, strict=True):
        straight = (arc.implied and flash.level == "layer") or not flash.items[arc.source].row
        x = route[0][0] if straight else route[1][0]
        for item in range(arc.source, arc.target):
            trunks.setdefault((x, item), set()).add(arc.value)
    assert all(len(values) == 1 for values in trunks.values())


def test_a_selection_and_hidden_kinds():
    chosen = seen(FLASH, "rocm8", "compress_kv@L20+")
    assert {arc.origin for arc in chosen.arcs} == {"compress_kv@L20"}
    assert [item.id for item in chosen.items if item.row] == [f"layers.{n}" for n in range(20, 40)]
    assert not [arc for arc in seen(hidden=("topk",)).arcs if arc.kind == "topk"]


def test_a_bare_graph_has_a_view():
    loaded = load("toy")
    bare = view(build(loaded.spec, loaded.spans), ("stage:0",), Facts())
    assert {state.bytes_per_session for state in bare.states} == {None}
    assert "compress_kv@L5" in page.html(bare)


def test_the_same_bytes_under_every_hash_seed():
    code = (
        "from dsv41c.compiler.cli import main\n"
        "for form in ('html', 'svg'):\n"
        "    main(['graph', 'deepseek-v4.1-flash', '--target', 'rocm8', '--format', form])\n"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, check=True, timeout=60
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1
    assert outputs.pop()


def test_a_plan_has_the_view_of_its_spec(run):
    assert run("compile", "toy", "-o", "toy.plan").code == 0
    whole, plan = (run("graph", spec, "--format", "html") for spec in ("toy", "toy.plan"))
    assert whole.code == plan.code == 0
    without_places = [re.sub(r'"span":"[^"]*"', "", json.dumps(data_of(ran.out)["items"])) for ran in (whole, plan)]
    assert data_of(plan.out)["arcs"] == data_of(whole.out)["arcs"]
    assert re.sub(r'"span": "[^"]*"', "", without_places[0]) == re.sub(r'"span": "[^"]*"', "", without_places[1])
    refused = run("graph", "toy.plan", "--target", "cpu")
    assert (refused.code, "goes with specs only" in refused.err) == (2, True)


def test_a_plan_is_drawn_only_where_its_spec_is_what_it_was_compiled_from(run, tmp_path: Path):
    assert run("compile", "toy", "-o", "toy.plan").code == 0
    spec, manifest = tmp_path / "toy.plan" / "spec.yaml", tmp_path / "toy.plan" / "manifest.json"
    kept = manifest.read_text()
    for old, new, code in (
        ('"reads": {"streams": "streams@L2.ffn"', '"reads": {"streams": "streams@L1.ffn"', "DSV804"),
        ('"device": "cpu:0"', '"device": "cpu:1"', "DSV804"),
        ('"dsv41c.plan/1.', '"dsv41c.plan/9.', "DSV802"),
    ):
        edited = json.dumps(json.loads(kept)).replace(old, new)
        assert new in edited
        manifest.write_text(edited)
        refused = run("graph", "toy.plan")
        assert (refused.code, refused.out) == (1, ""), old
        assert f"error[{code}]" in refused.err and "compile the plan again" in refused.err
    manifest.write_text(kept)
    spec.write_text(f"{spec.read_text()}# mine\n")
    refused = run("graph", "toy.plan", "--format", "svg")
    assert (refused.code, refused.out) == (1, "")
    assert "error[DSV811]: `spec.yaml` is not the file that was compiled" in refused.err
    assert run("graph", "toy.plan/spec.yaml").code == 0


def test_by_op_a_layer_folds_with_its_ops():
    ops = seen(expression="layers.5-6", level="op")
    rows = [item for item in ops.items if item.row]
    assert [item.id for item in rows if item.parent is None] == ["layers.5", "layers.6"]
    assert [item.label for item in rows if item.parent == "layers.6"][-2:] == ["ffn.shared_expert", "ffn.expand"]
    assert [(fold.label, fold.closed) for fold in ops.folds] == [("layer 5", False), ("layer 6", False)]
    assert ops.items[ops.folds[0].first].id == "layers.5"
    (read,) = [arc for arc in ops.arcs if arc.value == "compress_kv@L5" and ops.items[arc.target].parent == "layers.6"]
    assert (ops.items[read.source].id, ops.items[read.target].id) == ("layers.5.attn.compress", "layers.6.attn.attend")
    assert all(fold.closed for fold in seen(level="op").folds)


def test_by_op_nothing_lies_on_anything_else():
    ops = seen(FLASH, "rocm8", level="op")
    test_nothing_lies_on_anything_else(ops)


def test_long_details_go_on_below():
    sharded = seen(sets=["placement.tensor_parallel=2", "indexer.n_heads=4"])
    details = {item.id: texts.detail for item, texts in zip(sharded.items, layout(sharded).texts, strict=True)}
    assert details["layers.4"] == ("ratio 2, engram,", "2 collectives (1,024 bytes a token)")
    assert "2 collectives (1,024 bytes a token)</text>" in page.svg(sharded)


def test_hostile_names_stay_text_in_the_page():
    text = page.html(hostile())
    assert text.count("<script") == text.count("</script>") == 2
    assert "<img" not in text
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]", text)
    data = data_of(text)
    assert data["columns"][0].startswith("cpu:0</script><script>")
    assert "\\u202e\\u2028{{7*7}}" in data["columns"][0]
    title = html.unescape(re.search("<title>(.*?)</title>", text)[1])
    assert title.startswith("toy</script>")


def test_hostile_names_stay_text_in_svg():
    text = page.svg(hostile())
    root = ElementTree.fromstring(text)
    tags = {element.tag.rpartition("}")[2] for element in root.iter()}
    assert tags <= {"svg", "title", "desc", "style", "rect", "text", "tspan", "g", "path", "circle"}
    styles = {element.get("style") for element in root.iter()} - {None}
    assert all(re.fullmatch(r"--(k: #[0-9a-f]{6}|share: [\d.]+)", style) for style in styles)
    assert all(re.fullmatch(r"[a-z -]*", element.get("class", "")) for element in root.iter())
    assert not [name for element in root.iter() for name in element.attrib if name.startswith("on") or "href" in name]
    assert any("cpu:0</script>" in (element.text or "") for element in root.iter())


def test_parts_of_the_page_are_short():
    lengths = {file.name: len(file.read_text().splitlines()) for file in TEMPLATES.iterdir()}
    assert {"main.js", "drawing.css", "page.html.j2"} <= lengths.keys()
    assert not {name: length for name, length in lengths.items() if length > 400}


def test_the_page_loads_nothing():
    text = page.html(seen())
    assert "default-src 'none'" in text
    outside = re.sub(r"http://www\.w3\.org/2000/svg", "", text)
    assert not re.findall(r"https?://|@import|url\(|\beval\b|innerHTML|outerHTML|insertAdjacentHTML", outside)
