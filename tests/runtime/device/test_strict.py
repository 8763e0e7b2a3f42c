"""Strict mode: what a graph could not hold is refused with a code, an op and a place; what is shipped passes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import planted
import pytest
import torch
from golden_tiny import ORACLE, TINY, engine, plan, weights

from dsv41c.compiler import compile_spec, load
from dsv41c.compiler.plan import write_plan
from dsv41c.diagnostics import UserFault
from dsv41c.kernels.catalog import FAMILIES
from dsv41c.kernels.encodings import ENCODINGS
from dsv41c.kernels.fusion import NATIVE
from dsv41c.kernels.reference.encodings import Packed
from dsv41c.kernels.registry import kernels_for
from dsv41c.runtime.captured import CapturedSteps
from dsv41c.runtime.device.protocol import GraphKey
from dsv41c.runtime.device.rules import RULES
from dsv41c.runtime.device.strict import StrictDevice
from dsv41c.runtime.engine import Engine
from dsv41c.runtime.executor import Executor
from dsv41c.runtime.manifest import Manifest, RegionEntry
from dsv41c.runtime.plan import Plan, load_plan
from dsv41c.runtime.state import DTYPES, Pools
from dsv41c.runtime.steps import load_weights
from dsv41c.runtime.synth import synth

_FAMILIES = {  # one family that refuses it, and one that does not where there is any
    name: [fault.families[0], *([f for f in FAMILIES if f not in fault.families][:1])]
    for name, fault in planted.FAULTS.items()
}


@pytest.mark.parametrize(("name", "family"), [(name, family) for name, some in _FAMILIES.items() for family in some])
def test_planted_faults_are_refused(name: str, family: str) -> None:
    fault = planted.FAULTS[name]
    code = fault.code if family in fault.families else fault.otherwise
    if code is None:
        planted.run(name, family)
        return
    with pytest.raises(UserFault) as refused:
        planted.run(name, family)
    (finding,) = refused.value.diagnostics
    assert finding.code == code
    assert "in captured `" in finding.message or "captured `" in finding.message
    assert finding.span is not None and finding.span.file.endswith("tiny.yaml") and finding.span.line > 1
    if fault.kind and name != "less work":
        assert f".{fault.kind}`" in finding.message or f"`{fault.kind}`" in finding.message


@pytest.mark.parametrize("name", ["tolist", "mask", "kept", "moved pool", "number from the host", "global"])
def test_planted_faults_inside_fused_calls_are_refused_by_op(name: str) -> None:
    fault = planted.FAULTS[name]
    assert any(region.calls for region in plan(*planted.FUSED).manifest.regions)
    with pytest.raises(UserFault) as refused:
        planted.run(name, "cuda", fused=True)
    (finding,) = refused.value.diagnostics
    assert finding.code == fault.code
    assert not fault.kind or f".{fault.kind}`" in finding.message or f"`{fault.kind}`" in finding.message


def test_every_family_has_rules() -> None:
    assert set(RULES) == set(FAMILIES)
    assert [family for family, rules in RULES.items() if rules.whole_updates or rules.fixed_views] == ["hpu"]


def few_experts(weights: dict[str, object]) -> dict[str, object]:
    """Two experts a layer: all run the same operations, and they are most of a step's."""
    return {name: weight[:2] if isinstance(weight, Sequence) else weight for name, weight in weights.items()}


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> tuple[Plan, Path, dict[str, object]]:
    """The shipped toy, its steps of one session with fewer iterations of one loop; a checkpoint, and its weights."""
    folder = tmp_path_factory.mktemp("toy")
    loaded = load("toy", sets=("mhc.sinkhorn_iters=2", "runtime.decode_buckets=[1]"))
    write_plan(compile_spec(loaded), folder / "plan")
    compiled = load_plan(folder / "plan")
    synth(compiled.manifest, {}, folder / "checkpoint")
    return compiled, folder / "checkpoint", few_experts(load_weights(compiled.manifest, folder / "checkpoint"))


