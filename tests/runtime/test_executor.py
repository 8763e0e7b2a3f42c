"""The executor: weights by the code's names, recording by the order of ops, and checks of what regions write."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from golden_tiny import TINY, engine, ids, plan, weights

from dsv41c.diagnostics import UserFault
from dsv41c.kernels.registry import kernels_for
from dsv41c.runtime.engine import Engine
from dsv41c.runtime.executor import RegionWeights
from dsv41c.runtime.recording import Recording, Trace, by_port


def test_weights_go_by_role_and_cannot_change() -> None:
    own = engine().executor.weights["layers.4"]
    assert set(own) >= {"wq_a", "compressor_wgate", "engram_table", "rope_compress", "experts_w1", "hc_attn_fn"}
    assert own.wq_a is weights()["layers.4.wq_a"]
    with pytest.raises(AttributeError, match="no weight `compressor_wgate`"):
        _ = engine().executor.weights["layers.0"].compressor_wgate
    with pytest.raises(AttributeError, match="cannot be changed"):
        own.wq_a = None
    assert set(RegionWeights({"a": 1})) == {"a"}


def test_recording_has_every_step_value() -> None:
    running = engine()
    trace = Trace()
    with running.open() as session:
        logits = running.feed(session, ids()[:5], all_logits=True, trace=trace)
        again = running.feed(session, ids()[5:7], all_logits=True, trace=trace)
    steps = {value.id for value in running.manifest.values if value.scope == "step"} - {"ids"}
    assert len(trace.steps) == 2
    for recording, expected in zip(trace.steps, (logits, again), strict=True):
        assert set(recording.values) == steps
        assert torch.equal(recording.values["logits"][0], expected)


def test_recording_changes_nothing() -> None:
    running = engine()
    with running.open() as one, running.open() as two:
        plain = running.feed(one, ids()[:9], all_logits=True)
        assert torch.equal(running.feed(two, ids()[:9], all_logits=True, trace=Trace(frozenset({"topk@L2"}))), plain)


def test_code_out_of_step_cannot_be_recorded() -> None:
    compiled = plan()

    def edited(kernels, weights, step, *reads):  # type: ignore[no-untyped-def]
        kernels.norm(torch.ones(1, 1, 4), torch.ones(4), eps=1e-6)
        return compiled.functions["layers.3"](kernels, weights, step, *reads)

    wrong = replace(compiled, functions={**compiled.functions, "layers.3": edited})
    running = Engine(wrong, TINY, weights=weights())
    with running.open() as session:
        session.feed([3])  # runs all the same
        with pytest.raises(UserFault, match=r"layers\.3") as fault:
            running.feed(session, [4], trace=Trace())
    assert [diagnostic.code for diagnostic in fault.value.diagnostics] == ["DSV869"]


def test_results_go_by_port() -> None:
    ops = {op.id: op for op in plan().manifest.ops}
    assert by_port(ops["layers.6.attn.compress"], ("latent", "pool")) == {
        "latent@L6": "latent",
        "compress_kv@L6": "pool",
    }
    assert by_port(ops["layers.0.attn.attend"], "out") == {"attended@L0": "out"}
    with pytest.raises(ValueError, match="2 values"):
        by_port(ops["layers.6.attn.compress"], ("latent",))
    recording = Recording(frozenset({"a"}))
    recording.keep({"a": torch.ones(1), "b": torch.ones(1)}, ())
    assert set(recording.values) == {"a"}


class Spoiled:
    """Kernels whose router gives NaN, or whose ring is another tensor."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __getattr__(self, kind: str):  # type: ignore[no-untyped-def]
        kernel = getattr(kernels_for("cpu"), kind)
        if kind != self.kind:
            return kernel
        if kind == "window_store":
            return lambda *args, **named: kernel(*args, **named).clone()
        return lambda *args, **named: kernel(*args, **named) * float("nan")


@pytest.mark.parametrize(("kind", "words"), [("window_store", "somewhere else"), ("shared_expert", "not finite")])
def test_debug_checks_what_regions_write(kind: str, words: str) -> None:
    running = engine(kernels=Spoiled(kind), debug=2)
    with running.open() as session, pytest.raises(UserFault, match=words):
        session.feed([3])
