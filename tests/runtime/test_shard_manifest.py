"""Manifests of several shards: what they have to agree on with themselves, and what the others leave out."""

from __future__ import annotations

import json

import pytest

from dsv41c.compiler.plan import compile_spec
from dsv41c.compiler.spec import load
from dsv41c.diagnostics import UserFault
from dsv41c.runtime.manifest_text import parse

PLAN = compile_spec(load("toy", sets=("placement.tensor_parallel=2",)))
TEXT = PLAN.files["manifest.json"]


def op(data, kind):
    return next(entry for entry in data["ops"] if entry["kind"] == kind)


def weight(data, role):
    return next(entry for entry in data["weights"] if entry["role"] == role)


def test_reads_back():
    assert parse(TEXT.encode(), "manifest.json") == PLAN.manifest


def test_one_shard_says_nothing_of_shards():
    assert 'shard"' not in compile_spec(load("toy")).files["manifest.json"]
    assert "tensor_parallel" not in compile_spec(load("toy")).files["manifest.json"]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda d: d["target"].update(tensor_parallel=0), "`target.tensor_parallel` is 0, expected 1 to"),
        (lambda d: d["target"].update(tensor_parallel=4), "is of 2 shards, `target.tensor_parallel` is 4"),
        (lambda d: d["target"].pop("tensor_parallel"), "brings shards together, and a stage is one process"),
        (lambda d: op(d, "all_reduce")["attrs"].update(bytes_per_token=8), "gives 8 bytes a token, its value has 512"),
        (lambda d: op(d, "output")["attrs"].update(shards=3), "is of 3 shards, `target.tensor_parallel` is 2"),
        (lambda d: op(d, "output")["attrs"].update(shade=3), "has attributes"),
        (lambda d: op(d, "all_gather")["attrs"].pop("shards"), "has attributes"),
        (lambda d: weight(d, "head")["shard"].update(count=3), "has 3 shards, `target.tensor_parallel` is 2"),
        (
            lambda d: weight(d, "attn_sink").update(shape=[5]),
            "has 5 rows, which are no whole blocks of 1 for each of 2",
        ),
        (
            lambda d: weight(d, "wo_b").update(shape=[128, 96]),
            "has 96 columns, which are no whole blocks of 32 for each of 2 shards",
        ),
        (
            lambda d: weight(d, "experts_w2").update(shape=[128, 96]),
            "has 96 columns, which are no whole blocks of 32 for each of 2 shards",
        ),
        (
            lambda d: weight(d, "attn_sink").update(shape=[8], accepted=["f32", "fp8_32x32"]),
            "has 8 rows, which are no whole blocks of 32 for each of 2 shards",
        ),
        (lambda d: weight(d, "wq_b").pop("shard"), "`memory` is not what weights and pools take"),
    ],
)
def test_contradictions(change, text):
    data = json.loads(TEXT)
    change(data)
    with pytest.raises(UserFault) as caught:
        parse(json.dumps(data).encode(), "manifest.json")
    assert {finding.code for finding in caught.value.diagnostics} == {"DSV804"}
    assert any(text in finding.message for finding in caught.value.diagnostics), caught.value
