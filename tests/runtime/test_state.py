"""Pools: one row a session, versions of one state in one memory, and a spare row."""

from __future__ import annotations

import torch
from golden_tiny import MODES, plan

from dsv41c.runtime.state import Pools, storages


def test_shapes_and_dtypes() -> None:
    pools = Pools(plan().manifest)
    assert pools.slots == 5 and pools.spare == 4
    shapes = {name: tuple(pool.shape) for name, pool in pools.tensors.items()}
    assert shapes["window_kv@L0.before"] == (5, 16, 64)
    assert shapes["compress_kv@L2.before"] == (5, 40, 64)
    assert shapes["group_tail@L2.before"] == (5, 2, 2, 64)
    assert shapes["compress_kv@L6.before"] == (5, 80, 64)
    assert shapes["token_history.before"] == (5, 3)
    assert not any(name.startswith("group_tail@L6") for name in shapes)
    bf16 = Pools(plan(next(mode for mode in MODES if mode.startswith("bf16"))).manifest)
    assert bf16.tensors["compress_kv@L2.before"].dtype == torch.bfloat16
    assert bf16.tensors["group_tail@L2.before"].dtype == torch.float32
    assert bf16.bytes < pools.bytes


def test_versions_share_one_memory() -> None:
    pools = Pools(plan().manifest)
    values = pools.environment()
    assert values["compress_kv@L4"] is values["compress_kv@L4.before"]
    sessions = {value.id for value in plan().manifest.values if value.scope == "session"}
    assert set(values) == sessions == set(storages(plan().manifest.values))


def test_an_empty_history_is_dead() -> None:
    pools = Pools(plan().manifest)
    history = pools.tensors["token_history.before"]
    assert (history == -1).all()
    history[1] = 7
    pools.reset(1)
    assert (history == -1).all()


def test_copy_takes_everything_and_nothing_else() -> None:
    pools = Pools(plan().manifest)
    for pool in pools.tensors.values():
        pool.copy_(torch.arange(pool.numel()).reshape(pool.shape) % 97)
    before = {name: pool.clone() for name, pool in pools.tensors.items()}
    pools.copy(1, 3)
    for name, pool in pools.tensors.items():
        assert torch.equal(pool[3], before[name][1])
        for slot in (0, 1, 2, 4):
            assert torch.equal(pool[slot], before[name][slot])


def test_load_and_rows() -> None:
    pools = Pools(plan().manifest)
    pools.load("index_k@L2", 2, torch.ones(3, 32))
    assert pools.rows("index_k@L2.before", 2)[:4].sum() == 3 * 32
    assert pools.rows("index_k@L2", 1).sum() == 0