def steps(compiled: Plan, checkpoint: Path, weights: dict[str, object]) -> None:
    """A step on a prompt of four tokens; it is captured, and replayed."""
    kernels = kernels_for(compiled.manifest.target.family, "static")  # the reference would look for all experts
    running = Engine(compiled, checkpoint, weights=weights, kernels=kernels, strict=True)
    with running.open() as session:
        session.feed([4, 5, 6, 7])
        session.feed([8])
    assert running.captured is not None and len(running.captured.values) == 1
    layers = compiled.manifest.model.n_layers
    assert [len(part) for part in running.captured.ranges] == [2, *[1] * (layers - 2), 2]


@pytest.mark.parametrize("family", FAMILIES)
def test_tiny_passes_for_every_family(family: str) -> None:
    steps(planted.for_family(plan(ORACLE, *planted.CHANGES), family), TINY, few_experts(weights()))


def test_packed_caches_pass_for_hpu() -> None:
    packed = plan(ORACLE, ("kv_cache: none", "kv_cache: packed"), *planted.CHANGES)
    steps(planted.for_family(packed, "hpu"), TINY, few_experts(weights()))


@pytest.mark.parametrize("family", FAMILIES)
def test_toy_passes_for_every_family(family: str, toy: tuple[Plan, Path, dict[str, object]]) -> None:
    compiled, checkpoint, loaded = toy
    steps(planted.for_family(compiled, family), checkpoint, loaded)


# A plan for ROCm has the calls of one for CUDA under the same rules (`test_rocm_is_judged_as_cuda`), its stages HPU's.
SHIPPED = {"cpu": "cpu", "cuda": "cuda", "hpu8": "hpu"}
CONTEXT = 1024


@pytest.mark.parametrize("target", SHIPPED)
def test_flash_passes(target: str, tmp_path: Path) -> None:
    """Every region of the shipped model, by its plan for the family: operations at full width, without data.

    Regions that make the same calls on the same shapes are looked at once.
    """
    family, fewer = SHIPPED[target], ("mhc.sinkhorn_iters=2", "runtime.decode_buckets=[1]")
    write_plan(compile_spec(load("deepseek-v4.1-flash", target=target, sets=fewer)), tmp_path / "plan")
    compiled, meta = load_plan(tmp_path / "plan"), torch.device("meta")
    kernels = kernels_for(family, "static")
    executor = Executor(compiled, kernels, on_meta(compiled.manifest), Pools(compiled.manifest, meta))
    devices = {stage.place: StrictDevice(RULES[family], meta) for stage in executor.stages}
    captured = CapturedSteps(executor, devices, kernels, [1])
    stages = {index: stage for stage in executor.stages for index in stage.regions}
    assert [index for part in captured.ranges for index in part] == list(range(len(executor.regions)))
    seen: dict[object, list[str]] = {}
    for index, region in enumerate(executor.regions):
        seen.setdefault(form(compiled.manifest, region), []).append(region.id)
        if seen[form(compiled.manifest, region)] != [region.id]:
            continue
        values = {value: on_meta_as(compiled.manifest, value) for value in region.reads}
        key = GraphKey(1, CONTEXT, index, index)
        work = captured._work(range(index, index + 1), stages[index], 1, CONTEXT, values)
        device = devices[stages[index].place]
        with torch.no_grad():
            written = device.capture(key, work)
            device.replay(key)
        for value, tensor in written.items():
            expected = on_meta_as(compiled.manifest, value)
            assert (tensor.shape, tensor.dtype) == (expected.shape, expected.dtype), value
    assert sorted(layer for regions in seen.values() for layer in regions) == sorted(r.id for r in executor.regions)
    assert 10 <= len(seen) <= 14
    assert bool(executor.regions[5].calls) == (family == "cuda")


def test_rocm_is_judged_as_cuda() -> None:
    assert NATIVE["rocm"] == NATIVE["cuda"]
    assert replace(RULES["rocm"], family="cuda") == RULES["cuda"]


