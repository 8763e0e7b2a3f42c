"""Captured decode steps give what eager ones give, whoever shares the step and whatever was in the slots before."""

from __future__ import annotations

import pytest
import torch
from golden_tiny import LOGITS_BOUND, ORACLE, TINY, apart, engine, golden, ids, plan
from torch import Tensor

from dsv41c.kernels.registry import kernels_for
from dsv41c.runtime.captured import StaticInputs
from dsv41c.runtime.device.cpu import CpuDevice
from dsv41c.runtime.device.protocol import GraphKey
from dsv41c.runtime.device.ranges import buckets_of_context, ranges
from dsv41c.runtime.engine import Engine
from dsv41c.runtime.recording import Trace, ops_by_region
from dsv41c.runtime.session import Session

FEWER = ("sinkhorn_iters: 20", "sinkhorn_iters: 2")


class Twins:
    """An engine that captures, and an eager one that steps with the same kernels; the same sessions on both."""

    def __init__(self, *changes: tuple[str, str], debug: int = 0) -> None:
        self.captured = engine(ORACLE, FEWER, *changes, strict=True, debug=debug)
        self.eager = engine(ORACLE, FEWER, *changes, debug=debug)
        self.pairs: dict[str, tuple[Session, Session]] = {}

    def open(self, name: str, prompt: list[int]) -> None:
        self.pairs[name] = self.captured.open(), self.eager.open()
        first, second = (session.feed(prompt) for session in self.pairs[name])
        assert torch.equal(first, second)

    def close(self, name: str) -> None:
        for session in self.pairs.pop(name):
            session.close()

    def decode(self, tokens: dict[str, int]) -> dict[str, Tensor]:
        """A step of both; equal to the bit, logits and every pool."""
        got = self.captured.decode({self.pairs[name][0]: token for name, token in tokens.items()})
        reference, self.eager.executor.kernels = self.eager.executor.kernels, kernels_for("cpu", "static")
        expected = self.eager.decode({self.pairs[name][1]: token for name, token in tokens.items()})
        self.eager.executor.kernels = reference
        for name in tokens:
            assert torch.equal(got[self.pairs[name][0]], expected[self.pairs[name][1]]), name
        for storage, pool in self.captured.pools.tensors.items():
            eager = self.eager.pools.tensors[storage]
            assert torch.equal(pool[:-1].nan_to_num(77), eager[:-1].nan_to_num(77)), storage
        return {name: got[self.pairs[name][0]] for name in tokens}


def test_any_bucket_order_position_and_slot() -> None:
    twins = Twins()
    prompts = ids()
    for name, length in (("a", 17), ("b", 22), ("c", 19)):
        twins.open(name, prompts[:length])
    twins.decode({"a": 5})
    twins.decode({"c": 6, "a": 7})
    twins.decode({"b": 8, "a": 9, "c": 10})  # three rows and one of padding
    again = twins.decode({"c": 11, "b": 12, "a": 13})
    twins.close("b")
    twins.open("d", prompts[3:24])  # in the slot that `b` left
    twins.decode({"c": 16, "d": 17, "a": 18})
    assert twins.captured.captured is not None
    assert set(twins.captured.captured.values) == {(bucket, 32) for bucket in (1, 2, 4)}
    assert all(logits.isfinite().all() for logits in again.values())


@pytest.mark.parametrize(("capture", "count"), [("every: 3", 4), ("all", 2)])
def test_other_ranges_and_other_contexts(capture: str, count: int) -> None:
    words = "{every: 3}" if capture.startswith("every") else capture
    twins = Twins(
        ("capture: layer", f"capture: {words}"), ("decode_buckets: [1, 2, 4]", "decode_buckets: [2]"), debug=2
    )
    twins.open("a", ids()[:30])
    for token in (3, 4, 5):  # over the end of a bucket of context, at 32
        twins.decode({"a": token})
    assert twins.captured.captured is not None
    assert len(twins.captured.captured.ranges) == count
    assert set(twins.captured.captured.values) == {(2, 32), (2, 64)}


def test_captured_decode_gives_the_goldens() -> None:
    """On the reference kernels, eager and captured agree to the bit for one session; so both have the golden logits."""
    running, eager = engine(ORACLE, ("decode_buckets: [1, 2, 4]", "decode_buckets: [1]"), strict=True), engine()
    with running.open() as session, eager.open() as twin:
        session.feed(ids()[:40])
        twin.feed(ids()[:40])
        got = session.feed([ids()[40]])
        assert torch.equal(got, twin.feed([ids()[40]]))
        assert apart(got, golden()["prefill64.logits"][40]) <= LOGITS_BOUND


