"""Inputs that were made to hurt: generated texts of absurd size, and plans that would tell where they were made."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dsv41c.compiler.checks import check
from dsv41c.compiler.cli import main
from dsv41c.compiler.engram_hash import MAX_BUCKETS
from dsv41c.compiler.passes import Program
from dsv41c.compiler.plan import compile_spec
from dsv41c.compiler.plan.lower import missing_kernels
from dsv41c.compiler.source import Spans, parse
from dsv41c.compiler.spec import load
from dsv41c.diagnostics import MOST_OF_A_CODE, Diagnostic, Sink, UserFault, has_errors
from dsv41c.kernels.catalog import OPS
from dsv41c.report import render

from ..cost import calls, growth  # noqa: TID252 (tests are no installed package)

TEXTS: dict[str, Callable[[range], str]] = {
    "keys": lambda numbers: "{" + ",".join(f"k{number}: 1" for number in numbers) + "}",
    "keys of a section": lambda numbers: "model: {" + ",".join(f"k{number}: 1" for number in numbers) + "}",
    "one key": lambda numbers: "{" + ",".join("k: 1" for _ in numbers) + "}",
    "tags": lambda numbers: "[" + ",".join("!!x 1" for _ in numbers) + "]",
    "ranges": lambda numbers: _layers("compress_ratios: {" + ",".join(f"{number}: 1" for number in numbers) + "}"),
    "sources": lambda numbers: _layers("kv_source_layers: [" + ",".join(map(str, numbers)) + "]"),
    "reads": lambda numbers: _layers("reads: {" + ",".join(f"{number}: {{topk: 3}}" for number in numbers) + "}"),
}


def _layers(text: str) -> str:
    return f"extends: toy\nlayers: {{{text}}}"


@pytest.mark.parametrize("name", TEXTS)
def test_telling_thousands_of_faults_is_work_that_grows_with_the_text_alone(name: str) -> None:
    def tell(count: int) -> None:
        loaded = load("-", stdin=lambda: TEXTS[name](range(count)))
        found = check(loaded)
        assert has_errors(found) and len(found) < 4 * MOST_OF_A_CODE
        assert len(render(found, loaded.sources)) < 2_000_000

    found = growth(tell, 500)
    # One more fault is read, judged and counted; the nearest key of each, say, is not looked for.
    assert found.ratio < 2.2 and found.each < 300


def test_findings_of_one_code_are_kept_up_to_a_number_and_all_counted() -> None:
    sink = Sink()
    for number in range(3 * MOST_OF_A_CODE):
        sink.add(Diagnostic("DSV201", f"unknown key `k{number}`"))
    sink.add(Diagnostic("DSV202", "another"))
    assert len(tuple(sink)) == MOST_OF_A_CODE + 1
    assert sink.errors == 3 * MOST_OF_A_CODE + 1
    assert sink.failed
    for number in range(3 * MOST_OF_A_CODE):  # known already
        sink.add(Diagnostic("DSV201", f"unknown key `k{number}`"))
    assert {each.message: each.left_out for each in sink if each.left_out} == {"unknown key `k199`": 2 * MOST_OF_A_CODE}
    whole = Sink()
    whole.add(Diagnostic("DSV201", "one more"))
    whole.extend(sink)
    last, *others = [each for each in whole if each.left_out]
    assert not others and (last.message, last.left_out) == ("unknown key `k198`", 2 * MOST_OF_A_CODE + 1)


@pytest.mark.parametrize(
    ("name", "code", "sound"),
    [
        ("keys", "DSV201", 0),
        ("keys of a section", "DSV201", 0),
        ("one key", "DSV106", 1),
        ("tags", "DSV107", 0),
        ("ranges", "DSV210", 8),
        ("sources", "DSV301", 8),
        ("reads", "DSV301", 8),
    ],
)
def test_every_fault_of_a_text_is_counted(name: str, code: str, sound: int) -> None:
    found = check(load("-", stdin=lambda: TEXTS[name](range(1000))))
    of_code = [each for each in found if each.code == code]
    assert len(of_code) == MOST_OF_A_CODE
    assert len(of_code) + sum(each.left_out for each in of_code) == 1000 - sound


def test_the_rest_of_two_specs_is_counted_once_where_it_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    keys = ", ".join(f"k{number}: 1" for number in range(MOST_OF_A_CODE + 50))
    Path("base.yaml").write_text(f"{{extends: toy, {keys}}}")
    Path("one.yaml").write_text("extends: base.yaml\n")
    Path("two.yaml").write_text(f"{{extends: toy, {keys}}}")
    assert main(["validate", "base.yaml", "one.yaml"]) == 1
    assert capsys.readouterr().out.endswith("\n200 errors, and 50 more of DSV201 that are not shown\n")
    assert main(["validate", "base.yaml", "two.yaml", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert (report["summary"]["errors"], report["left_out"]) == (2 * MOST_OF_A_CODE, {"DSV201": 100})


def test_places_can_be_given_other_file_names() -> None:
    spans = Spans(parse("a: {b: [1, 2]}", "/home/someone/x.yaml").root).named({"/home/someone/x.yaml": "x.yaml"})
    assert str(spans.value(("a", "b", 1))) == "x.yaml:1:12"
    assert str(spans.key(("a", "b", 7))) == "x.yaml:1:5"
    assert not spans.has(("a", "b", 7))


def test_a_plan_does_not_tell_where_its_spec_lay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plans = []
    for place in ("one", "two/deeper"):
        folder = tmp_path / place
        (folder / "bases").mkdir(parents=True)
        (folder / "bases" / "base.yaml").write_text("extends: toy\nname: base\n")
        (folder / "spec.yaml").write_text("extends: bases/base.yaml\nname: mine\nmhc: {eps: 1e-5}\n")
        (folder / "machine.yaml").write_text("runtime: {max_sessions: 2}\n")
        plans.append(compile_spec(load(str(folder / "spec.yaml"), target=str(folder / "machine.yaml"))))
        monkeypatch.chdir(folder)
        plans.append(compile_spec(load("spec.yaml", target="./machine.yaml")))
    assert all(plan.files == plans[0].files for plan in plans)
    assert str(tmp_path) not in "".join(plans[0].files.values())
    assert {span.rpartition(":")[0].rpartition(":")[0] for op in plans[0].manifest.ops for span in [op.span]} >= {
        "spec.yaml",
        "specs/toy.yaml",
    }


def test_a_finding_of_compile_names_the_path_that_was_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_kernels(program: Program) -> list[Diagnostic]:
        return missing_kernels(program, {kind: replace(entry, families=()) for kind, entry in OPS.items()})

    monkeypatch.setattr("dsv41c.compiler.plan.compile.missing_kernels", no_kernels)
    file = tmp_path / "spec.yaml"
    file.write_text("extends: toy\nname: mine\nlayers: {kv_source_layers: [2, 5]}\n")
    with pytest.raises(UserFault) as caught:
        compile_spec(load(str(file)))
    places = {finding.span.file for finding in caught.value.diagnostics if finding.span}
    assert places == {str(file), "specs/toy.yaml"}


@pytest.mark.parametrize("name", ["engram_layers", "kv_source_layers", "index_source_layers"])
@pytest.mark.parametrize("model", ["{norm_eps: text}", "{n_layers: many}", "{}"])
def test_a_negative_layer_is_told_whatever_else_is_wrong(name: str, model: str) -> None:
    text = f"extends: toy\nname: mine\nmodel: {model}\nlayers: {{{name}: [-1, 4]}}\n"
    found = check(load("-", stdin=lambda: text))
    told = [finding for finding in found if finding.code == "DSV301"]
    assert len(told) == 1
    assert told[0].message.startswith(f"`{name}` names layer -1, ")
    assert str(told[0].span) == f"<stdin>:4:{len(name) + 13}"


@pytest.mark.parametrize(
    ("sizes", "layers", "code", "most"),
    [
        ("vocab_size: 1099511627776", "[1, 4]", "DSV307", 40_000),
        ("vocab_size: 2", "[1, 4]", "DSV307", 40_000),
        ("n_heads: 1024, max_ngram_size: 16", "[1, 4]", "DSV307", 40 * MAX_BUCKETS),
        ("n_heads: 1024, max_ngram_size: 16, num_embeddings: [9, 9, 9]", "[1, 4, 5]", "DSV308", 40_000),  # not derived
    ],
)
def test_engrams_of_absurd_size_are_judged_with_little_work(sizes: str, layers: str, code: str, most: int) -> None:
    text = f"extends: toy\nname: mine\nlayers: {{engram_layers: {layers}}}\nengram: {{{sizes}}}\n"
    check(load("toy"))  # what is imported and kept
    found: list[str] = []
    assert calls(lambda: found.extend(each.code for each in check(load("-", stdin=lambda: text)))) < most
    assert code in found


@pytest.mark.parametrize(
    "name", ["a\nb.yaml", "\udcff.yaml", "\x1b[31mred.yaml", "x\u202ey.yaml", "a\x85b.yaml", "; } [.yaml"]
)
def test_names_of_files_break_nothing(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / name
    file.write_text("extends: toy\nname: mine\nlayers: {kv_source_layers: [2, 5]}\n")
    assert main(["validate", str(file)]) == 0
    assert main(["compile", str(file), "-o", str(tmp_path / "plan")]) == 0
    assert main(["inspect", str(tmp_path / "plan")]) == 0
    capsys.readouterr()
    assert main(["graph", str(file)]) == 0
    printed = capsys.readouterr().out
    assert printed.isascii()
    graph = tmp_path / "graph.txt"
    graph.write_text(printed)
    assert main(["graph", str(graph)]) == 0
    assert capsys.readouterr().out == printed
