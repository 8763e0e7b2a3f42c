"""The layer map's mistakes, one at a time, on a model of six layers."""

import copy

import pytest

from dsv41c.codes import TABLE
from dsv41c.compiler import checks
from dsv41c.compiler.checks import check
from dsv41c.compiler.spec import load
from dsv41c.diagnostics import MOST_OF_A_CODE

from ...cost import calls  # noqa: TID252 (tests are no installed package)
from ...strategies import MODEL, PARTS, loaded  # noqa: TID252 (tests are no installed package)

LAYERS = {
    "compress_ratios": [0, 0, 2, 2, 1, 1],
    "kv_source_layers": [2, 4],
    "index_source_layers": [2, 4, 5],
    "candidate_source_layer": 4,
    "engram_layers": [1, 4],
}
ENGRAM = {
    "max_ngram_size": 4,
    "n_heads": 2,
    "head_dim": 32,
    "vocab_size": 64,
    "num_embeddings": [462, 630],
    "pad_id": 2,
    "compressed_vocab_size": 64,
}


def tiny(**layers):
    spec = {"format": "dsv41c.spec/1", "name": "tiny", "model": {"n_layers": 6, **MODEL}, **copy.deepcopy(PARTS)}
    return {**spec, "layers": {**LAYERS, **layers}, "engram": ENGRAM}


def only(found):
    assert len(found) == 1, [(each.code, each.message) for each in found]
    return found[0]


def test_tiny_is_valid():
    assert not check(loaded(tiny()))


def test_checks_give_only_the_codes_they_declare(monkeypatch, tmp_path):
    def traced(checks_run, subject, ledger):
        for each in checks_run:
            before = set(ledger.findings)
            each.run(subject, ledger)
            assert {found.code for found in set(ledger.findings) - before} <= set(each.codes), each.name

    monkeypatch.setattr(checks, "_run", traced)
    for code in TABLE.values():
        if code.code[3] in "345" and code.bad:
            (tmp_path / "spec.yaml").write_text(code.bad)
            assert {each.code for each in check(load(str(tmp_path / "spec.yaml")))} == {code.code}


@pytest.mark.parametrize(
    ("layers", "code", "message"),
    [
        ({"kv_source_layers": [4, 2]}, "DSV303", "`kv_source_layers` is not ascending: layer 2 comes after layer 4"),
        ({"kv_source_layers": [2, 2, 4]}, "DSV302", "`kv_source_layers` names layer 2 twice"),
        ({"kv_source_layers": [0, 4]}, "DSV304", "layer 0 is a KV source and has ratio 0"),
        ({"kv_source_layers": [2, 6]}, "DSV301", "`kv_source_layers` names layer 6, the backbone has layers 0 to 5"),
        ({"index_source_layers": [4, 5]}, "DSV404", "layer 2 is a KV source and makes no selection"),
        ({"candidate_source_layer": 5}, "DSV407", "layer 5 is the candidate source and no KV source"),
        ({"candidate_source_layer": 0}, "DSV304", "layer 0 is a candidate source and has ratio 0"),
        ({"engram_layers": [1, 1]}, "DSV302", "`engram_layers` names layer 1 twice"),
        (
            {"kv_source_layers": [3, 4], "index_source_layers": [3, 4, 5]},
            "DSV401",
            "layer 2 (ratio 2) reads compressed KV, no KV source at or before it",
        ),
    ],
)
def test_nine_mistakes_give_nine_findings(layers, code, message):
    finding = only(check(loaded(tiny(**layers))))
    assert (finding.code, finding.severity) == (code, "error")
    assert message in finding.message
    assert finding.help and finding.facts


