"""`inspect`: its sections agree with the manifest and with `estimate` to the byte, and are fit to be read."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from dsv41c.compiler import compile_spec, load
from dsv41c.compiler.cli import inspect as command
from dsv41c.compiler.estimate import Item, estimate
from dsv41c.compiler.inspect import boundaries, capture, kernels, stages, states, weights
from dsv41c.compiler.inspect.table import WIDTH, table
from dsv41c.compiler.plan import write_plan
from dsv41c.kernels.catalog import CARRIERS, STATE_KINDS, WEIGHT_ROLES
from dsv41c.kernels.fusion import FUSED
from dsv41c.runtime.manifest import Manifest
from dsv41c.runtime.memory import global_kv_bytes
from dsv41c.runtime.work_space import tables_on_device

Run = Callable[..., Any]  # of conftest.py
FLASH = "deepseek-v4.1-flash"
ON_DEVICE = ("engram.storage=device",)
PACKED = ("numerics.kv_cache=packed", "runtime.max_context=65536")
# Every way to lay out a plan that the sections tell apart: spec, target, sets.
PLANS: dict[str, tuple[str, str | None, tuple[str, ...]]] = {
    "toy": ("toy", None, ()),
    "toy that captures": ("toy", "cuda", ("numerics.compute=f32",)),
    "Flash": (FLASH, "cuda", ON_DEVICE),
    "Flash, pinned tables": (FLASH, "cuda", ("engram.storage=host",)),
    "Flash on eight": (FLASH, "rocm8", ()),
    "Flash, packed": (FLASH, "cuda", (*PACKED, "runtime.capture={every: 4}")),
    "Flash, two shards": (FLASH, "cuda", ("placement.tensor_parallel=2",)),
    "a device that comes again": (
        "toy",
        None,
        ('placement.devices=["cuda:0", "cuda:1", "cuda:0"]', "placement.layer_ends=[3, 5, 8]"),
    ),
}


@cache
def plan(name: str) -> Manifest:
    spec, target, sets = PLANS[name]
    return compile_spec(load(spec, target=target, sets=sets)).manifest


@pytest.fixture(params=PLANS)
def manifest(request: pytest.FixtureRequest) -> Manifest:
    return plan(request.param)


def items(manifest: Manifest, *names: str) -> int:
    """What `estimate` counts under these names, on all devices."""
    found: list[Item] = [item for place in estimate(manifest).places for item in place.items]
    return sum(item.bytes for item in found if any(item.name.endswith(name) for name in names))


# --- figures ----------------------------------------------------------------------------------------------------------


def test_state_agrees_with_the_manifest_and_the_estimate(manifest: Manifest) -> None:
    found = states.data(manifest)
    held = [kind for kind in found["kinds"] if kind["scope"] == "session"]
    assert sum(kind["bytes"] for kind in held) == sum(entry.state for entry in manifest.memory)
    assert sum(kind["bytes"] for kind in held) == items(manifest, "global KV", "mirrored KV", "other state")
    assert sum(kind["bytes"] for kind in held if kind["mirror"]) == items(manifest, "mirrored KV")
    assert sum(kind["bytes_per_token"] for kind in held if not kind["mirror"]) == global_kv_bytes(manifest)
    for entry in manifest.memory:
        assert sum(pool["bytes"] for pool in found["held"] if pool["device"] == entry.device) == entry.state
    assert sum(kind["count"] for kind in held) == len(found["held"])
    assert {kind["kind"] for kind in found["kinds"]} <= set(STATE_KINDS)


def test_state_that_grows_fills_its_pools(manifest: Manifest) -> None:
    """Bytes a token times the longest context are those of a session; what is fixed has none a token."""
    for pool in states.data(manifest)["held"]:
        grows = pool["kind"] in ("compress_kv", "index_k")
        expected = pool["bytes_per_token"] * manifest.runtime.max_context
        assert (pool["bytes_per_session"] == expected) is grows
        assert bool(pool["bytes_per_token"]) is grows


def test_every_value_is_in_one_list(manifest: Manifest) -> None:
    found = states.data(manifest)
    listed = [value["id"] for value in (*found["held"], *found["step"])]
    others = {value.id for value in manifest.values if value.scope == "session" and value.storage != value.id}
    assert len(listed) == len(set(listed))
    assert {value.id for value in manifest.values} - set(listed) <= others


def test_who_makes_and_reads_state() -> None:
    found = {pool["id"]: pool for pool in states.data(plan("Flash on eight"))["held"]}
    own, copy = found["compress_kv@L20.before"], found["compress_kv@L20.S5"]
    assert own["producers"] == ["layers.20.attn.compress"] and not own["mirror"]
    assert [f"layers.{layer}.attn.attend" for layer in range(20, 25)] == own["readers"][1:6]
    assert copy["mirror"] and copy["producers"] == ["stages.5.mirror.compress_kv.L20"]
    assert (copy["device"], copy["stage"], copy["bytes_per_token"]) == ("rocm:5", 5, 1024)


def test_weights_agree_with_the_manifest_and_the_estimate(manifest: Manifest) -> None:
    found = weights.data(manifest)
    constants = items(manifest, "constants")
    tables = items(manifest, "engram tables") if tables_on_device(manifest) else 0
    kept = sum(entry.weights for entry in manifest.memory)
    assert found["bytes"] == sum(weight.bytes for weight in manifest.weights)
    assert found["kept_bytes"] == items(manifest, "experts", "other weights") + tables
    assert found["kept_bytes"] == kept - constants + tables
    for part in ("groups", "encodings", "roles"):
        for key in ("tensors", "parameters", "bytes", "kept_bytes"):
            assert sum(entry[key] for entry in found[part]) == found[key]
    assert sum(stage["weight_bytes"] for stage in stages.data(manifest)) == kept - constants
    assert found["tensors"] == sum(weight.count for weight in manifest.weights)


def test_every_role_has_a_group() -> None:
    groups = {role: weights.group_of(role) for role in WEIGHT_ROLES}
    assert groups["wq_a"] == groups["attn_sink"] == "attention"
    assert groups["engram_table"] == "engram tables" and groups["engram_wkv"] == "engram"
    assert groups["embed"] == "embedding" and groups["gate_bias"] == "router" and groups["attn_norm"] == "norms"


def test_kernels_cover_every_op_once(manifest: Manifest) -> None:
    found = kernels.data(manifest)
    carried = sum(op.kind in CARRIERS for op in manifest.ops)
    assert sum(kernel["ops"] for kernel in found) == len(manifest.ops) - carried
    for kernel in found:
        kind = kernel["kernel"].partition(".")[2]
        assert kernel["op_kinds"] == list(FUSED[kind].covers) if kind in FUSED else [kind]
        assert kernel["ops"] == kernel["calls"] * len(kernel["op_kinds"])


def test_native_and_plain_kernels() -> None:
    assert all(kernel["native"] for kernel in kernels.data(plan("Flash")))
    assert not any(kernel["native"] for kernel in kernels.data(plan("toy that captures")))
    (ffn,) = (kernel for kernel in kernels.data(plan("Flash")) if kernel["kernel"] == "triton.ffn")
    assert (ffn["calls"], ffn["layers"], ffn["outside"]) == (40, list(range(40)), [])


def test_graphs_cover_every_region_in_order(manifest: Manifest) -> None:
    found = capture.data(manifest)
    numbers = [region["graph"] for region in found["regions"]]
    assert sorted(numbers) == numbers and set(numbers) == set(range(len(found["graphs"])))
    assert sum(graph["regions"] for graph in found["graphs"]) == len(manifest.regions)
    assert sum(graph["calls"] for graph in found["graphs"]) == sum(kernel["calls"] for kernel in kernels.data(manifest))


def test_how_many_graphs() -> None:
    assert [capture.data(plan("toy"))[key] for key in ("captured", "graphs_per_step", "graphs_in_all")] == [False, 0, 0]
    plain = capture.data(plan("toy that captures"))
    assert (plain["graphs_per_step"], len(plain["buckets"]), len(plain["contexts"])) == (8, 3, 10)
    assert plain["graphs_in_all"] == 240
    packed = capture.data(plan("Flash, packed"))  # of the Engram layers, 1 has ids of its own graph, if not cut
    assert [graph["first"] for graph in packed["graphs"] if graph["rows_from_host"]] == ["layers.1", "layers.13"]
    for name in ("Flash", "Flash, pinned tables"):  # which native kernels read
        found = capture.data(plan(name))
        assert found["graphs_in_all"] == 40 * 3 and not any(graph["rows_from_host"] for graph in found["graphs"])


# --- text -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("section", [states, boundaries, kernels, capture, weights])
def test_no_line_is_wider_than_the_table(manifest: Manifest, section: Any) -> None:
    text = [*section.overview(manifest), *section.lines(manifest), *stages.lines(manifest)]
    assert not [line for line in text if len(line) > WIDTH or line != line.rstrip()]


def test_a_long_last_column_is_wrapped_under_itself() -> None:
    lines = list(
        table("what", (">bytes", "ops"), [("short", "8", ", ".join(["window_rows"] * 12)), ("b", "1,024", "x")])
    )
    assert lines[0] == "what     bytes  ops"
    assert [line.index("window_rows") for line in lines[1:3]] == [16, 16]
    assert all(len(line) <= WIDTH for line in lines) and lines[-1] == "  b      1,024  x"


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A plan of two stages in the folder where commands run."""
    sets = ('placement.devices=["cuda:0", "cuda:1"]', "placement.layer_ends=[3, 8]")
    write_plan(compile_spec(load("toy", sets=sets)), tmp_path / "plan")
    return tmp_path / "plan"


