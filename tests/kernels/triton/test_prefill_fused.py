"""The fused kinds over many rows against their composition of reference kernels, which in f32 is the arbiter."""

from types import SimpleNamespace

import pytest
import torch

from dsv41c.kernels.fusion import FUSED
from dsv41c.kernels.reference.encodings import Packed, Stacked, dense
from dsv41c.kernels.reference.fused import compose
from dsv41c.kernels.reference.rows import unpack
from dsv41c.kernels.registry import kernels_for
from dsv41c.kernels.step import Step
from dsv41c.kernels.triton import prefill_fused

from .decode_cases import Maker, Widths, ffn_case, input_case, logits_case, output_case

WIDTHS = Widths(inter=96)
REFERENCE = kernels_for("cpu", "reference")


def tokens_of(given, batch, tokens):
    """Cases of one token a session, [batch * tokens, 1, ...], as sessions of more."""
    count = batch * tokens
    return [
        value.reshape(batch, tokens, *value.shape[2:])
        if isinstance(value, torch.Tensor) and value.shape[:2] == (count, 1)
        else value
        for value in given
    ]


def wide(value, kind=None):
    """An argument as f32."""
    if isinstance(value, Stacked):
        return [dense(matrix, torch.float32) for matrix in value]
    if isinstance(value, Packed):
        return dense(value, torch.float32)
    if isinstance(value, torch.Tensor) and kind is not None:
        return unpack(kind, value).float()
    return value.float() if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def check(name, step, given, named, *, ring=None, slack=1.3):
    """Each write of ours is as near to f32 as the bf16 reference's is."""
    composed = compose(FUSED[name], SimpleNamespace(**{op: getattr(REFERENCE, op) for op in FUSED[name].covers}))
    exact = [wide(value, "window_kv" if index == ring else None) for index, value in enumerate(given)]
    named_exact = {key: wide(value, "compress_kv" if key == "compress_kv" else None) for key, value in named.items()}
    arbiter = composed(step, *exact, **named_exact)
    results = []
    for kernel in (composed, getattr(prefill_fused, f"{name}_rows")):
        copies = [value.clone() if index == ring else value for index, value in enumerate(given)]
        results.append(kernel(step, *copies, **named))
    for expected, ours, right in zip(*(r if isinstance(r, tuple) else (r,) for r in (*results, arbiter)), strict=True):
        assert ours.shape == expected.shape
        assert ours.dtype == expected.dtype
        if ours.dtype == torch.uint8:
            assert torch.equal(ours, expected)
            continue
        allowed = slack * (expected.float() - right).norm() + 2e-6 * right.norm()
        assert (ours.float() - right).norm() <= allowed, (name, ours.shape)


def step_at(positions, tokens):
    slots = torch.arange(len(positions)).flip(0)
    return Step(slots, torch.tensor(positions), max(positions) + tokens)


@pytest.mark.parametrize("kv_cache", ["none", "reference"])
def test_attention_input(kv_cache):
    given, attrs = input_case(Maker(1), WIDTHS, 15, kv_cache)
    check("attention_input", step_at([0, 7, 300], 5), tokens_of(given, 3, 5), attrs)


@pytest.mark.parametrize(("ratio", "packed"), [(0, False), (1, True), (2, False)])
def test_attention_output(ratio, packed):
    given, named = output_case(Maker(2), WIDTHS, 15, ratio=ratio, selected=9, capacity=400, packed=packed)
    if ratio:
        named["topk"] = named["topk"].reshape(3, 5, -1)
    check("attention_output", step_at([0, 14, 300], 5), tokens_of(given, 3, 5), named, ring=1)


def test_ffn():
    given, attrs = ffn_case(Maker(3), WIDTHS, 14)
    check("ffn", step_at([0, 7], 7), tokens_of(given, 2, 7), attrs)


def test_logits():
    given, attrs = logits_case(Maker(4), WIDTHS, 10)
    check("logits", step_at([0, 7], 5), tokens_of(given, 2, 5), attrs)
