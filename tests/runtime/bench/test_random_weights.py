"""Weights without a checkpoint: what kernels take, sane, finite, and experts that are there."""

from __future__ import annotations

import pytest
import torch
from golden_tiny import plan
from torch import Tensor

from dsv41c.kernels.reference.encodings import Packed, Stacked, dense
from dsv41c.kernels.reference.engram import HeldTable
from dsv41c.runtime.bench.random_state import fill_slot
from dsv41c.runtime.bench.random_weights import held_bytes, random_constants, random_weights
from dsv41c.runtime.bench.torch_arm import SHARED_EXPERTS, dense_weights
from dsv41c.runtime.device.tensors import tensors_of
from dsv41c.runtime.engine import Engine
from dsv41c.runtime.manifest import Manifest
from dsv41c.runtime.memory import pool_bytes
from dsv41c.runtime.reference import ReferenceExecutor
from dsv41c.runtime.state import Pools

CPU = torch.device("cpu")
MANIFEST = plan().manifest


def as_stored(manifest: Manifest) -> Manifest:
    """The same with matrices left as they are stored, as native kernels take them."""
    weights = [
        entry.model_copy(update={"dtype": "stored"}) if entry.stored == "fp8_32x32" else entry
        for entry in manifest.weights
    ]
    return manifest.model_copy(update={"weights": weights})


def test_every_weight_and_constant_is_there_as_the_plan_says():
    made = random_weights(MANIFEST, CPU)
    assert set(made) == {entry.id for entry in (*MANIFEST.weights, *MANIFEST.constants)}
    for entry in MANIFEST.weights:
        weight = made[entry.id]
        if "{expert}" in entry.name:
            assert isinstance(weight, Stacked) and len(weight) == entry.count
            assert dense(weight[0], torch.float32).shape == tuple(entry.shape)
        elif entry.role == "engram_table":
            assert isinstance(weight, HeldTable)
        else:
            assert isinstance(weight, Tensor) and weight.shape == tuple(entry.shape)
            assert weight.dtype == {"f32": torch.float32, "bf16": torch.bfloat16}[entry.dtype]
            assert weight.isfinite().all()


def test_codes_are_no_nan_and_have_the_deviation_they_should():
    made = random_weights(as_stored(MANIFEST), CPU)
    packed = [(entry, made[entry.id]) for entry in MANIFEST.weights if isinstance(made[entry.id], Packed)]
    assert {entry.role for entry, _ in packed} >= {"wq_a", "wo_b", "shared_w1", "engram_wkv"}
    for entry, weight in packed:
        values = dense(weight, torch.float32)  # type: ignore[arg-type]
        assert values.isfinite().all(), entry.id
        assert values.std() * entry.shape[-1] ** 0.5 == pytest.approx(1.0, rel=0.25), entry.id  # few scales: rough
    experts = made["layers.3.experts_w1"]
    assert isinstance(experts, Stacked)
    values = torch.stack([dense(item, torch.float32) for item in experts])
    assert values.std() * 128**0.5 == pytest.approx(1.0, rel=0.05)
    assert len(experts.scale.unique()) == 2


def test_the_same_seed_makes_the_same_weights():
    first, again, other = (random_weights(MANIFEST, CPU, seed=seed) for seed in (1, 1, 2))
    name = "layers.3.wq_a"
    assert torch.equal(first[name], again[name])  # type: ignore[arg-type]
    assert not torch.equal(first[name], other[name])  # type: ignore[arg-type]


@pytest.mark.parametrize("stored", [2, 3])
def test_only_stored_experts_are_chosen_and_each_once(stored: int):
    made = random_weights(MANIFEST, CPU, stored_experts=stored)
    assert made["layers.3.gate"].shape == (8, 128)  # type: ignore[attr-defined]
    engine = Engine(plan(), "", weights=made)
    assert len(made["layers.3.experts_w2"]) == stored  # type: ignore[arg-type]
    values = ReferenceExecutor(MANIFEST, made).run(_step(), {"ids": torch.arange(12)[None]})
    for layer in range(10):
        ids = values[f"expert_ids@L{layer}"]
        assert ids.max() < stored and (ids.sort(-1).values.diff(dim=-1) > 0).all()
    assert values["logits"].isfinite().all()
    assert engine.feed(engine.open(), range(12)).isfinite().all()


def _step():  # type: ignore[no-untyped-def]
    from dsv41c.kernels.step import Step

    return Step(torch.tensor([0]), torch.tensor([0]), 12)


def test_short_tables_have_a_hash_that_fits():
    constants = random_constants(MANIFEST, table_rows=100)
    assert MANIFEST.engram is not None
    modulus, offsets = constants["engram.primes"], constants["engram.offsets"]
    assert (modulus == 15).all()  # six columns in a hundred rows, odd
    assert torch.equal(offsets[0], torch.arange(6) * 15)
    token_map = constants["engram.token_map"]
    assert token_map.shape == (512,) and token_map.min() >= 0 and token_map.max() < 426
    whole = random_constants(MANIFEST)
    assert whole["engram.primes"].tolist() == [list(layer.primes) for layer in MANIFEST.engram.layers]
    made = random_weights(MANIFEST, CPU, table_rows=100)
    table = made["layers.1.engram_table"]
    assert isinstance(table, HeldTable) and table.codes.shape == (100, 32)
    assert table.rows(torch.tensor([[0, 99]])).shape == (1, 2, 32)


@pytest.mark.parametrize("manifest", [MANIFEST, as_stored(MANIFEST)], ids=["dense", "stored"])
@pytest.mark.parametrize("stored", [None, 3])
def test_bytes_are_told_beforehand(manifest: Manifest, stored: int | None):
    made = random_weights(manifest, CPU, stored_experts=stored, table_rows=100)
    weights = [made[entry.id] for entry in manifest.weights]
    held = sum(tensor.numel() * tensor.element_size() for tensor in tensors_of(weights))
    assert held == held_bytes(manifest, stored_experts=stored, table_rows=100)
    assert pool_bytes(manifest) == Pools(manifest).bytes


@pytest.mark.parametrize("cache", ["none", "packed"])
def test_a_slot_is_written_whole(cache: str):
    mode = "f32-act_none-kv_none"
    manifest = plan(mode, ("kv_cache: none", f"kv_cache: {cache}")).manifest
    pools = Pools(manifest)
    fill_slot(pools, manifest, 1, torch.Generator().manual_seed(0))
    for value, storage in pools.storage_of.items():
        rows = pools.rows(value, 1).to(torch.float32)
        assert rows.isfinite().all(), value
        if pools.kinds[storage] == "token_history":
            assert rows.min() >= 0 and rows.max() < 426
        else:
            assert rows.std() == pytest.approx(1.0, abs=0.2), value
        assert not pools.tensors[storage][2].any() or pools.kinds[storage] == "token_history"


def test_plain_torch_shares_few_experts():
    made = random_weights(MANIFEST, CPU)
    found = dense_weights(MANIFEST, made)
    assert found["layers.3.experts_w1"] is found["layers.7.experts_w1"]
    first = found["layers.3.experts_w1"][0]  # type: ignore[index]
    assert torch.equal(first, dense(made["layers.0.experts_w1"][0], torch.float32))  # type: ignore[index]
    assert torch.equal(first, found["layers.3.experts_w1"][min(SHARED_EXPERTS, 8)])  # type: ignore[index]
    table, given = found["layers.1.engram_table"], made["layers.1.engram_table"]
    assert isinstance(table, HeldTable) and isinstance(given, HeldTable) and table.codes is given.codes
