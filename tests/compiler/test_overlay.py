"""Numbers over a picture: the file's form, what is said of files that are not of it, and results of our own."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv41c.compiler.draw.marks import bar, quantity
from dsv41c.compiler.draw.overlay import FORMAT, read_overlay
from dsv41c.compiler.draw.view import Measure
from dsv41c.diagnostics import UserFault

from .test_view import data_of

ROWS = {"embed", *(f"layers.{n}" for n in range(8)), "head"}
TIMES = {"name": "time", "unit": "us", "layers": {"0": 1, "3": 2.5, "head": 4}}


def overlay(**changes: object) -> str:
    return json.dumps({"format": FORMAT, "title": "a step", "measures": [TIMES], **changes})


def faults(text: str) -> list[tuple[str, str]]:
    with pytest.raises(UserFault) as caught:
        read_overlay(text, "numbers.json", ROWS)
    for finding in caught.value.diagnostics:
        assert finding.span is not None and finding.span.file == "numbers.json"
        assert finding.help
    return [(finding.code, finding.message) for finding in caught.value.diagnostics]


def test_numbers_by_row():
    read = read_overlay(overlay(), "numbers.json", ROWS)
    assert read.title == "a step"
    assert read.measures == (Measure("time", "us", (("layers.0", 1.0), ("layers.3", 2.5), ("head", 4.0))),)


def test_every_mistake_is_told_at_once():
    layers = {"0": "much", "1": None, "99": 1, "first": 1, "00": 2}
    found = faults(overlay(measures=[{**TIMES, "layers": layers}, {"unit": "us", "layer": {}}, 5], note=""))
    assert found == [
        ("DSV156", 'the number of `0` is "much"'),
        ("DSV156", "the number of `1` is null"),
        ("DSV157", "the overlay has numbers of layer 99, which the graph lacks"),
        ("DSV156", "`first` is not a layer"),
        ("DSV156", "`layers.0` has two numbers"),
        ("DSV156", "`name` of a measure is missing"),
        ("DSV156", "a measure has no numbers by layer"),
        ("DSV156", "a measure has the unknown key `layer`"),
        ("DSV156", "a measure is 5"),
        ("DSV156", "the overlay has the unknown key `note`"),
    ]


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        ("", "DSV156", "the overlay is not valid JSON: expecting value"),
        ('{"format": "x"', "DSV156", "the overlay is not valid JSON: expecting ',' delimiter"),
        ("[]", "DSV156", "the overlay names no format"),
        ('{"format": "dsv41c.overlay/2.0"}', "DSV156", 'the overlay\'s format is "dsv41c.overlay/2.0"'),
        (overlay(measures=[]), "DSV156", "the overlay has no list of measures"),
        (overlay(measures=[TIMES, TIMES]), "DSV156", 'several measures are called "time"'),
        (overlay(measures=[{**TIMES, "layers": {}}]), "DSV156", "the overlay has no numbers"),
        (overlay(title=float("nan")), "DSV115", "`NaN` is not a finite number"),
        ('{"format": "dsv41c.run/1.0", "ids": []}', "DSV156", "this result of `run` has no comparison by layer"),
        ('{"format": "dsv41c.bench/1.0", "cells": []}', "DSV156", "this result of `bench` has no bytes by layer"),
    ],
)
def test_what_is_not_an_overlay_says_why(text: str, code: str, message: str):
    assert faults(text) == [(code, message)]


KEYS = st.sampled_from(["format", "measures", "layers", "name", "0", "cells", "comparison"])
VALUES = st.recursive(
    st.none() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


@given(st.text(max_size=200) | VALUES.map(json.dumps))
def test_no_text_is_a_fault_of_ours(text: str):
    for each in (text, text.replace("null", f'"{FORMAT}"'), text.replace("null", '"dsv41c.run/1.0"')):
        try:
            read_overlay(each, "numbers.json", ROWS)
        except UserFault as fault:
            assert fault.diagnostics


def test_the_bar_goes_from_the_least_to_the_most():
    shown = bar(Measure("time", "us", (("a", -2.0), ("b", 2.0), ("c", 0.0))))
    assert (shown["least"], shown["most"]) == ("-2 us", "2 us")
    assert [shown["rows"][row]["share"] for row in "abc"] == [0.0, 1.0, 0.5]
    widest = bar(Measure("x", "", (("a", -1.7e308), ("b", 1.7e308))))
    assert [number["share"] for number in widest["rows"].values()] == [0.0, 1.0]
    assert bar(Measure("x", "", (("a", 3.0),)))["rows"]["a"]["share"] == 0.0
    assert (quantity(7_423_950_336, "B"), quantity(0.00012345, "")) == ("6.9 GiB", "0.0001234")


def test_what_layers_take(run):
    measures = data_of(run("graph", "toy", "--overlay", "bytes", "--format", "html").out)["measures"]
    assert [measure["name"] for measure in measures] == [
        "weights, as stored",
        "state of a session",
        "state that a token adds",
    ]
    _, state, growth = measures
    assert growth["rows"]["layers.5"]["text"] == "192 B"  # a row of 64 and one of 32 in bf16
    assert growth["rows"]["layers.2"]["text"] == "96 B"  # the same for two tokens
    assert state["rows"]["layers.0"]["text"] == "2.0 KiB"  # 16 rows of 64
    graph = run("graph", "toy").out
    assert "needs a spec or a plan" in run_with_input(run, graph).err


def run_with_input(run, text: str):
    with open("toy.txt", "w") as file:
        file.write(text)
    return run("graph", "toy.txt", "--overlay", "bytes", "--format", "svg")


def test_rows_without_a_number_are_seen_to_have_none(run, tmp_path):
    (tmp_path / "numbers.json").write_text(overlay())
    text = run("graph", "toy", "--overlay", "numbers.json", "--format", "svg").out
    assert text.count('class="row heated"') == 3
    assert text.count('class="row unmeasured"') == 7
    assert "a step: time, from 1 us (pale) to 4 us (full); dashed: no number" in text
    assert re.search(r">2\.5 us</text>", text)


@pytest.mark.parametrize("form", ["text", "json", "dot", "mermaid"])
def test_other_formats_have_no_rows_to_colour(run, form):
    refused = run("graph", "toy", "--overlay", "bytes", "--format", form)
    told, silent = (refused.out, refused.err) if form == "json" else (refused.err, refused.out)
    assert (refused.code, silent, "give `--format html` or `svg`" in told) == (2, "", True)


def test_a_bad_file_names_its_place(run, tmp_path):
    (tmp_path / "numbers.json").write_text(overlay(title=3))
    refused = run("graph", "toy", "--overlay", "numbers.json", "--format", "svg")
    assert (refused.code, refused.out) == (1, "")
    assert "numbers.json:1:" in refused.err
    missing = run("graph", "toy", "--overlay", "nowhere.json", "--format", "svg")
    assert (missing.code, "DSV117" in missing.err) == (2, True)


def test_a_comparison_with_the_reference_is_read(run):
    assert run("compile", "toy", "-o", "toy.plan").code == 0
    assert run("synth", "toy", "-o", "toy.checkpoint").code == 0
    ran = run(
        "run",
        "toy.plan",
        "--checkpoint",
        "toy.checkpoint",
        "--ids",
        "1,2",
        "-n",
        "1",
        "--compare",
        "reference",
        "--json",
    )
    layers = json.loads(ran.out)["comparison"]["layers"]
    assert list(layers) == ["embed", *map(str, range(8)), "head"]
    assert {layer["outside"] for layer in layers.values()} == {0}
    with open("run.json", "w") as file:
        file.write(ran.out)
    data = data_of(run("graph", "toy.plan", "--overlay", "run.json", "--format", "html").out)
    assert [measure["name"] for measure in data["measures"]] == [
        "largest distance from the reference",
        "values outside their bounds",
    ]
    assert set(data["measures"][0]["rows"]) == ROWS


def test_bytes_and_launches_of_a_benchmark_are_read():
    moved = {"total": 7.0, "weights": 3, "experts": 4, "distinct_experts": 2.0}
    cell = {
        "layers": [{"layer": None, **moved}, {"layer": 2, **moved}],
        "launches": {"parts": {"layers.2": 5, "step": 9}},
    }
    read = read_overlay(json.dumps({"format": "dsv41c.bench/1.0", "cells": [cell]}), "bench.json", ROWS)
    assert [(measure.name, measure.numbers) for measure in read.measures] == [
        ("total, moved", (("layers.2", 7.0),)),
        ("weights, moved", (("layers.2", 3.0),)),
        ("experts, moved", (("layers.2", 4.0),)),
        ("kernels launched", (("layers.2", 5.0),)),
    ]
