"""The official config of a spec, imported, is the spec again."""

import json
from pathlib import Path

import pytest

from dsv41c.compiler.importing import import_config
from dsv41c.compiler.importing.hf_config import to_hf_config
from dsv41c.compiler.spec import load
from dsv41c.diagnostics import has_errors

MACHINE = {"name", "numerics", "placement", "runtime"}
TINY = Path(__file__).resolve().parents[2] / "golden" / "tiny" / "config.json"


def again(spec, folder: Path):
    """The spec that its config imports to."""
    (folder / "config.json").write_text(json.dumps(to_hf_config(spec)))
    imported = import_config(str(folder / "config.json"))
    assert not has_errors(imported.diagnostics)
    (folder / "again.yaml").write_text(imported.text)
    return load(str(folder / "again.yaml")).spec


@pytest.mark.parametrize(
    ("name", "sets"),
    [
        ("toy", ()),
        ("deepseek-v4.1-flash", ()),
        ("toy", ("layers.candidate_source_layer=-1",)),
        ("toy", ("moe.gate_temp=2.0", "model.n_mtp_layers=2")),
        ("toy", ("weights.linear=fp8_row32",)),
        ("toy", ("weights.linear=bf16", "weights.experts=bf16", "weights.engram=bf16")),
    ],
)
def test_there_and_back(name: str, sets: tuple[str, ...], tmp_path: Path):
    spec = load(name, sets=sets).spec
    assert spec is not None
    assert again(spec, tmp_path).model_dump(exclude=MACHINE) == spec.model_dump(exclude=MACHINE)


def test_the_released_form(tmp_path: Path):
    """Keys and values of the tiny checkpoint's own config, but for what the text model does not use."""
    (tmp_path / "spec.yaml").write_text(import_config(str(TINY)).text)
    made = to_hf_config(load(str(tmp_path / "spec.yaml")).spec)
    given = json.loads(TINY.read_text())
    unused = ("image_", "vision_", "dspark_")
    for ours, theirs in ((made, given), (made["text_config"], given["text_config"])):
        left_out = {key for key in theirs if key.startswith(unused)}
        assert theirs.keys() - left_out <= ours.keys()
        assert all(ours[key] == theirs[key] for key in theirs.keys() - left_out - {"text_config"})