def test_the_overview_has_every_section(run: Run, written: Path) -> None:
    ran = run("inspect", "plan")
    assert (ran.code, ran.err) == (0, "")
    heads = [line.split("  ")[0] for line in ran.out.splitlines() if line and not line.startswith(" ")]
    assert heads == [
        "toy for cuda, 2 stages",
        *("stages", "memory", "state held", "values of a step", "boundaries", "kernels", "capture", "weights"),
        *("encodings", "all of a section: --states, --boundaries, --kernels, --regions, --weights"),
    ]


@pytest.mark.parametrize("section", command.SECTIONS)
def test_a_section_in_full(run: Run, written: Path, section: str) -> None:
    alone, data = run("inspect", "plan", f"--{section}"), run("inspect", "plan", f"--{section}", "--json")
    assert alone.code == data.code == 0
    assert set(json.loads(data.out)) == {"format", "name", "findings", command.SECTIONS[section]}
    two = run("inspect", "plan", f"--{section}", "--boundaries").out
    assert alone.out in two and "0 -> 1, before layer 3" in two
    everything = json.loads(run("inspect", "plan", "--json").out)
    assert everything[command.SECTIONS[section]] == json.loads(data.out)[command.SECTIONS[section]]


def test_the_keys_are_documented(run: Run, written: Path) -> None:
    def keys(value: Any) -> set[str]:
        if isinstance(value, list):
            return set().union(*map(keys, value))
        return set(value).union(*map(keys, value.values())) if isinstance(value, dict) else set()

    found = json.loads(run("inspect", "plan", "--json").out)
    manifests = {"numerics", "memory", "state"}  # their own keys are the manifest's, or kinds of state
    known = set(re.findall(r"`(\w+)`", command.__doc__ or ""))
    inner = {key: value for key, value in found.items() if key not in manifests}
    stage = {"index", "first_layer", "end_layer", "file"}
    assert set(found) - {"format"} <= known
    assert keys(inner) - {"format"} - stage <= known
    assert command.FORMAT in (command.__doc__ or "") and found["format"] == command.FORMAT


