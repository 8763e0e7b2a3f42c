"""Layers of the toy on native kernels: each call as generated code makes it, beside the reference kernels."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from layer_cases import Case, Layers

REGIONS = ("embed", "layers.1", "layers.2", "layers.3", "layers.5", "layers.7", "head")
DECODE = Case((101,), padding=1, captured=True)
PREFILL = Case((21,), tokens=9)
# Small, because the interpreter takes its time.
SETS = (
    "model.dim=64",
    "attention.n_heads=2",
    "attention.head_dim=32",
    "attention.q_lora_rank=64",
    "indexer.n_heads=2",
    "moe.inter_dim=32",
    "mhc.sinkhorn_iters=2",
    "runtime.max_context=128",
)


@cache
def layers(kv_cache: str) -> Layers:
    return Layers("toy", REGIONS, torch.device("cpu"), [f"numerics.kv_cache={kv_cache}", *SETS])


@pytest.mark.parametrize("region", REGIONS)
@pytest.mark.parametrize(("kv_cache", "case"), [("packed", DECODE), ("reference", PREFILL)], ids=str)
def test_calls_agree_with_the_reference(kv_cache: str, case: Case, region: str) -> None:
    """The expert sublayer, the same in every layer and slow here, in one of them."""
    found = layers(kv_cache).compare(region, case, whole=False, plain=() if region == "layers.3" else ("ffn",))
    print(*found.lines(past=False), sep="\n")
    assert not found.lines()
