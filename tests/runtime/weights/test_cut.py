"""Cut checkpoints: the tensors of the layers that stay, byte for byte, and the same values computed from them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from golden_tiny import ORACLE, TINY, ids, plan, weights
from safetensors import safe_open

from dsv41c.compiler.cli import main
from dsv41c.kernels.step import Step
from dsv41c.runtime.engine import Engine
from dsv41c.runtime.plan import load_plan
from dsv41c.runtime.reference import ReferenceExecutor
from dsv41c.runtime.steps import load_weights

KEPT = (0, 1, 4, 5, 6, 7)  # 4 and 6 start histories; 1 and 4 have engrams; 2, 3, 8 and 9 are left out


def _tensors(folder: Path) -> dict[str, Any]:
    """(dtype, shape, bytes) by name, by the format's own reader."""
    found = {}
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, "pt") as opened:
            for name in opened.keys():  # noqa: SIM118 (no mapping)
                tensor = opened.get_tensor(name)
                found[name] = (
                    tensor.dtype,
                    tuple(tensor.shape),
                    tensor.contiguous().view(torch.uint8).numpy().tobytes(),
                )
    return found


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The golden model's spec as a file."""
    file = tmp_path_factory.mktemp("whole") / "tiny.yaml"
    compiled = plan(ORACLE)
    file.write_text((compiled.folder / "spec.yaml").read_text())
    return file


@pytest.fixture(scope="module")
def cut(spec: Path) -> Path:
    """The golden checkpoint, cut."""
    out = spec.parent / "cut"
    layers = ",".join(map(str, KEPT))
    assert main(["cut", str(spec), "--layers", layers, "--checkpoint", str(TINY), "-o", str(out)]) == 0
    return out


def test_tensors_are_the_same_under_their_new_names(cut: Path) -> None:
    whole, found = _tensors(TINY), _tensors(cut)
    expected = {
        name: tensor for name, tensor in whole.items() if name in ("embed.weight", "head.weight", "norm.weight")
    }
    for number, layer in enumerate(KEPT):
        start = f"layers.{layer}."
        expected |= {
            f"layers.{number}.{name.removeprefix(start)}": tensor
            for name, tensor in whole.items()
            if name.startswith(start)
        }
    assert found == expected
    index = json.loads((cut / "model.safetensors.index.json").read_text())
    assert index["weight_map"].keys() == found.keys()
    assert (cut / "tokenizer.json").read_bytes() == (TINY / "tokenizer.json").read_bytes()


def test_what_was_written_validates(cut: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", str(cut / "spec.yaml"), "--checkpoint", str(cut)]) == 0
    assert main(["import", str(cut / "config.json"), "-o", str(cut.parent / "again.yaml")]) == 0
    assert main(["validate", str(cut.parent / "again.yaml"), "--checkpoint", str(cut)]) == 0
    capsys.readouterr()


def test_layers_compute_what_they_did(cut: Path) -> None:
    """Given the same inputs, every state of every layer that stays is equal to the bit."""
    assert main(["compile", str(cut / "spec.yaml"), "-o", str(cut.parent / "plan")]) == 0
    short = load_plan(cut.parent / "plan").manifest
    tokens = torch.tensor([ids()[:24]])
    step = Step(torch.tensor([0]), torch.tensor([0]), 24)
    before = ReferenceExecutor(plan(ORACLE).manifest, weights()).run(step, {"ids": tokens})
    # Layer 4 of the whole model comes after 3, layer 2 of the cut one after 1: hand it what it got then.
    feeds = {"ids": tokens, **{f"{kind}@L1.ffn": before[f"{kind}@L3.ffn"] for kind in ("streams", "pre")}}
    after = ReferenceExecutor(short, load_weights(short, cut)).run(step, feeds)
    assert torch.equal(after["engram_ids"], before["engram_ids"])
    compared = 0
    for number, layer in enumerate(KEPT):
        kinds = ["streams@L{}.ffn", "pre@L{}.ffn", "streams@L{}.attn", "attended@L{}", "topk@L{}", "candidates@L{}"]
        for kind in [*kinds, "compress_kv@L{}", "index_k@L{}", "engram_rows@L{}"]:
            new, old = kind.format(number), kind.format(layer)
            if new in after and new not in feeds:
                assert torch.equal(after[new], before[old]), old
                compared += 1
    assert compared > 30


def test_it_runs(cut: Path) -> None:
    main(["compile", str(cut / "spec.yaml"), "-o", str(cut.parent / "plan")])
    running = Engine(load_plan(cut.parent / "plan"), cut)
    with running.open() as session:
        logits = session.feed(ids()[:9])
    assert logits.isfinite().all()


def test_experts_are_the_first_and_the_gate_is_theirs(spec: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = spec.parent / "fewer"
    command = [
        "cut",
        str(spec),
        "--layers",
        "0,1",
        "--experts",
        "3",
        "--checkpoint",
        str(TINY),
        "-o",
        str(out),
        "--json",
    ]
    assert main(command) == 0
    told = json.loads(capsys.readouterr().out)
    whole, found = _tensors(TINY), _tensors(out)
    assert told["tensors"] == len(found) and told["experts"] == 3 and told["layers"] == [0, 1]
    for name, (_, shape, data) in found.items():
        if ".ffn.gate." in name:
            assert shape[0] == 3 and data == whole[name][2][: len(data)]
        else:
            assert found[name] == whole[name]
    assert {int(name.split(".")[4]) for name in found if ".experts." in name} == {0, 1, 2}
    assert main(["validate", str(out / "spec.yaml"), "--checkpoint", str(out)]) == 0


def test_what_is_refused_leaves_nothing(spec: Path, cut: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {file: file.stat().st_mtime_ns for file in cut.iterdir()}
    layers = ["cut", str(spec), "--layers", "0,1", "--checkpoint"]
    assert main([*layers, str(TINY), "-o", str(cut)]) == 2  # occupied
    assert "DSV751" in capsys.readouterr().err
    assert main([*layers, str(cut), "-o", str(spec.parent / "new")]) == 1  # another model's
    assert main([*layers, str(spec.parent / "absent"), "-o", str(spec.parent / "new")]) != 0
    assert {file: file.stat().st_mtime_ns for file in cut.iterdir()} == before
    assert not [file for file in spec.parent.iterdir() if "new" in file.name]


def test_a_small_disk_is_told_before(spec: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    before = sorted(spec.parent.iterdir())
    monkeypatch.setattr("dsv41c.runtime.weights.cut._write_shard", None)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=100_000))
    command = ["cut", str(spec), "--layers", "0,1", "--checkpoint", str(TINY), "-o", str(spec.parent / "new")]
    assert main(command) == 2
    told = capsys.readouterr().err
    assert "error[DSV751]" in told and "takes 1.1 MiB and the disk has 97.7 KiB free" in told and "make room" in told
    assert sorted(spec.parent.iterdir()) == before
