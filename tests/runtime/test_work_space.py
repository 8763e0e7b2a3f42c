"""What a manifest says steps take, against what torch allocates for them: engines on the CPU, tensors counted."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from allocations import Allocations
from golden_tiny import ORACLE, TINY, plan, weights
from torch import Tensor

from dsv41c.compiler import compile_spec, load
from dsv41c.compiler.plan import write_plan
from dsv41c.kernels.reference import attend, index, select
from dsv41c.runtime import scratch
from dsv41c.runtime.engine import Engine
from dsv41c.runtime.memory import pool_bytes, sized
from dsv41c.runtime.plan import load_plan
from dsv41c.runtime.synth import synth
from dsv41c.runtime.work_space import Peak, contexts, decode_sizes, work_space

BF16 = "bf16-act_fp8-kv_reference"
LONG = ("max_context: 80", "max_context: 600")
MANY = ("max_sessions: 4", "max_sessions: 9")
SMALL = ("prefill_chunk: 64", "prefill_chunk: 16")
PACKED = ("kv_cache: reference", "kv_cache: packed")
SHORT = (
    ("max_context: 80", "max_context: 2"),
    ("prefill_chunk: 64", "prefill_chunk: 2"),
    ("decode_buckets: [1, 2, 4]", "decode_buckets: [3]"),
)
AGAIN = (('["cpu:0"]', '["hpu:0", "hpu:1", "hpu:0"]'), ("layer_ends: [10]", "layer_ends: [3, 5, 10]"))


def assert_within_two_percent(engine: Engine) -> None:
    """A last chunk and a decode step of full sessions, beside all that the engine holds."""
    manifest = engine.manifest
    runtime, (held,) = manifest.runtime, manifest.memory
    found = work_space(manifest, held.device)
    ids = [number % manifest.model.vocab_size for number in range(runtime.max_context)]
    session, last = engine.open(), runtime.max_context - runtime.prefill_chunk
    if last:
        engine.feed(session, ids[:last])
    with Allocations() as prefill:
        engine.feed(session, ids[last:])
    _near(held.total, found.prefill, prefill.peak)
    engine.close(session)
    batch = [engine.open() for _ in range(decode_sizes(manifest)[-1])]
    for each in batch:
        engine.feed(each, ids[:1])
    batch[0].length = runtime.max_context - 1
    with Allocations() as decode:
        engine.decode([(each, 1) for each in batch])
    _near(held.total, found.decode, decode.peak)


def _near(held: int, predicted: Peak, measured: int) -> None:
    assert abs(predicted.total - measured) <= 0.02 * (held + measured), (held, predicted, measured)


@pytest.mark.parametrize(
    ("mode", "changes"),
    [(ORACLE, ()), (ORACLE, (LONG, MANY)), (BF16, ()), (BF16, (LONG,)), (BF16, (SMALL, MANY, PACKED))],
)
def test_steps_of_tiny(mode: str, changes: tuple[tuple[str, str], ...]) -> None:
    assert_within_two_percent(Engine(plan(mode, *changes), TINY))


@pytest.mark.parametrize("sets", [(), ("runtime.prefill_chunk=128", "runtime.max_sessions=17")])
def test_steps_of_toy(sets: tuple[str, ...], tmp_path: Path) -> None:
    write_plan(compile_spec(load("toy", sets=sets)), tmp_path / "plan")
    found = load_plan(tmp_path / "plan")
    synth(found.manifest, {}, tmp_path / "checkpoint")
    assert_within_two_percent(Engine(found, tmp_path / "checkpoint"))


@pytest.mark.parametrize(
    "changes",
    [
        (('["cpu:0"]', '["hpu:0"]'), ("decode_buckets: [3]", "decode_buckets: [1, 2]")),
        (('["cpu:0"]', '["cuda:0"]'), ("capture: layer", "capture: {every: 3}"), MANY, PACKED),
        AGAIN,
    ],
)
def test_inputs_and_graphs_to_the_byte(changes: tuple[tuple[str, str], ...]) -> None:
    """Of all buckets and contexts, on however many stages."""
    found = plan(BF16, *SHORT, *changes)
    engine = Engine(found, TINY, weights=weights(BF16), strict=True)
    captured = engine.captured
    assert captured is not None and captured.contexts == contexts(found.manifest)
    for context in captured.contexts:
        captured.prepare(context)
    inputs = [getattr(given, name) for by_bucket in captured._inputs.values() for given in by_bucket.values()
              for name in ("ids", "slots", "positions")]  # fmt: skip
    inputs += [table.buffer for table in captured.tables.values()]
    kept = [tensor for values in captured.values.values() for tensor in values.values()]
    there = _storages(inputs)
    devices = dict.fromkeys(stage.device for stage in found.manifest.stages)
    spaces = [work_space(found.manifest, device) for device in devices]
    assert sum(there.values()) == sum(space.inputs for space in spaces)
    outputs = {key: count for key, count in _storages(kept).items() if key not in there}
    assert sum(outputs.values()) == sum(space.graphs for space in spaces)
    assert pool_bytes(found.manifest) == sum(pool.nbytes for pool in engine.pools.tensors.values())


def _storages(tensors: list[Tensor]) -> dict[int, int]:
    return {tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes() for tensor in tensors}


@pytest.mark.parametrize("spec", ["toy", "deepseek-v4.1-flash"])
@pytest.mark.parametrize(("context", "sessions"), [(512, 1), (1000, 5), (777, 9)])
def test_another_size_is_that_of_another_spec(spec: str, context: int, sessions: int) -> None:
    """`sized` gives what compiling again would, mirrors and every cache mode among it."""
    ends = "[5, 6, 8]" if spec == "toy" else "[9, 22, 40]"
    placed = ('placement.devices=["cuda:0", "cuda:1", "cuda:2"]', f"placement.layer_ends={ends}")
    packed = ("numerics.kv_cache=packed",) if sessions == 9 else ()
    start = compile_spec(load(spec, sets=(*placed, *packed))).manifest
    asked = (f"runtime.max_context={context}", f"runtime.max_sessions={sessions}")
    again = compile_spec(load(spec, sets=(*placed, *packed, *asked))).manifest
    resized = sized(start, context=context, sessions=sessions)
    assert (resized.values, resized.memory, resized.runtime) == (again.values, again.memory, again.runtime)


def test_short_contexts_cut_the_chunk() -> None:
    resized = sized(compile_spec(load("toy")).manifest, context=10)
    assert resized.runtime.prefill_chunk == 10


def test_bounds_are_those_of_the_kernels() -> None:
    pytest.importorskip("triton")
    from dsv41c.kernels.triton import grouped, matmul
    from dsv41c.kernels.triton import select as native_select

    assert matmul.DECODE_ONCE_ROWS == scratch.DECODE_ONCE_ROWS
    assert native_select._SCRATCH_ELEMENTS == scratch.SCORE_KEYS
    most = grouped.tiles_for(1 << 20, 1, 1 << 20)[0].pairs
    assert most == scratch.PAIR_PLACES
    blocks = {attend._GATHER_ELEMENTS, index._SCORE_ELEMENTS, select._SORT_ELEMENTS}
    assert blocks == {scratch.BLOCK_ELEMENTS}


def test_the_counting_counts() -> None:
    with Allocations() as found:
        first = torch.zeros(1000)
        second = first + 1
        del first
        second.view(10, 100).add_(1)
        torch.zeros(500)
    assert found.peak == 8000
