"""`kv_cache: packed` against `reference`: the same logits, selections and states, bit for bit, from smaller pools."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest
import torch
from golden_tiny import engine, golden, ids, plan
from safetensors.torch import load_file
from torch import Tensor

from dsv41c.compiler.cli import main
from dsv41c.compiler.plan import compile_spec
from dsv41c.compiler.spec import load
from dsv41c.diagnostics import UserFault
from dsv41c.kernels.reference.fake_quant import fake_fp8
from dsv41c.kernels.registry import kernels_for
from dsv41c.kernels.step import Step
from dsv41c.runtime.compare import Comparer
from dsv41c.runtime.engine import Engine
from dsv41c.runtime.manifest_text import parse
from dsv41c.runtime.recording import Trace
from dsv41c.runtime.state import Pools
from dsv41c.runtime.states import collect, state_keys

F32, ROUNDED, BF16 = "f32-act_none-kv_reference", "f32-act_fp8-kv_reference", "bf16-act_fp8-kv_reference"
PACKED = ("kv_cache: reference", "kv_cache: packed")
CACHES = {"window_kv", "compress_kv", "index_k"}


@cache
def both(mode: str) -> tuple[Engine, Engine]:
    """Engines with `reference` and with packed caches; empty slots hold NaN."""
    return engine(mode, debug=2), engine(mode, PACKED, debug=2)


def fed(shared: Engine, sizes: Iterable[int]) -> dict[str, Tensor]:
    """Logits and every state of a fresh session, fed in pieces of these sizes."""
    trace, tokens = Trace(frozenset(state_keys(shared.manifest))), iter(ids())
    with shared.open() as session:
        pieces = [[next(tokens) for _ in range(size)] for size in sizes]
        logits = [shared.feed(session, piece, all_logits=True, trace=trace) for piece in pieces]
        states = collect(shared.manifest, trace, shared.pools, session.slot, session.length)
    return {**states, "logits": torch.cat(logits)}


def expect_same(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    """The same names, and under each the same bits: negative zeros too."""
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert tensor.dtype == theirs[name].dtype and tensor.shape == theirs[name].shape, name
        assert torch.equal(_bits(tensor), _bits(theirs[name])), name


def _bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(torch.int32) if tensor.is_floating_point() else tensor


CUTS = {"one shot": [64], "chunks": [7, 1, 8, 15, 16, 3], "tokens after a prompt": [17, *[1] * 12]}


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("mode", [F32, ROUNDED, BF16])
def test_everything_is_bit_equal(mode: str, cut: str) -> None:
    plain, packed = both(mode)
    theirs, ours = fed(plain, CUTS[cut]), fed(packed, CUTS[cut])
    assert {"L2.compress_kv", "L6.index_k", "L8.topk", "L6.candidates", "L9.streams", "logits"} <= ours.keys()
    expect_same(ours, theirs)


def sessions(shared: Engine) -> Iterator[Tensor]:
    """Logits of sessions that are decoded together, forked, reset and taken again."""
    tokens = ids()
    with shared.open() as one, shared.open() as two:
        yield one.feed(tokens[:18])
        yield two.feed(tokens[20:25])
        yield from shared.decode({one: 5, two: 9}).values()
        with two.fork() as three:
            yield from shared.decode({three: 11, one: 7, two: 13}).values()
            two.reset()
            yield two.feed(tokens[40:57])
            yield from shared.decode({two: 4, three: 6}).values()
    with shared.open() as again:
        yield again.feed(tokens[3:9])


@pytest.mark.parametrize("mode", [F32, BF16])
def test_sessions_are_bit_equal(mode: str) -> None:
    plain, packed = both(mode)
    for theirs, ours in zip(sessions(plain), sessions(packed), strict=True):
        assert not ours.isnan().any()
        assert torch.equal(_bits(ours), _bits(theirs))


def test_golden_caches_go_in_and_come_out() -> None:
    """What the released model's own caches hold fits the packed rows without loss."""
    pools = Pools(plan(BF16, PACKED).manifest)
    for layer, kind in ((2, "compress_kv"), (6, "compress_kv"), (4, "index_k"), (6, "index_k")):
        rows = golden(BF16)[f"prefill64.L{layer}.{kind}"]
        pools.load(f"{kind}@L{layer}", 1, rows)
        assert torch.equal(pools.rows(f"{kind}@L{layer}", 1)[: len(rows)], rows)
        assert pools.rows(f"{kind}@L{layer}", 2).eq(0).all()
        stored = pools.tensors[f"{kind}@L{layer}.before"]
        pools.load(f"{kind}@L{layer}", 2, stored[1])
        assert torch.equal(stored[1], stored[2])


class Changed:
    """The reference kernels but for `window_store`."""

    def __init__(self, store: Callable[..., Tensor]) -> None:
        self.window_store = store

    def __getattr__(self, op: str) -> object:
        return getattr(kernels_for("cpu"), op)


def test_comparison_looks_at_values() -> None:
    """Rows that nobody wrote are no difference; those that differ are told by how far their values are."""
    packed = both(F32)[1]
    with packed.open() as session:
        comparer = Comparer(packed)
        comparer.feed(session, ids()[:9])
        comparer.feed(session, ids()[9:10])
        assert comparer.result().first is None

    def off(step: Step, rows: Tensor, ring: Tensor, *, window: int) -> Tensor:
        """Stores values that are 6 % larger, half an FP8 step or more."""
        return kernels_for("cpu").window_store(step, fake_fp8(rows * 1.0625), ring, window=window)

    with packed.open() as session:
        comparer = Comparer(packed, kernels=Changed(off))
        comparer.feed(session, ids()[:9])
    first = comparer.result().first
    assert first is not None and first.value == "window_kv@L0" and 0.01 < first.distance < 0.1


