"""Static kernels ask the device nothing: a whole call runs on tensors that have shapes and no data."""

from types import SimpleNamespace

import pytest
import torch

from dsv41c.kernels.catalog import CARRIERS, OPS
from dsv41c.kernels.registry import kernels_for

from . import harness


def data_free_model(compute, quant, cache):
    model = harness.TinyModel(compute, quant, cache)
    model.tensors = {name: tensor.to("meta") for name, tensor in model.tensors.items()}
    for name in ("rope_window", "rope_compress", "token_map", "multipliers", "primes", "offsets"):
        setattr(model, name, getattr(model, name).to("meta"))
    return model


@pytest.mark.parametrize(
    ("tokens", "mode"),
    [(1, ("f32", "none", "none")), (5, ("bf16", "fp8", "reference")), (3, ("bf16", "none", "packed"))],
)
def test_shapes_come_from_batch_tokens_and_context(tokens, mode, monkeypatch):
    kernels = kernels_for("cpu", "static")
    table = {op: getattr(kernels, op) for op in OPS if op not in CARRIERS}
    monkeypatch.setattr(harness, "K", SimpleNamespace(**table))
    model = data_free_model(*mode)
    run = harness.Run(model, sessions=3)
    run.pools = {name: pool.to("meta") for name, pool in run.pools.items()}
    place = torch.zeros(2, dtype=torch.long, device="meta")
    ids = torch.zeros(2, tokens, dtype=torch.long, device="meta")
    logits = run.call(ids, place, place, context=30)
    assert logits.shape == (2, tokens, 512)
    assert run.values["L2.topk"].shape == (2, tokens, 8)
    assert run.values["L2.index_score"].shape == (2, tokens, 15)
    assert run.values["L6.candidates"].shape == (2, tokens, 8)
