"""Specs of several texts: what they extend, the target laid over them, and single values set."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dsv41c.compiler.spec import load
from dsv41c.compiler.spec.write import to_yaml

from .spec_text import findings, only, place


def test_extends_a_neighbour(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/base.yaml").write_text("extends: toy\nname: base\nmodel: {max_seq_len: 2048}\n")
    (tmp_path / "spec.yaml").write_text("extends: sub/base.yaml\nlayers: {engram_layer_ids: [1, 5]}\n")
    loaded = load(str(tmp_path / "spec.yaml"))
    assert loaded.diagnostics == () and loaded.spec is not None
    assert loaded.spec.model.max_seq_len == 2048 and loaded.spec.layers.engram_layers == (1, 5)
    files = [loaded.spans.value(path).file for path in (("layers", "engram_layers"), ("name",), ("moe", "inter_dim"))]
    assert files == [str(tmp_path / "spec.yaml"), str(tmp_path / "sub/base.yaml"), "specs/toy.yaml"]
    assert set(files) == set(loaded.sources)


def test_new_devices_drop_the_old_bounds(tmp_path: Path) -> None:
    eight = load("deepseek-v4.1-flash", target="rocm8").spec
    assert eight is not None
    (tmp_path / "eight.yaml").write_text(to_yaml(eight))
    one = load(str(tmp_path / "eight.yaml"), target="cuda")
    assert one.diagnostics == () and one.spec is not None and one.spec.placement.layer_ends == (40,)


@pytest.mark.parametrize("ref", ["/etc/passwd.yaml", "../x.yaml", "a/../../x.yaml", "~/x.yaml", "C:\\x.yaml", "..\\x"])
def test_extends_stays_in_its_folder(tmp_path: Path, ref: str) -> None:
    (tmp_path / "spec.yaml").write_text(json.dumps({"extends": ref}))
    assert [finding.code for finding in load(str(tmp_path / "spec.yaml")).diagnostics] == ["DSV222"]


def test_extends_follows_no_link_out_of_its_folder(tmp_path: Path) -> None:
    (tmp_path / "inside").mkdir()
    (tmp_path / "outside.yaml").write_text("extends: toy\n")
    (tmp_path / "inside/link.yaml").symlink_to(tmp_path / "outside.yaml")
    (tmp_path / "inside/spec.yaml").write_text("extends: link.yaml\n")
    assert [finding.code for finding in load(str(tmp_path / "inside/spec.yaml")).diagnostics] == ["DSV222"]


def test_extends_in_circles_and_too_deep(tmp_path: Path) -> None:
    for number in range(12):
        (tmp_path / f"{number}.yaml").write_text(f"extends: {number + 1}.yaml\n")
    assert [finding.code for finding in load(str(tmp_path / "0.yaml")).diagnostics] == ["DSV221"]
    (tmp_path / "self.yaml").write_text("extends: ./self.yaml\n")
    assert [finding.code for finding in load(str(tmp_path / "self.yaml")).diagnostics] == ["DSV221"]


def test_what_extends_cannot_name(tmp_path: Path) -> None:
    assert only("extends: deepseek-v4.1-flsh").help.startswith("did you mean `deepseek-v4.1-flash`?")  # type: ignore[union-attr]
    assert findings("extends: [toy]")[0].code == "DSV203"
    assert only("extends: near.yaml").code == "DSV222"  # standard input has no folder
    (tmp_path / "spec.yaml").write_text("# a\nextends: gone.yaml\n")
    (finding,) = load(str(tmp_path / "spec.yaml")).diagnostics
    assert finding.code == "DSV117" and place(finding)[1:] == (2, 10)


def test_unknown_specs_and_targets_list_what_there_is() -> None:
    (finding,) = load("tooy").diagnostics
    assert finding.code == "DSV220" and "did you mean `toy`?" in (finding.help or "")
    (finding,) = load("toy", target="cudaa").diagnostics
    assert dict(finding.facts)["shipped targets"] == "cpu, cuda, hpu8, rocm8"
    (finding,) = load("./gone.yaml").diagnostics
    assert finding.code == "DSV117"
    assert [finding.code for finding in load("a\x00b.yaml").diagnostics] == ["DSV117"]
    assert [finding.code for finding in load(str(Path(__file__).parent) + "/").diagnostics] == ["DSV117"]


def test_targets_say_nothing_about_the_model(tmp_path: Path) -> None:
    (tmp_path / "t.yaml").write_text("numerics: {compute: f32}\nmodel: {dim: 2}\nfoo: 1\n")
    loaded = load("toy", target=str(tmp_path / "t.yaml"))
    assert [finding.code for finding in loaded.diagnostics] == ["DSV223", "DSV223"]
    (tmp_path / "t.yaml").write_text("[1]")
    assert [finding.code for finding in load("toy", target=str(tmp_path / "t.yaml")).diagnostics] == ["DSV203"]


def test_overrides() -> None:
    sets = ["numerics.compute=f32", "layers.index_source_layer_ids.1=3", "layers.reads.4.compress_kv=2", "name=x"]
    loaded = load("toy", sets=sets)
    assert loaded.diagnostics == () and loaded.spec is not None
    assert loaded.spec.numerics.compute == "f32" and loaded.spec.name == "x"
    assert loaded.spec.layers.index_source_layers == (2, 3, 5, 7)
    assert loaded.spec.layers.reads == {4: {"compress_kv": 2}}
    assert str(loaded.spans.value(("numerics", "compute"))) == "<--set 1>:1:1"
    assert str(loaded.spans.value(("layers", "index_source_layers", 1))) == "<--set 2>:1:1"
    assert loaded.spans.value(("layers", "index_source_layers", 0)).file == "specs/toy.yaml"
    assert loaded.sources["<--set 4>"] == "name=x"


def test_overrides_come_before_normal_form() -> None:
    loaded = load("toy", sets=["model.n_layers=9", "layers.compress_ratios={0-1: 0, 2-4: 2, 5-8: 1}"])
    assert [finding.code for finding in loaded.diagnostics] == []
    assert load("toy", sets=["model.n_layers=9"]).diagnostics[0].code == "DSV208"
    spec = load("toy", sets=["layers.compress_ratios.7=0"]).spec
    assert spec is not None and spec.layers.compress_ratios == (0, 0, 2, 2, 2, 1, 1, 0)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "=1",
        ".=1",
        "model..dim=1",
        "model.dim.x=1",
        "layers.kv_source_layers.9=1",
        "layers.kv_source_layers.x=1",
        "tokens.bos.a.b.c=1",
        ".".join("a" * 40) + "=1",
    ],
)
def test_overrides_that_lead_nowhere(text: str) -> None:
    (finding,) = load("toy", sets=[text]).diagnostics
    assert finding.code == "DSV224" and finding.span is not None and finding.span.file == "<--set 1>"


def test_overrides_with_bad_values() -> None:
    assert [f.code for f in load("toy", sets=["model.dim=[1"]).diagnostics] == ["DSV101"]
    assert [f.code for f in load("toy", sets=["model.dim=1e999"]).diagnostics] == ["DSV115"]
    (finding,) = load("toy", sets=["model.dim=wide"]).diagnostics
    assert finding.code == "DSV203" and str(finding.span) == "<--set 1>:1:1"