def test_pools_are_bytes_and_no_larger_than_promised() -> None:
    manifest = plan(BF16, PACKED).manifest
    pools, wide = Pools(manifest), Pools(plan(BF16).manifest)
    for value in manifest.values:
        assert (value.dtype == "u8") == (value.kind in CACHES)
    for name, pool in pools.tensors.items():
        assert (pool.dtype == torch.uint8) == (pools.kinds[name] in CACHES)
        assert pool[0].numel() * pool.element_size() == next(v.bytes for v in manifest.values if v.id == name)
    assert pools.tensors["window_kv@L0.before"].shape == (5, 16, 64 + 2)
    assert pools.tensors["compress_kv@L2.before"].shape == (5, 40, 32 + 4)
    assert pools.tensors["index_k@L2.before"].shape == (5, 40, 16 + 1)
    assert pools.bytes < 0.6 * wide.bytes
    pools.poison(3)
    assert pools.rows("window_kv@L0", 3).isnan().all() and pools.rows("index_k@L2", 2).eq(0).all()


def test_flash_keeps_890_bytes_a_token() -> None:
    """288 + 68 bytes a group over two and a half rows a token, and windows of 528 bytes a row."""
    sets = ["numerics.kv_cache=packed", "placement.devices=[cpu:0, cpu:1]", "placement.layer_ends=[22, 40]"]
    manifest = compile_spec(load("deepseek-v4.1-flash", sets=sets)).manifest
    held = [value for value in manifest.values if value.scope == "session" and value.storage == value.id]
    context = manifest.runtime.max_context
    grouped = [value for value in held if value.kind in ("compress_kv", "index_k") and value.stage == 0]
    assert sum(value.bytes for value in grouped) == 890 * context
    windows = [value for value in held if value.kind == "window_kv"]
    assert [value.shape for value in windows] == [[128, 528]] * 40
    moves = {move.value: move.bytes_per_token for move in manifest.transfers}
    assert (moves["compress_kv@L20"], moves["index_k@L20"]) == (288, 68)


CONTRADICTIONS = {
    "floats in a packed plan": lambda value: value.update(dtype="bf16", bytes=value["bytes"] * 2),
    "no whole blocks": lambda value: value.update(shape=[16, 65], bytes=16 * 65),
    "no rows": lambda value: value.update(shape=[16], bytes=16),
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_manifests_that_contradict_themselves(name: str) -> None:
    content = json.loads((plan(BF16, PACKED).folder / "manifest.json").read_text())
    for value in content["values"]:
        if value["id"].startswith("window_kv@L3"):
            CONTRADICTIONS[name](value)
    with pytest.raises(UserFault, match=r"window_kv@L3.*(dtype bf16|whole blocks)"):
        parse(json.dumps(content).encode(), "manifest.json")


@pytest.mark.parametrize("edit", ["bytes in a plan of floats", "another option on an op"])
def test_bytes_are_refused_where_nothing_is_packed(edit: str) -> None:
    content = json.loads((plan(BF16).folder / "manifest.json").read_text())
    if edit.startswith("bytes"):
        content["values"][1].update(dtype="u8")
    else:
        next(op for op in content["ops"] if op["kind"] == "compress")["attrs"]["kv_cache"] = "packed"
    with pytest.raises(UserFault, match="kv_cache"):
        parse(json.dumps(content).encode(), "manifest.json")


def test_the_toy_through_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Validated, compiled and run: the files that `run` writes are the same ones, and so is the text."""
    checkpoint, option = tmp_path / "checkpoint", "numerics.kv_cache=packed"
    assert main(["synth", "toy", "-o", str(checkpoint)]) == 0
    assert main(["validate", "toy", "--set", option, "--checkpoint", str(checkpoint)]) == 0
    texts, files = [], []
    for name, sets in (("reference", []), ("packed", ["--set", option])):
        folder, out = tmp_path / f"{name}.plan", [tmp_path / f"{name}.{part}" for part in ("logits", "states")]
        assert main(["compile", "toy", "-o", str(folder), *sets]) == 0
        capsys.readouterr()
        command = ["run", str(folder), "--checkpoint", str(checkpoint), "--ids", "1,2,3,4,5,6,7", "-n", "6"]
        options = ["--compare", "reference", "--logits-out", str(out[0]), "--states-out", str(out[1])]
        assert main([*command, *options]) == 0
        texts.append(capsys.readouterr().out)
        files.append({**load_file(out[0]), **load_file(out[1])})
    assert texts[0] == texts[1] and "`kv_cache` is packed" in (tmp_path / "packed.plan" / "README.md").read_text()
    expect_same(files[1], files[0])


def test_widths_have_to_fill_blocks() -> None:
    sets = ["numerics.kv_cache=packed", "weights={linear: bf16, experts: bf16, engram: bf16, scale: e8m0}"]
    found = load("toy", sets=[*sets, "attention.head_dim=48", "indexer.head_dim=40"]).diagnostics
    assert [finding.code for finding in found] == ["DSV215", "DSV215"]
    assert all("kv_cache packed" in str(finding) for finding in found)