def form(manifest: Manifest, region: RegionEntry) -> object:
    """What a region's operations depend on: its ops with their attributes, and the shapes of values and weights."""
    ops, values = {op.id: op for op in manifest.ops}, {value.id: value for value in manifest.values}
    weights = {weight.id: (weight.shape, weight.dtype, weight.stored) for weight in manifest.weights}
    return repr(
        [
            [
                (op.kind, op.attrs, {n: weights.get(w) for n, w in op.weights.items()})
                for op in map(ops.get, region.ops)
            ],
            [(values[value].shape, values[value].dtype) for value in (*region.reads, *region.writes)],
            [call.kind for call in region.calls],
        ]
    )


def on_meta_as(manifest: Manifest, value: str) -> torch.Tensor:
    """A value of one token without data."""
    entry = next(entry for entry in manifest.values if entry.id == value)
    shape = []
    for size in entry.shape:
        _, _, ratios = str(size).partition("/")
        count = {"B": 1, "T": 1}.get(str(size), CONTEXT)
        first, _, block = ratios.partition("/")
        count //= int(first or 1)
        shape.append(size if isinstance(size, int) else -(-count // int(block or 1)))
    return torch.empty(shape, dtype=DTYPES[entry.dtype], device="meta")


class _Table:
    def __init__(self, width: int) -> None:
        self.width = width

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        return torch.zeros(*ids.shape, self.width)


def on_meta(manifest: Manifest) -> dict[str, object]:
    """Weights and constants without data; one expert a layer."""
    found: dict[str, object] = {}
    for entry in manifest.weights:
        if entry.role == "engram_table":
            found[entry.id] = _Table(entry.shape[1])
        elif entry.dtype == "stored" and (encoding := ENCODINGS[entry.stored]).block is not None:
            rows, columns = entry.shape
            codes = torch.empty(rows, columns * encoding.bits // 8, dtype=torch.uint8, device="meta")
            scale = torch.empty(encoding.scale_shape(entry.shape), dtype=torch.uint8, device="meta")
            packed = Packed(codes, scale, entry.stored)
            found[entry.id] = [packed] if entry.count > 1 else packed
        else:
            dtype = entry.stored if entry.dtype == "stored" else entry.dtype
            found[entry.id] = torch.empty(entry.shape, dtype=DTYPES[dtype], device="meta")
    for constant in manifest.constants:
        if constant.kind == "rope_frequencies":
            found[constant.id] = torch.empty(int(constant.attrs["rope_dim"]) // 2, device="meta")
        elif constant.kind == "token_map":
            found[constant.id] = torch.empty(manifest.model.vocab_size, dtype=torch.long, device="meta")
        else:
            part = constant.kind.removeprefix("engram_")
            found[constant.id] = torch.tensor([getattr(layer, part) for layer in manifest.engram.layers], device="meta")
    return found


def test_experts_that_read_data_are_refused() -> None:
    """The reference kernels cannot be captured, which is why there are static ones."""
    running = engine(ORACLE, *planted.CHANGES, kernels=kernels_for("cpu"), strict=True)
    with running.open() as session, pytest.raises(UserFault, match=r"layers\.0\.ffn\.experts.*`tolist`"):
        session.feed([3])


def test_a_refused_capture_breaks_no_session_and_a_refused_replay_does() -> None:
    faulty = planted.Faulty("norm", lambda _, args, result: result.sum().item())
    running = engine(ORACLE, *planted.CHANGES, kernels=faulty, strict=True)
    with running.open() as session:
        session.feed([1, 2, 3, 4])
        with pytest.raises(UserFault):
            session.feed([5])
        assert not session.broken and session.length == 4
        faulty.armed = False
        session.feed([5])
        faulty.armed = True
        with pytest.raises(UserFault):
            session.feed([6])  # the same context: a replay
        assert session.broken


def test_capture_off_watches_nothing(tmp_path: Path) -> None:
    running = engine(ORACLE, ("capture: layer", "capture: off"), strict=True)
    assert running.captured is None
    with running.open() as session:
        session.feed([3])
