"""`targets`: the matrix of kinds and families says what the kernels' data says."""

from __future__ import annotations

import json
from dataclasses import replace
from types import MappingProxyType

import pytest

from dsv41c.compiler import targets
from dsv41c.compiler.cli import main
from dsv41c.kernels.catalog import CARRIERS, FAMILIES, OPS
from dsv41c.kernels.fusion import FUSED, NATIVE


def shown(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main(["targets", *argv]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def test_every_kind_and_family_has_a_cell() -> None:
    found = {row.kind: row for row in targets.rows()}
    assert set(found) == {*OPS, *FUSED} - CARRIERS.keys()
    for row in found.values():
        assert tuple(row.kernels) == FAMILIES
        assert {row.kernels["cpu"], row.kernels["hpu"]} == {"reference"}
    for family in FAMILIES:
        assert {kind for kind, row in found.items() if row.kernels[family] == "native"} == set(NATIVE[family])
    assert found["experts"].kernels["cuda"] == found["experts"].kernels["rocm"] == "native (in ffn, ffn_shard)"
    assert found["norm"].kernels["cuda"] == "native (in attention_input, ffn, ffn_shard, logits)"


def test_a_kind_that_a_family_has_no_kernel_for_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    without = {**OPS, "attend": replace(OPS["attend"], families=("cpu", "cuda"))}
    monkeypatch.setattr(targets, "OPS", MappingProxyType(without))
    found = {row.kind: row.kernels for row in targets.rows()}
    assert found["attend"]["hpu"] == "missing"
    assert found["attend"]["cuda"] == "native (in attention_output, attention_output_shard)"
    assert (found["attention_output"]["hpu"], found["ffn"]["hpu"]) == ("missing", "reference")


def test_text(capsys: pytest.CaptureFixture[str]) -> None:
    out = shown(capsys)
    lines = out.splitlines()
    assert lines[0].split() == ["kind", *FAMILIES]
    assert next(line for line in lines if line.startswith("engram_gate")).split() == [
        "engram_gate", "reference", "native", "native", "reference"
    ]  # fmt: skip
    assert "native kernels take at most indexer.candidate_block_size: 4096\n" in out
    assert "compiled for cuda sm_90, sm_89; rocm gfx942, gfx1100" in out
    assert "FNUZ hardware (gfx942) reads them right" in out
    assert "numerics.compute: bf16" in out and all(line == line.rstrip() for line in lines)


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    data = json.loads(shown(capsys, "--json"))
    assert data["format"] == "dsv41c.targets/1.1"
    assert data["native_limits"] == {"indexer.candidate_block_size": 4096}
    assert data["families"]["rocm"] == {"architectures": ["gfx942", "gfx1100"]}
    assert data["kinds"] == [
        {"kind": row.kind, "covers": list(row.covers), "kernels": row.kernels} for row in targets.rows()
    ]
    assert "FNUZ" in data["notes"][0]
