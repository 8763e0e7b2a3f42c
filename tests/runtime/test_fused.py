"""Plans with fused calls: the same numbers as without, every value to be seen where somebody looks, their kernels."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from golden_tiny import TINY, ids, plan

from dsv41c.diagnostics import UserFault
from dsv41c.kernels.registry import kernels_for
from dsv41c.runtime.compare import Comparer
from dsv41c.runtime.device import families
from dsv41c.runtime.device.families import kernel_variants, not_runnable
from dsv41c.runtime.device.tensors import stacked
from dsv41c.runtime.engine import Engine
from dsv41c.runtime.plan import Plan
from dsv41c.runtime.recording import RecordingKernels, Trace
from dsv41c.runtime.steps import load_weights
from dsv41c.runtime.weights.bind import Experts

MODE = "bf16-act_fp8-kv_reference"
PLAIN = (("activation_quant: fp8", "activation_quant: none"), ("sinkhorn_iters: 20", "sinkhorn_iters: 2"))
ONE = ("decode_buckets: [1, 2, 4]", "decode_buckets: [1]")


def fused(family: str = "cuda") -> Plan:
    return plan(MODE, *PLAIN, ONE, ('["cpu:0"]', f'["{family}:0"]'))


@cache
def fused_weights() -> dict[str, object]:
    return load_weights(fused().manifest, TINY)


def engine(*, weights: dict[str, object] | None = None, debug: int = 0) -> Engine:
    return Engine(fused(), TINY, weights=weights or fused_weights(), strict=True, debug=debug)


@cache
def unfused() -> Engine:
    return Engine(plan(MODE, *PLAIN, ONE), TINY)


def test_the_plan_is_fused() -> None:
    assert all(region.calls for region in fused().manifest.regions if region.id != "embed")
    assert fused("rocm").manifest.regions == fused().manifest.regions


@pytest.mark.parametrize("in_one_piece", [False, True])
def test_fused_calls_give_what_single_ones_give(in_one_piece: bool) -> None:
    """To the bit: prompts and captured steps, weights packed or decoded, experts in one piece or not."""
    weights = dict(fused_weights())
    if in_one_piece:
        weights = {
            name: stacked(weight, torch.device("cpu")) if isinstance(weight, Experts) else weight
            for name, weight in weights.items()
        }
    running, plain = engine(weights=weights, debug=2), unfused()
    with running.open() as session, plain.open() as twin:
        assert torch.equal(session.feed(ids()[:24]), twin.feed(ids()[:24]))
        reference, plain.executor.kernels = plain.executor.kernels, kernels_for("cpu", "static")
        assert torch.equal(session.feed([ids()[24]]), twin.feed([ids()[24]]))
        plain.executor.kernels = reference
        assert running.captured is not None and len(running.captured.values) == 1
        for storage, pool in running.pools.tensors.items():
            assert torch.equal(pool[session.slot].nan_to_num(0), plain.pools.tensors[storage][twin.slot]), storage


def test_a_trace_shows_every_value_that_fused_calls_hide() -> None:
    seen = []
    for running in (engine(), unfused()):
        trace = Trace()
        with running.open() as session:
            running.feed(session, ids()[:9], trace=trace)
        seen.append(trace.steps[0].values)
    assert seen[0].keys() == seen[1].keys()
    assert {"attended@L3", "collapsed@L2.ffn", "expert_ids@L9", "normed@final"} <= seen[0].keys()
    for value, tensor in seen[0].items():
        assert torch.equal(tensor, seen[1][value]), value


def test_a_comparison_looks_at_every_value() -> None:
    results = []
    for running in (engine(), unfused()):
        with running.open() as session:
            comparer = Comparer(running)
            comparer.feed(session, ids()[:6])
            results.append(comparer.result())
    found, plain = results
    assert found.first is None and found.worst is not None and found.worst.distance == 0
    assert found.values == plain.values > 200


def test_calls_out_of_order_are_named() -> None:
    calls = engine().executor.calls["layers.0"]
    kernels = RecordingKernels(kernels_for("cpu"), "layers.0", calls, lambda written: None)
    with pytest.raises(
        UserFault, match=r"calls kernel `ffn` where the manifest has `attention_input` \(`layers.0.attn"
    ):
        kernels.ffn(None)
    with pytest.raises(AttributeError, match="no reference kernel for op `blend`"):
        _ = kernels.blend


@pytest.mark.parametrize("chunk", [60, 17])
def test_the_exact_tail_of_a_prompt_is_that_of_single_calls(chunk: int) -> None:
    with engine().open() as session, unfused().open() as twin:
        assert torch.equal(session.feed(ids()[:60], chunk=chunk), twin.feed(ids()[:60], chunk=chunk))


# --- which kernels ----------------------------------------------------------------------------------------------------


def test_variants_go_by_what_the_manifest_names() -> None:
    for family in ("cuda", "rocm"):
        assert kernel_variants(fused(family).manifest) == ("triton", "triton")
        assert kernel_variants(fused(family).manifest, strict=True) == ("reference", "static")
    off = plan(MODE, ONE, ('["cpu:0"]', '["cuda:0"]'))
    assert kernel_variants(off.manifest) == kernel_variants(plan().manifest) == ("reference", "static")


def test_a_plan_with_native_kernels_names_triton_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", "1.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(families, "find_spec", lambda name: None)
    (finding,) = not_runnable(fused().manifest)
    assert finding.code == "DSV858" and "`triton`, which is not installed" in finding.message
    assert not not_runnable(plan(MODE, ONE, ('["cpu:0"]', '["cuda:0"]')).manifest)
    assert not not_runnable(fused().manifest, strict=True)


def test_one_bucket_of_context_where_native_kernels_run(monkeypatch: pytest.MonkeyPatch) -> None:
    assert engine().captured.contexts[0] == 1  # type: ignore[union-attr]
    monkeypatch.setattr("dsv41c.runtime.steps.kernel_variants", lambda manifest, strict: ("reference", "triton"))
    monkeypatch.setattr("dsv41c.runtime.steps.kernels_for", lambda family, *_: kernels_for(family, "static"))
    running = engine()
    assert running.captured is not None and running.captured.contexts == (80,)
    with running.open() as session:
        for token in (3, 4):
            session.feed([token])
        assert set(running.captured.values) == {(1, 80)}