# --- folders that were changed ----------------------------------------------------------------------------------------


def test_an_edited_file_is_told_beside_the_overview(run: Run, written: Path) -> None:
    stage = written / "stage_0.py"
    stage.write_text(stage.read_text().replace("one copy a stream", "a copy for each stream"))
    ran = run("inspect", "plan")
    assert ran.code == 0
    assert "warning[DSV812]" in ran.err and "stages" in ran.out
    (finding,) = json.loads(run("inspect", "plan", "--json").out)["findings"]
    assert finding["code"] == "DSV812"


def test_code_of_another_form_and_a_lost_file(run: Run, written: Path) -> None:
    (written / "stage_0.py").write_text("import os\nos.system('touch gone')\n")
    (written / "stage_1.py").unlink()
    ran = run("inspect", "plan", "--kernels")
    assert ran.code == 1 and ran.out.startswith("kernels")
    assert "error[DSV813]" in ran.err and "error[DSV810]" in ran.err
    data = run("inspect", "plan", "--json")
    assert data.code == 1
    assert {"DSV810", "DSV813"} <= {finding["code"] for finding in json.loads(data.out)["findings"]}
    assert not (written.parent / "gone").exists()


@pytest.mark.parametrize("options", [(), ("--states",), ("--json",)])
def test_a_manifest_of_anybody(run: Run, written: Path, options: tuple[str, ...]) -> None:
    path = written / "manifest.json"
    text = path.read_text()
    path.write_text(text.replace('"max_sessions": 4', '"max_sessions": -4'))
    assert run("inspect", "plan", *options).code == 1
    path.write_text(text.replace('"name": "toy"', '"name": "to\\u001b[31my\\u202e"'))
    ran = run("inspect", "plan", *options)
    assert ran.code == 0
    assert "\x1b" not in ran.out and (options or "to\\x1b[31my\\u202e for cuda" in ran.out)


@pytest.mark.parametrize(
    ("part", "key", "value"),
    [
        ("weights", "role", "nobody's"),
        ("values", "producer", "nobody"),
        ("values", "readers", ["nobody"]),
        ("kernels", "ops", ["nobody"]),
        ("kernels", "kernel", "nothing"),
        ("transfers", "readers", ["nobody"]),
        ("stages", "file", "elsewhere.py"),
        ("weights", "shape", []),
        ("values", "shape", []),
        ("regions", "ops", []),
    ],
)
def test_names_of_nothing(run: Run, written: Path, part: str, key: str, value: object) -> None:
    """What the checks of manifests let through is shown; the rest is a finding."""
    path = written / "manifest.json"
    data = json.loads(path.read_text())
    data[part][-1][key] = value
    path.write_text(json.dumps(data))
    for options in ((), ("--json",), *((f"--{section}",) for section in command.SECTIONS)):
        ran = run("inspect", "plan", *options)
        assert ran.code in (0, 1)
        assert bool(ran.code) is ("DSV8" in ran.out + ran.err)


def test_a_plan_of_minor_version_0(run: Run, written: Path) -> None:
    """It has no memory, no calls and no buffers: they follow from the rest."""
    path = written / "manifest.json"
    new = json.loads(run("inspect", "plan", "--json").out)
    data = json.loads(path.read_text()) | {"format": "dsv41c.plan/1.0"}
    for key in ("memory", "buffers"):
        del data[key]
    path.write_text(json.dumps(data))
    ran = run("inspect", "plan", "--json")
    assert ran.code == 0 and json.loads(ran.out)["memory"] == new["memory"]
