"""The formats of findings: goldens of each, the structure of the machine ones, and nothing that harms a terminal."""

import json
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from dsv41c.diagnostics import Diagnostic, Edit, Label, Span
from dsv41c.report import FORMATS, render, summary_line

GOLDEN = Path(__file__).parent / "golden" / "report"
SARIF = Draft202012Validator(json.loads((Path(__file__).parent / "schemas" / "sarif-2.1.0.json").read_text()))
SPEC = """\
extends: toy
layers:
  compress_ratios: {0-1: 0, 2-4: 2, 5-7: 1}
  kv_source_layers: [2]
  index_source_layers: [2, 4, 5, 7]
\tname: "x"  # 選択 and a tab
"""
SOURCES = {"my spec.yaml": SPEC, "<--set 1>": "model.dim=7"}
FINDINGS = [
    Diagnostic(
        "DSV403",
        "layers 5-7 (ratio 1) read `compress_kv@L2`, whose rows are groups of ratio 2",
        Span("my spec.yaml", 3, 37, 3, 43),
        (Label(Span("my spec.yaml", 4, 22, 4, 23), "the source"), Label(Span("my spec.yaml", 3, 37, 3, 43), "ratio 1")),
        (("layers.compress_ratios[5]", "1"), ("layers.compress_ratios[2]", "2")),
        "add 5 to `kv_source_layers` and `index_source_layers`",
    ),
    Diagnostic("DSV410", "no layer reads `candidates@L5`: 100%, a:b", Span("<--set 1>", 1, 1), help="leave it out"),
    Diagnostic("DSV301", "字, \x1b[31mred\x1b[0m\r\n::error::x", Span("my spec.yaml", 6, 7, 6, 10), notes=("a note",)),
    Diagnostic("DSV501", "no place at all"),
    Diagnostic("DSV502", "a place without its text", Span("elsewhere.yaml", 12, 3, 14, 2)),
    Diagnostic(
        "DSV203",
        "text where a list is expected",
        Span("my spec.yaml", 4, 22, 4, 23),
        help="write it in brackets",
        fix=(Edit(Span("my spec.yaml", 4, 22, 4, 22), "["), Edit(Span("my spec.yaml", 4, 23, 4, 23), "]")),
    ),
]


@pytest.mark.parametrize("form", FORMATS)
def test_golden(form, update_golden):
    written = render(FINDINGS, SOURCES, form)
    file = GOLDEN / f"{form}.txt"
    if update_golden:
        file.write_text(written, encoding="utf-8")
    assert written == file.read_text(encoding="utf-8")


def test_order_of_findings_does_not_matter():
    for form in FORMATS:
        assert render(reversed(FINDINGS), SOURCES, form) == render(FINDINGS, SOURCES, form)


def test_colour_only_adds_colour():
    plain, coloured = render(FINDINGS, SOURCES), render(FINDINGS, SOURCES, color=True)
    assert "\x1b" not in plain and "\x1b[1;31merror[DSV403]" in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == plain


def test_nothing_found():
    assert render([], {}) == "" and render([], {}, "concise") == "" and render([], {}, "github") == ""
    assert json.loads(render([], {}, "json"))["summary"] == {"errors": 0, "notes": 0, "warnings": 0}
    assert json.loads(render([], {}, "sarif"))["runs"][0]["results"] == []
    assert summary_line([]) == "no findings"
    assert summary_line(FINDINGS) == "5 errors, 1 warning"


def test_findings_that_were_left_out_are_counted_in_every_form():
    found = [*FINDINGS, Diagnostic("DSV301", "x", left_out=49_800), Diagnostic("DSV203", "y", left_out=7)]
    more = "49,800 more of DSV301"
    assert summary_line(found) == f"7 errors, 1 warning, and 7 more of DSV203 and {more} that are not shown"
    assert render(found, SOURCES).endswith(summary_line(found) + "\n")
    report = json.loads(render(found, SOURCES, "json"))
    assert report["left_out"] == {"DSV203": 7, "DSV301": 49_800} and report["summary"]["errors"] == 7
    assert render(found, SOURCES, "concise").endswith(
        "DSV203 7 more that are not shown\nDSV301 49,800 more that are not shown\n"
    )
    assert render(found, SOURCES, "github").splitlines()[-1] == (
        "::error title=DSV301 layer-out-of-range::49,800 more that are not shown"
    )
    written = render(found, SOURCES, "sarif")
    sarif_is_valid(written)
    [run] = json.loads(written)["runs"]
    [invocation] = run["invocations"]
    told = invocation["toolExecutionNotifications"]
    assert [each["message"]["text"] for each in told] == [
        "7 more of DSV203 that are not shown",
        f"{more} that are not shown",
    ]
    for each in told:
        assert run["tool"]["driver"]["rules"][each["associatedRule"]["index"]]["id"] == each["associatedRule"]["id"]