def test_short_contexts_keep_the_bound() -> None:
    """A longer bucket of context than the real one adds masked groups, which may round otherwise."""
    running = engine(ORACLE, ("decode_buckets: [1, 2, 4]", "decode_buckets: [1]"), strict=True)
    with running.open() as session:
        session.feed(ids()[:2])
        assert apart(session.feed([ids()[2]]), golden()["prefill64.logits"][2]) <= LOGITS_BOUND


def test_traced_steps_are_eager() -> None:
    running = engine(ORACLE, FEWER, strict=True)
    with running.open() as session:
        running.decode({session: 3}, trace=Trace())
    assert running.captured is not None and not running.captured.values


def test_logits_stay_and_what_was_released_is_captured_again() -> None:
    twins = Twins(("decode_buckets: [1, 2, 4]", "decode_buckets: [1]"))
    twins.open("a", ids()[:17])
    first = twins.decode({"a": 3})["a"]
    kept = first.clone()
    assert twins.captured.captured is not None
    twins.captured.captured.release()
    assert not twins.captured.captured.values
    twins.decode({"a": 4})
    assert torch.equal(first, kept)


def test_the_cpu_captures_nothing() -> None:
    running = engine()
    assert running.captured is None and not running.device.captures and running.device.place == torch.device("cpu")


def test_the_cpu_calls_through() -> None:
    running = engine(ORACLE, FEWER, strict=True)
    assert running.captured is not None
    cpu = CpuDevice()
    running.captured.devices = {0: cpu}
    with running.open() as session, Engine(plan(ORACLE, FEWER), TINY, weights=running.weights).open() as twin:
        for token in ids()[:3]:
            assert apart(session.feed([token]), twin.feed([token])) <= LOGITS_BOUND
    assert GraphKey(1, 1, 0, 1) in cpu._kept
    cpu.release()
    cpu.synchronize()
    assert not cpu._kept


def test_ranges_cover_all_regions_in_order() -> None:
    manifest = plan().manifest
    ops = ops_by_region(manifest)
    names = [region.id for region in manifest.regions]

    def cut(capture: str) -> list[list[str]]:
        return [[names[index] for index in part] for part in ranges(manifest.regions, ops, capture)]

    assert cut("off") == []
    layers = [f"layers.{number}" for number in range(10)]
    assert cut("layer") == [["embed", layers[0]], *([name] for name in layers[1:-1]), [layers[-1], "head"]]
    # Layer 1 reads table rows at ids that `embed` makes, so it starts a range; layer 4 finds them there already.
    assert cut("every:4") == [["embed", layers[0]], layers[1:5], layers[5:9], [layers[9], "head"]]
    assert cut("every:40") == cut("all") == [["embed", "layers.0"], [*layers[1:], "head"]]
    # Tables that are on the device split nothing.
    held = [[names[index] for index in part] for part in ranges(manifest.regions, ops, "every:4", ())]
    assert held == [["embed", *layers[:4]], layers[4:8], [*layers[8:], "head"]]


def test_buckets_of_context() -> None:
    assert buckets_of_context(1) == (1,)
    assert buckets_of_context(64) == (1, 2, 4, 8, 16, 32, 64)
    assert buckets_of_context(80) == (1, 2, 4, 8, 16, 32, 64, 80)


def test_static_buffers_are_those_of_the_manifest() -> None:
    running = engine(ORACLE, strict=True)
    steps = running.captured
    assert steps is not None
    made = {name: getattr(steps.inputs[4], name) for name in ("ids", "slots", "positions")}
    made |= {f"rows of {region}": table.buffer for region, table in steps.tables.items()}
    for entry in running.manifest.buffers:
        tensor = made.pop(entry.name)
        assert list(tensor.shape) == [4 if size == "B" else size for size in entry.shape]
        assert tensor.dtype == {"i64": torch.long, "f32": torch.float32}[entry.dtype]
    assert not made
    with running.open() as session:
        running.decode({session: 5})
    assert {buffer.data_ptr() for buffer in (steps.inputs[1].slots, steps.inputs[4].slots)} == {
        steps.inputs[2].slots.data_ptr()
    }


@pytest.mark.parametrize("rows", [1, 2, 3, 8])
def test_one_copy_fills_the_inputs_of_a_step(rows: int) -> None:
    memory = torch.zeros(30, dtype=torch.long)
    given = [[100 * kind + row for row in range(rows)] for kind in range(3)]
    inputs = StaticInputs.of(memory, rows)
    inputs.packed.copy_(StaticInputs.filling(*given))
    assert [inputs.ids[:, 0].tolist(), inputs.slots.tolist(), inputs.positions.tolist()] == given
    assert all(part.is_contiguous() for part in (inputs.ids, inputs.slots, inputs.positions))
    assert all(part.storage_offset() % 2 == 0 for part in (inputs.slots, inputs.positions))  # 16 bytes
