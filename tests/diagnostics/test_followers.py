"""One cause gives one finding: what only follows is left out, and two causes do not hide each other."""

from collections import Counter
from itertools import combinations

import pytest

from dsv41c.compiler.checks import check
from dsv41c.compiler.spec import load
from dsv41c.report import render

# Mistakes that have nothing to do with one another, each the text of a section.
ALONE = {
    "runtime: {max_sesions: 2}": "DSV201",
    "numerics: words": "DSV203",
    "tokens: {pad: -1}": "DSV204",
    "weights: {linear: fp8}": "DSV205",
    "model: {dim: wide}": "DSV203",
    "layers: {reads: {4: {pre: 4}}}": "DSV211",
    "attention: {o_groups: 3, o_lora_rank: 32}": "DSV215",
    "indexer: {topk: '8'}": "DSV203",
    "engram: {storage: gpu}": "DSV205",
    "moe: {n_activated_experts: 99}": "DSV204",
    "placement: {devices: [gpu:0]}": "DSV213",
    "name: a b": "DSV212",
    "format: dsv41c.spec/2": "DSV214",
    "mhc: {streams: }": "DSV203",
    "colour: blue": "DSV201",
}
# Mistakes with followers that are easy to report as well.
WITH_FOLLOWERS = {
    "layers that nobody can count": ("model: {n_layers: eight}", "DSV203"),
    "a number of layers in quotes": ("model: {n_layers: '8'}", "DSV203"),
    "a section that is text": ("layers: none", "DSV203"),
    "a section under another name": ("layrs: {compress_ratios: [0, 0, 2, 2, 2, 1, 1, 1]}", "DSV201"),
    "a list that is text": ("layers: {kv_source_layers: all}", "DSV203"),
    "ratios that are short": ("layers: {compress_ratios: [0, 0, 2]}", "DSV208"),
    "ratios with a hole": ("layers: {compress_ratios: {0-1: 0, 3-7: 2}}", "DSV210"),
    "a ratio that is text": ("layers: {compress_ratios: [0, 0, x, 2, 2, 1, 1, 1]}", "DSV203"),
    "no source at all": (
        "layers: {kv_source_layers: [], index_source_layers: [], candidate_source_layer: -1}",
        "DSV401",
    ),
    "a source that is gone": ("layers: {kv_source_layers: [5], index_source_layers: [5, 7]}", "DSV401"),
    "a source out of range": ("layers: {kv_source_layers: [2, 50]}", "DSV301"),
    "a source on a window layer": ("layers: {kv_source_layers: [1, 5], index_source_layers: [1, 4, 5, 7]}", "DSV304"),
    "an engram list out of order": ("layers: {engram_layers: [4, 1]}\nengram: {num_embeddings: [630, 462]}", "DSV303"),
    "an engram list and another length": ("layers: {engram_layers: [1, 4, 6]}", "DSV305"),
    "devices that are text": ("placement: {devices: cpu:0}", "DSV203"),
    "a number of shards that fits nothing": ("placement: {tensor_parallel: 3}", "DSV507"),
    "stages out of order": ("placement: {devices: ['cpu:0', 'cpu:1'], layer_ends: [8, 4]}", "DSV502"),
    "a read of a later layer": ("layers: {reads: {2: {compress_kv: 5}}}", "DSV411"),
    "a vocabulary below every id": ("model: {vocab_size: 512000000}", "DSV204"),
}


def found(*texts):
    text = "\n".join(("extends: toy", *texts, ""))
    loaded = load("-", instead=text)
    return check(loaded), loaded.sources


@pytest.mark.parametrize("mistake", WITH_FOLLOWERS)
def test_followers_are_left_out(mistake):
    text, code = WITH_FOLLOWERS[mistake]
    findings, sources = found(text)
    assert [each.code for each in findings] == [code], render(findings, sources, "concise")


@pytest.mark.parametrize("first", ALONE)
def test_two_causes_are_two_findings(first):
    assert [each.code for each in found(first)[0]] == [ALONE[first]]
    for one, other in combinations(ALONE, 2):
        if first == one and one.partition(":")[0] != other.partition(":")[0]:
            findings, sources = found(one, other)
            codes = Counter(each.code for each in findings)
            assert codes == Counter((ALONE[one], ALONE[other])), render(findings, sources, "concise")


def test_all_at_once():
    assert Counter(each.code for each in found(*ALONE)[0]) == Counter(ALONE.values())
