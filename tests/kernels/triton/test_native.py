"""The registry's native kernels are those that the data lists, and take what it says."""

from __future__ import annotations

import inspect

import pytest
import torch

from dsv41c.kernels.fusion import CALLS, FUSED, NATIVE, NATIVE_VARIANT
from dsv41c.kernels.registry import kernels_for
from dsv41c.kernels.step import Step
from dsv41c.kernels.triton import NATIVE as KERNELS
from dsv41c.kernels.triton import decode_attention, decode_ffn, fused, prefill_fused


@pytest.mark.parametrize("family", NATIVE_VARIANT)
def test_registry_and_data_agree(family: str) -> None:
    assert set(NATIVE[family]) == set(KERNELS)
    kernels, static = kernels_for(family, NATIVE_VARIANT[family]), kernels_for(family, "static")
    for kind in CALLS:
        expected = KERNELS[kind] if kind in NATIVE[family] else getattr(static, kind)
        assert getattr(kernels, kind) is expected, kind


# The native kernels of a fused kind pass arguments on, by place, to one of these.
BEHIND = {
    "attention_input": (decode_attention.attention_input, prefill_fused.attention_input_rows),
    "attention_output": (decode_attention.attention_output, prefill_fused.attention_output_rows),
    "ffn": (decode_ffn.ffn, prefill_fused.ffn_rows),
    "attention_output_shard": (),
    "ffn_shard": (),
    "logits": (decode_ffn.logits, prefill_fused.logits_rows),
}


@pytest.mark.parametrize("kind", KERNELS)
def test_calls_by_the_convention_fit(kind: str) -> None:
    """A native kernel can be called as generated code does."""
    entry = CALLS[kind]
    required = [port.name for port in entry.reads if not port.optional]
    optional = [port.name for port in entry.reads if port.optional]
    named = [*optional, *entry.optional_weights, *entry.attrs]
    places = ["step"] * entry.uses_step + required + list(entry.weights)
    inspect.signature(KERNELS[kind]).bind(*places, **{name: name for name in named})
    for kernel in BEHIND.get(kind, (KERNELS[kind],)):
        signature = inspect.signature(kernel)
        bound = signature.bind(*places, **{name: name for name in named})
        names = [p.name for p in signature.parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
        assert names[: entry.uses_step + len(required)] == places[: entry.uses_step + len(required)]
        if kind in FUSED:
            assert all(bound.arguments.get(weight) == weight for weight in entry.weights)
        signature.bind(*places, **{name: name for name in entry.attrs})  # without what is optional


@pytest.mark.parametrize(("begin", "expected"), [(0, "decode"), (7, "rows")])
def test_one_row_behind_a_gap_in_the_ring_is_for_the_batched_kernel(
    begin: int, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fused, "is_fp8", lambda *weights: True)
    monkeypatch.setattr(decode_attention, "attention_output", lambda *given, **named: "decode")
    monkeypatch.setattr(prefill_fused, "attention_output_rows", lambda *given, **named: "rows")
    step = Step(torch.tensor([0]), torch.tensor([9]), 10, begin)
    query, streams = torch.zeros(1, 1, 2, 16), torch.zeros(1, 1, 4, 32)
    assert fused.attention_output(step, query, None, None, streams, None) == expected
