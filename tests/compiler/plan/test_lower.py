"""The manifest of a compiled spec, its weights, and what a target cannot run."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings

from dsv41c.compiler import passes
from dsv41c.compiler.build import build
from dsv41c.compiler.checks import check
from dsv41c.compiler.plan import compile_spec, write_plan
from dsv41c.compiler.plan.diff import diff
from dsv41c.compiler.plan.folder import stale
from dsv41c.compiler.plan.limits import beyond_limits
from dsv41c.compiler.plan.lower import missing_kernels
from dsv41c.compiler.plan.weights import dimensions
from dsv41c.compiler.spec import load
from dsv41c.compiler.targets import Limit
from dsv41c.diagnostics import UserFault
from dsv41c.kernels.catalog import OPS, WEIGHT_ROLES
from dsv41c.runtime.manifest import to_text
from dsv41c.runtime.manifest_text import parse
from dsv41c.runtime.plan import load_plan

from ...strategies import loaded as given_spec  # noqa: TID252 (tests are no installed package)
from ...strategies import specs  # noqa: TID252

TOY = compile_spec(load("toy"), verify=True)
FLASH = compile_spec(load("deepseek-v4.1-flash"), verify=True)
FOUR = """placement: {devices: ["hpu:0", "hpu:1", "hpu:2", "hpu:3"], layer_ends: [10, 20, 30, 40]}"""


@pytest.mark.parametrize("plan", [TOY, FLASH], ids=["toy", "flash"])
def test_manifest_reads_back_the_same(plan):
    assert parse(plan.files["manifest.json"].encode(), "manifest.json") == plan.manifest
    assert to_text(plan.manifest) == plan.files["manifest.json"]


@pytest.mark.parametrize("plan", [TOY, FLASH], ids=["toy", "flash"])
def test_every_op_and_value_knows_its_place(plan):
    spec = f"specs/{plan.manifest.name}.yaml"
    for entry in (*plan.manifest.ops, *plan.manifest.values, *plan.manifest.regions):
        file, line, column = entry.span.rsplit(":", 2)
        assert file == spec and int(line) > 1 and int(column) > 0


def test_counts_of_flash_are_those_of_the_release():
    counts = Counter()
    for weight in FLASH.manifest.weights:
        counts[weight.role] += weight.count
    assert counts["compressor_wkv"] == 4 and counts["compressor_wgate"] == 3
    assert counts["indexer_wq_b"] == 8 and counts["indexer_wk"] == 4
    assert counts["engram_table"] == 2 and counts["wq_a"] == 40
    assert [counts[f"experts_w{n}"] for n in (1, 2, 3)] == [15360] * 3


def test_static_buffers_of_flash():
    buffers = {entry.name: entry for entry in compile_spec(load("deepseek-v4.1-flash")).manifest.buffers}
    assert list(buffers) == ["ids", "slots", "positions", "rows of layers.1", "rows of layers.14"]
    assert [buffers[name].shape for name in ("ids", "slots", "positions")] == [["B", 1], ["B"], ["B"]]
    assert (buffers["rows of layers.1"].shape, buffers["rows of layers.1"].dtype) == (["B", 1, 24, 256], "f32")
    assert buffers["rows of layers.14"].readers == ["layers.14"] and "embed" in buffers["ids"].readers
    assert buffers["slots"].readers == buffers["positions"].readers
    assert {f"layers.{layer}" for layer in range(40)} <= set(buffers["slots"].readers)


def test_weights_of_flash():
    weights = {weight.id: weight for weight in FLASH.manifest.weights}
    table = weights["layers.14.engram_table"]
    assert (table.shape, table.stored, table.dtype) == ([384016682, 256], "fp8_row32", "stored")
    experts = weights["layers.7.experts_w2"]
    assert (experts.name, experts.shape) == ("layers.7.ffn.experts.{expert}.w2.weight", [5120, 2304])
    assert (experts.count, experts.stored, experts.accepted) == (384, "fp4_32", ["fp4_32", "bf16", "f32"])
    assert weights["layers.0.wo_a"].shape == [8192, 4096]
    assert weights["layers.0.hc_attn_fn"].shape == [24, 20480]
    assert weights["layers.0.hc_attn_fn"].accepted == ["f32", "bf16"]
    assert weights["layers.2.compressor_wkv"].dtype == weights["layers.2.compressor_wgate"].dtype == "f32"
    assert weights["layers.20.compressor_wkv"].dtype == "bf16"
    assert "layers.20.compressor_wgate" not in weights
    assert weights["head"].dtype == "f32" and weights["embed"].dtype == "bf16"
    assert weights["layers.1.engram_wkv"].shape == [5 * 5120, 24 * 256]


def test_every_size_of_the_catalogue_is_known():
    spec = load("deepseek-v4.1-flash").spec
    wanted = {size for role in WEIGHT_ROLES.values() for size in role.shape}
    known = dimensions(spec, 1)
    assert wanted <= known.keys()
    assert known["heads*head_dim//groups"] == known["heads"] * known["head_dim"] // spec.attention.o_groups
    assert known["groups*o_lora_rank"] == spec.attention.o_groups * spec.attention.o_lora_rank


def test_constants():
    constants = {constant.id: constant for constant in TOY.manifest.constants}
    assert constants["rope.window"].attrs == {"rope_dim": 16, "theta": 10000.0}
    assert constants["rope.compress"].attrs["factor"] == 16
    assert {"engram.token_map", "engram.multipliers", "engram.primes", "engram.offsets"} <= constants.keys()
    assert sum(TOY.manifest.engram.layers[0].primes) == 462


def test_every_op_is_served_by_a_kernel(loaded):
    manifest = compile_spec(loaded(FOUR, "deepseek-v4.1-flash"), verify=True).manifest
    served = [op for kernel in manifest.kernels for op in kernel.ops]
    assert sorted(served) == sorted(op.id for op in manifest.ops if op.kind not in ("transfer", "mirror"))
    assert {kernel.kernel for kernel in manifest.kernels} <= {f"reference.{kind}" for kind in OPS}
    assert [stage.file for stage in manifest.stages] == [f"stage_{n}.py" for n in range(4)]
    assert manifest.target.family == "hpu"


def test_readers_own_no_storage(loaded):
    manifest = compile_spec(loaded("placement: {devices: ['cpu:0', 'cpu:1'], layer_ends: [6, 8]}")).manifest
    storages = {value.storage for value in manifest.values if value.kind == "compress_kv"}
    assert storages == {"compress_kv@L2.before", "compress_kv@L5.before", "compress_kv@L5.S1"}
    mirror = next(move for move in manifest.transfers if move.value == "compress_kv@L5")
    assert (mirror.how, mirror.from_stage, mirror.to_stage) == ("mirror", 0, 1)
    assert mirror.readers == ["layers.6.attn.attend", "layers.7.attn.attend"]
    assert mirror.bytes_per_token == 64 * 2


def test_capture_is_recorded(loaded):
    for text, expected in (("off", "off"), ("all", "all"), ("{every: 4}", "every:4")):
        assert compile_spec(loaded(f"runtime: {{capture: {text}}}")).manifest.runtime.capture == expected


def test_without_engram():
    base = load("toy").spec
    layers = base.layers.model_copy(update={"engram_layers": ()})
    spec = base.model_copy(update={"engram": None, "layers": layers})
    plan = compile_spec(replace(load("toy"), spec=spec), verify=True)
    assert plan.manifest.engram is None
    assert not [value for value in plan.manifest.values if "engram" in value.id or "token" in value.id]


def test_ops_without_a_kernel_are_refused_by_name():
    loaded = load("toy")
    catalogue = {**OPS, "select_candidates": replace(OPS["select_candidates"], families=("cpu", "cuda"))}
    placement = loaded.spec.placement.model_copy(update={"devices": ("hpu:0",)})
    spec = loaded.spec.model_copy(update={"placement": placement})
    program = passes.run(passes.Program(spec, loaded.spans, build(spec, loaded.spans)))
    assert missing_kernels(program) == []
    (finding,) = missing_kernels(program, catalogue)
    assert finding.code == "DSV601"
    assert "`select_candidates` on hpu" in finding.message and "layers.5.attn.select_candidates" in finding.message
    assert str(finding.span).startswith("specs/toy.yaml:")
    assert dict(finding.facts)["target"] == "hpu (hpu:0)" and dict(finding.facts)["layers"] == "5"


def on_cuda(*sets):
    found = load("toy", target="cuda", sets=sets)
    return passes.run(passes.Program(found.spec, found.spans, build(found.spec, found.spans)))


def test_a_size_beyond_what_a_target_takes_is_refused_before_it_runs():
    """As a device whose selection takes blocks of 8 groups, and a spec with blocks of 16."""
    eight = [Limit(("indexer", "candidate_block_size"), "select_candidates", 8)]
    (finding,) = beyond_limits(on_cuda("indexer.candidate_block_size=16"), eight)
    assert finding.code == "DSV602" and "is 16, native kernels of cuda for `select_candidates` take" in finding.message
    assert "at most 8" in finding.message and finding.help.startswith("give at most 8; ")
    assert dict(finding.facts)["op"] == "layers.5.attn.select_candidates"
    assert beyond_limits(on_cuda("indexer.candidate_block_size=8"), eight) == []
    # Plain torch runs it, or nothing does.
    assert beyond_limits(on_cuda("indexer.candidate_block_size=16", "numerics.compute=f32"), eight) == []
    assert beyond_limits(on_cuda("indexer.candidate_block_size=16", "layers.candidate_source_layer=-1"), eight) == []


def test_compile_refuses_blocks_that_its_kernels_do_not_take(tmp_path):
    (tmp_path / "wide.yaml").write_text("extends: toy\nindexer: {candidate_block_size: 4097}\n")
    wide = str(tmp_path / "wide.yaml")
    assert not check(load(wide, target="cuda"))
    for target in ("cuda", "rocm"):
        with pytest.raises(UserFault) as caught:
            compile_spec(load(wide, target="cuda", sets=[f"placement.devices=[{target}:0]"]))
        (finding,) = caught.value.diagnostics
        assert (finding.code, str(finding.span)) == ("DSV602", f"{wide}:2:33")
    assert compile_spec(load(wide)).files
    assert compile_spec(load("toy", target="cuda", sets=["indexer.candidate_block_size=4096"])).files


def test_compile_refuses_what_validate_refuses(loaded):
    with pytest.raises(UserFault) as caught:
        compile_spec(loaded("layers: {kv_source_layers: [3, 5]}"))
    assert "DSV401" in {finding.code for finding in caught.value.diagnostics}
    with pytest.raises(UserFault):
        compile_spec(loaded("nonsense: 1"))


def test_the_spec_of_a_plan_makes_a_plan_that_does_the_same(tmp_path, loaded):
    plan = compile_spec(loaded(FOUR, "deepseek-v4.1-flash"))
    (tmp_path / "again.yaml").write_text(plan.files["spec.yaml"])
    again = compile_spec(load(str(tmp_path / "again.yaml")))
    assert again.manifest.spec_sha256 == plan.manifest.spec_sha256
    assert diff(plan.manifest, again.manifest).changed <= 1
    assert [op.model_dump(exclude={"span"}) for op in again.manifest.ops] == [
        op.model_dump(exclude={"span"}) for op in plan.manifest.ops
    ]


@settings(max_examples=30, deadline=None)
@given(specs())
def test_any_valid_spec_compiles_to_a_plan_that_loads(spec):
    plan = compile_spec(given_spec(spec), verify=True)
    with tempfile.TemporaryDirectory() as place:
        write_plan(plan, Path(place) / "plan")
        again = load_plan(Path(place) / "plan")
    assert again.manifest == plan.manifest
    assert again.functions.keys() == {region.id for region in plan.manifest.regions}


# --- the same bytes, and folders --------------------------------------------------------------------------------------

_COMPILE = """
import sys
from pathlib import Path
from dsv41c.compiler.plan import compile_spec, write_plan
from dsv41c.compiler.spec import load
write_plan(compile_spec(load("deepseek-v4.1-flash")), Path(sys.argv[1]))
assert not {"torch", "safetensors", "tokenizers"} & sys.modules.keys()
"""


def test_same_bytes_in_any_directory_and_hash_seed(tmp_path):
    for seed in ("1", "2"):
        (tmp_path / seed).mkdir()
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        subprocess.run(
            [sys.executable, "-c", _COMPILE, "plan"], cwd=tmp_path / seed, env=environment, check=True, timeout=120
        )
    first, second = (contents(tmp_path / seed / "plan") for seed in ("1", "2"))
    assert first == second
    assert first == {name: text.encode() for name, text in FLASH.files.items()}
    assert not any(str(tmp_path).encode() in data for data in first.values())


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_an_older_plan_is_replaced_whole(tmp_path, loaded):
    folder = tmp_path / "plan"
    write_plan(compile_spec(loaded("placement: {devices: ['cpu:0', 'cpu:1'], layer_ends: [4, 8]}")), folder)
    assert (folder / "stage_1.py").exists()
    write_plan(TOY, folder)
    assert contents(folder) == {name: text.encode() for name, text in TOY.files.items()}
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_a_folder_that_is_up_to_date_is_left_alone(tmp_path):
    write_plan(TOY, tmp_path / "plan")
    before = (tmp_path / "plan").stat().st_ino
    write_plan(TOY, tmp_path / "plan")
    assert (tmp_path / "plan").stat().st_ino == before


def refused(folder: Path) -> str:
    with pytest.raises(UserFault) as caught:
        write_plan(TOY, folder)
    (finding,) = caught.value.diagnostics
    return finding.code


def test_what_is_not_a_plan_is_not_replaced(tmp_path, monkeypatch):
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.txt").write_text("years of work")
    (tmp_path / "file").write_text("not a folder")
    (tmp_path / "lie").mkdir()
    (tmp_path / "lie" / "manifest.json").write_text('{"format": "something else", "files": []}')
    assert [refused(tmp_path / name) for name in ("home", "file", "lie")] == ["DSV820"] * 3
    assert (tmp_path / "home" / "thesis.txt").read_text() == "years of work"
    write_plan(TOY, tmp_path / "plan")
    (tmp_path / "plan" / "notes.txt").write_text("mine")
    assert stale(TOY.files, tmp_path / "plan") == ("notes.txt",)
    assert refused(tmp_path / "plan") == "DSV821"
    assert (tmp_path / "plan" / "notes.txt").exists()
    (tmp_path / "plan" / "notes.txt").unlink()
    monkeypatch.chdir(tmp_path / "plan")
    (tmp_path / "plan" / "stage_0.py").write_text("changed")
    assert refused(Path(".")) == "DSV822"
    assert refused(tmp_path / "file" / "below") == "DSV822"
    assert refused(tmp_path / "no" / "such" / "plan") == "DSV822"
    assert not (tmp_path / "no").exists(), "folders to hold a plan are not made"
    assert refused(tmp_path / "bad\0name") == "DSV822"


def test_an_empty_folder_is_filled(tmp_path):
    (tmp_path / "empty").mkdir()
    write_plan(TOY, tmp_path / "empty")
    assert "manifest.json" in contents(tmp_path / "empty")


def test_nothing_is_left_after_a_failure(tmp_path, monkeypatch):
    write_plan(TOY, tmp_path / "plan")
    (tmp_path / "plan" / "stage_0.py").write_text("older")
    real = os.rename

    def rename(source, target):
        if Path(target).name == "plan" and ".new-" in Path(source).name:
            raise OSError(28, "No space left on device")
        real(source, target)

    monkeypatch.setattr(os, "rename", rename)
    assert refused(tmp_path / "plan") == "DSV822"
    assert (tmp_path / "plan" / "stage_0.py").read_text() == "older"
    assert [path.name for path in tmp_path.iterdir()] == ["plan"]