@pytest.mark.parametrize(
    ("layers", "code", "message"),
    [
        (
            {"kv_source_layers": [0, 2, 4], "index_source_layers": [0, 2, 4, 5]},
            "DSV304",
            "a KV source and index source",
        ),
        (
            {"kv_source_layers": [2]},
            "DSV403",
            "layers 4-5 (ratio 1) read `compress_kv@L2`, whose rows",
        ),
        ({"index_source_layers": [2, 5]}, "DSV404", "layer 4 is a KV source"),
        ({"candidate_source_layer": 2}, "DSV408", "layers 4-5 mask their scores over `index_k@L4`"),
        ({"candidate_source_layer": 3}, "DSV407", "no KV source and no index source"),
        ({"candidate_source_layer": 9}, "DSV301", "`candidate_source_layer` names layer 9"),
        ({"index_source_layers": [2, 4]}, "DSV410", "no layer reads `candidates@L4`"),
        ({"compress_ratios": [2, 2, 2, 2, 1, 1]}, "DSV401", "layers 0-1 (ratio 2) read compressed KV"),
        ({"engram_layers": [4, 1]}, "DSV303", "layer 1 comes after layer 4"),
        ({"reads": {"5": {"topk": 2}}}, "DSV405", "layer 5 uses the selection `topk@L2`, made over `index_k@L2`"),
        ({"reads": {"5": {"index_k": 2}}}, "DSV403", "layer 5 (ratio 1) reads `index_k@L2`"),
        ({"reads": {"2": {"topk": 4}}}, "DSV411", "layer 2 reads `topk@L4`, which is made after the read"),
        ({"reads": {"4": {"candidates": 4}}}, "DSV411", "layer 4 reads `candidates@L4`, which is made after the read"),
        ({"reads": {"3": {"index_k": 2}}}, "DSV413", "layer 3 a source of index keys, which it does not read"),
        ({"reads": {"5": {"topk": 3}}}, "DSV412", "layer 3 is no index source"),
        ({"reads": {"7": {"topk": 2}}}, "DSV301", "`layers.reads` names layer 7"),
        ({"reads": {"5": {"topk": 4}}}, "DSV409", "layer 5 makes `topk@L5`, and no layer reads it"),
    ],
)
def test_other_mistakes(layers, code, message):
    finding = only(check(loaded(tiny(**layers))))
    assert finding.code == code
    assert message in finding.message


def test_a_history_passed_over_is_never_read():
    layers = {"compress_ratios": [0, 0, 2, 2, 2, 2], "index_source_layers": [2, 4], "candidate_source_layer": -1}
    finding = only(check(loaded(tiny(**layers, reads={n: {"compress_kv": 2, "topk": 2} for n in "45"}))))
    assert finding.code == "DSV409"
    assert finding.message == "layer 4 makes `compress_kv@L4` and `topk@L4`, and no layer reads them"
    assert "layer 5 reads `compress_kv@L2` instead" in {label.text for label in finding.labels}


def test_findings_point_at_the_entry(tmp_path):
    file = tmp_path / "spec.yaml"
    file.write_text("extends: toy\nlayers:\n  compress_ratios: {0-1: 0, 2-6: 2, 7: 1}\n  kv_source_layers: [2, 5]\n")
    loaded_spec = load(str(file))
    finding = only(check(loaded_spec))
    assert finding.code == "DSV403"
    assert (finding.span.line, finding.span.column) == (3, 37)
    assert ("layers.compress_ratios[7]", "1") in finding.facts
    assert [(label.span.line, label.text) for label in finding.labels] == [(4, "the source"), (3, "ratio 2")]


def test_layer_map_is_judged_whatever_else_is_wrong():
    spec = tiny(kv_source_layers=[2, 6])
    spec["attention"]["n_heads"] = "many"
    spec["moe"] = []
    codes = {each.code for each in check(loaded(spec))}
    assert "DSV301" in codes and len(codes) >= 2
    spec = tiny()
    spec["engram"] = {**ENGRAM, "n_heads": -1}
    assert not {each.code for each in check(loaded(spec))} & {"DSV305", "DSV306", "DSV307"}


def test_independent_mistakes_are_all_shown():
    spec = tiny(candidate_source_layer=0, index_source_layers=[4, 5], engram_layers=[1])
    spec["placement"] = {"devices": ["cpu:0"], "layer_ends": [5]}
    assert {each.code for each in check(loaded(spec))} == {"DSV304", "DSV404", "DSV305", "DSV501"}


def test_cost_grows_with_layers():
    def cost(count):
        spec = tiny(
            compress_ratios=[2, 2, 1, 1] * count,
            kv_source_layers=list(range(0, 4 * count, 2)),
            index_source_layers=list(range(4 * count)),
            candidate_source_layer=None,
            engram_layers=[0, 2],
            reads={str(4 * number + 1): {"topk": 0} for number in range(count)},
        )
        spec["model"]["n_layers"] = 4 * count
        spec = loaded(spec)
        assert len(check(spec)) >= min(count, MOST_OF_A_CODE)
        return calls(lambda: check(spec))

    assert cost(1000) < 12 * cost(100)


@pytest.mark.parametrize("misspelt", ["modle: {n_layers: 6}", "layer: {kv_source_layers: [2]}", "engramm: {pad_id: 3}"])
def test_a_misspelt_section_is_the_one_finding(misspelt):
    found = check(load("-", stdin=lambda: f"extends: toy\n{misspelt}\n"))
    assert [each.code for each in found] == ["DSV201"], found