def test_json_form():
    report = json.loads(render(FINDINGS, SOURCES, "json"))
    assert list(report) == sorted(report)
    assert report["format"] == "dsv41c.diagnostics/1.2"
    assert report["summary"] == {"errors": 5, "notes": 0, "warnings": 1}
    finding = next(each for each in report["diagnostics"] if each["code"] == "DSV403")
    assert finding["name"] == "ratio-differs-from-source" and finding["severity"] == "error"
    assert finding["span"] == {"file": "my spec.yaml", "line": 3, "column": 37, "end_line": 3, "end_column": 43}
    assert finding["facts"][0] == {"name": "layers.compress_ratios[5]", "value": "1"}


def sarif_is_valid(text):
    """What SARIF 2.1.0 asks of a log, by its schema, and the services that read it."""
    log = json.loads(text)
    assert not [f"{error.json_path}: {error.message}" for error in SARIF.iter_errors(log)]
    assert log["version"] == "2.1.0" and log["$schema"].endswith("sarif-2.1.0.json")
    for run in log["runs"]:
        driver = run["tool"]["driver"]
        ids = [rule["id"] for rule in driver["rules"]]
        assert driver["name"] and ids == sorted(set(ids))
        assert run["columnKind"] in ("utf16CodeUnits", "unicodeCodePoints")
        for rule in driver["rules"]:
            assert rule["shortDescription"]["text"] and rule["fullDescription"]["text"] and rule["help"]["text"]
            assert rule["defaultConfiguration"]["level"] in ("error", "warning", "note")
        for result in run["results"]:
            assert result["message"]["text"] and result["level"] in ("error", "warning", "note")
            assert ids[result["ruleIndex"]] == result["ruleId"]
            related = result.get("relatedLocations", [])
            assert all(place["message"]["text"] for place in related)
            assert len({place["id"] for place in related}) == len(related)
            for place in (*result["locations"], *related):
                uri = place["physicalLocation"]["artifactLocation"]["uri"]
                assert re.fullmatch(r"[A-Za-z0-9._~%/!$&'()*+,;=@-]+", uri) and not uri.startswith("/")
                region = place["physicalLocation"]["region"]
                assert region["startLine"] >= 1 and region["startColumn"] >= 1
                if "endLine" in region:
                    start = (region["startLine"], region["startColumn"])
                    assert (region["endLine"], region["endColumn"]) >= start


def test_sarif_structure():
    sarif_is_valid(render(FINDINGS, SOURCES, "sarif"))
    absolute = Diagnostic("DSV301", "x", Span(str(Path.cwd() / "a b.yaml"), 0, 0))
    written = render([absolute], {}, "sarif")
    sarif_is_valid(written)
    assert '"uri": "a%20b.yaml"' in written


TEXTS = st.text(
    alphabet=st.characters(exclude_categories=[]) | st.sampled_from("\x1b\r\n\t\x07\x9b\u202e,:%"), max_size=20
)
SPANS = st.builds(Span, TEXTS, *[st.integers(0, 4)] * 4)
RANDOM = st.builds(
    Diagnostic,
    st.sampled_from(["DSV301", "DSV410"]),
    TEXTS,
    st.none() | SPANS,
    st.lists(st.builds(Label, SPANS, TEXTS), max_size=6).map(tuple),
    st.lists(st.tuples(TEXTS, TEXTS), max_size=10).map(tuple),
    st.none() | TEXTS,
    st.lists(TEXTS, max_size=2).map(tuple),
    st.lists(st.builds(Edit, SPANS, TEXTS), max_size=2, unique=True).map(tuple),
)


@settings(max_examples=80, deadline=None)
@given(st.lists(RANDOM, max_size=3), TEXTS)
def test_no_text_reaches_the_terminal_raw(findings, source):
    sources = {each.span.file: source for each in findings if each.span}
    for form in FORMATS:
        written = render(findings, sources, form)
        assert not re.search(
            "[\x00-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]", written
        )
        if form == "github":
            assert all(line.startswith(("::error ", "::warning ")) for line in written.split("\n")[:-1])
        if form == "concise":
            assert written.count("\n") == len(findings)
    sarif_is_valid(render(findings, sources, "sarif"))


def test_long_lines_and_messages_are_cut():
    source = {"f": "a" * 100_000 + "HERE" + "b" * 100_000}
    finding = Diagnostic("DSV301", "m" * 10_000, Span("f", 1, 100_001, 1, 100_005))
    written = render([finding], source)
    assert len(written) < 1500
    line, under = written.splitlines()[3:5]
    assert line[under.index("^") : under.rindex("^") + 1] == "HERE"


def test_wide_and_tabbed_lines_keep_the_caret_in_place():
    written = render([Diagnostic("DSV301", "m", Span("f", 1, 4, 1, 6))], {"f": "字\té\u0301xy"})
    line, under = written.splitlines()[3:5]
    assert line.endswith("字 é\u0301xy") and under.endswith("    ^")


def test_lines_are_counted_as_yaml_counts_them():
    written = render([Diagnostic("DSV301", "m", Span("f", 3, 1, 3, 4))], {"f": "one\r\ntwo\rsix\x0cx\n"})
    assert "3 | six\\x0cx" in written
