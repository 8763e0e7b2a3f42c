"""Kernels with a planted fault: each does one thing that a graph of some family cannot hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from golden_tiny import ORACLE, TINY, plan, weights_for

from dsv41c.kernels.catalog import FAMILIES
from dsv41c.kernels.registry import kernels_for
from dsv41c.runtime.engine import Engine
from dsv41c.runtime.plan import Plan

# A decode step of one bucket with few operations: what is under test is the watching.
CHANGES = (("sinkhorn_iters: 20", "sinkhorn_iters: 2"), ("decode_buckets: [1, 2, 4]", "decode_buckets: [1]"))

# Its first four layers: they have ops of every kind that a fault is planted in.
FOUR = (
    ("n_layers: 10", "n_layers: 4"),
    ("{0-1: 0, 2-5: 2, 6-9: 1}", "{0-1: 0, 2-3: 2}"),
    ("kv_source_layers: [2, 4, 6]", "kv_source_layers: [2]"),
    ("index_source_layers: [2, 4, 6, 8]", "index_source_layers: [2]"),
    ("candidate_source_layer: 6", "candidate_source_layer: -1"),
    ("engram_layers: [1, 4]", "engram_layers: [1]"),
    ("num_embeddings: [462, 630]", "num_embeddings: [462]"),
    ("layer_ends: [10]", "layer_ends: [4]"),
)

# The same with fused calls.
FUSED = (
    "bf16-act_fp8-kv_reference",
    *CHANGES,
    ("activation_quant: fp8", "activation_quant: none"),
    ('["cpu:0"]', '["cuda:0"]'),
)


def for_family(compiled: Plan, family: str) -> Plan:
    """The same plan for another family of devices."""
    target = compiled.manifest.target.model_copy(update={"family": family, "devices": (f"{family}:0",)})
    return replace(compiled, manifest=compiled.manifest.model_copy(update={"target": target}))


class Faulty:
    """The static kernels, with one more thing done after one of them: `fault(calls so far, arguments, result)`.

    Experts are left out: they are most of the operations of a step.
    """

    def __init__(self, kind: str, fault: Callable[[int, tuple[Any, ...], Any], object]) -> None:
        self.kind = kind
        self.fault = fault
        self.calls = 0
        self.armed = True

    def __getattr__(self, kind: str) -> Callable[..., Any]:
        kernel = getattr(kernels_for("cpu", "static"), kind)
        if kind == "experts":
            return lambda x, *_, **__: torch.zeros(x.shape, device=x.device)
        if kind != self.kind or not self.armed:
            return kernel

        def spoiled(*args: Any, **named: Any) -> Any:
            result = kernel(*args, **named)
            self.calls += 1
            self.fault(self.calls, args, result)
            return result

        return spoiled


def _move_pool(engine: Engine) -> None:
    """The same numbers in the same shape, two slots further on in a larger buffer."""
    name = engine.pools.storage_of["window_kv@L3"]
    pool = engine.pools.tensors[name]
    larger = torch.zeros(pool.shape[0] + 2, *pool.shape[1:], dtype=pool.dtype)
    larger[2:] = pool
    engine.pools.tensors[name] = larger[2:]


def _stride_pool(engine: Engine) -> None:
    name = engine.pools.storage_of["window_kv@L3"]
    pool = engine.pools.tensors[name]
    wide = torch.zeros(*pool.shape[:-1], 2 * pool.shape[-1], dtype=pool.dtype)
    engine.pools.tensors[name] = wide[..., : pool.shape[-1]]


def _other_inputs(engine: Engine) -> None:
    assert engine.captured is not None
    given = engine.captured.inputs[1]
    engine.captured.inputs[1] = replace(given, positions=given.positions.clone())


@dataclass(frozen=True)
class Fault:
    """`families`: those whose rules forbid it. `kind` and `call` plant it in a kernel, `between` between two steps."""

    code: str
    kind: str = ""
    call: Callable[[int, tuple[Any, ...], Any], object] = lambda calls, args, result: None
    between: Callable[[Engine], None] | None = None
    families: tuple[str, ...] = field(default=FAMILIES)
    otherwise: str | None = None  # what other families call it


_KEPT: list[torch.Tensor] = []
_TABLE = torch.ones(4)

FAULTS = {
    "item": Fault("DSV870", "norm", lambda _, args, result: result.sum().item()),
    "tolist": Fault("DSV870", "route", lambda _, args, result: result[1].tolist()),
    "cpu": Fault("DSV870", "attend", lambda _, args, result: result.cpu()),
    "to cpu": Fault("DSV870", "attend", lambda _, args, result: result.to("cpu")),
    "numpy": Fault("DSV870", "query", lambda _, args, result: result[0].numpy()),
    "branch": Fault("DSV870", "norm", lambda _, args, result: 1 if result.max() > 0 else 2),
    "number": Fault("DSV870", "norm", lambda _, args, result: int(result.argmax())),
    "equal": Fault("DSV870", "norm", lambda _, args, result: torch.equal(result, result)),
    "nonzero": Fault("DSV871", "route", lambda _, args, result: result[1].nonzero()),
    "unique": Fault("DSV871", "route", lambda _, args, result: result[1].unique()),
    "mask": Fault("DSV871", "collapse", lambda _, args, result: result[result > 0]),
    "mask write": Fault("DSV871", "collapse", lambda _, args, result: result.index_put_((result > 9e9,), result.sum())),
    "one-armed where": Fault("DSV871", "collapse", lambda _, args, result: torch.where(result > 0)),
    "kept": Fault("DSV872", "window_rows", lambda _, args, result: _KEPT.append(result * 2)),
    "kept view": Fault("DSV872", "window_rows", lambda _, args, result: _KEPT.append((result * 2)[0])),
    "moved pool": Fault("DSV873", between=_move_pool),
    "other strides": Fault("DSV873", between=_stride_pool),
    "other inputs": Fault("DSV873", between=_other_inputs),
    "write through a row": Fault(
        "DSV874", "window_store", lambda _, args, result: result[0].add_(0), families=("hpu",)
    ),
    "write through a slice": Fault(
        "DSV874", "index_keys", lambda _, args, result: result[:, :1].zero_(), families=("hpu",)
    ),
    "sliding view": Fault(
        "DSV875", "window_store", lambda calls, _, result: result[:, calls % 5 :], families=("hpu",), otherwise="DSV876"
    ),
    "more work": Fault("DSV876", "embed", lambda calls, args, result: [result[1] * 2 for _ in range(calls)]),
    "less work": Fault("DSV876", "head", lambda calls, args, result: [result * 2 for _ in range(9 - calls)]),
    "number from the host": Fault("DSV876", "embed", lambda calls, args, result: result[1] * calls),
    "global": Fault("DSV877", "norm", lambda _, args, result: _TABLE + 1),
    "made on the host": Fault("DSV877", "norm", lambda _, args, result: torch.tensor([1, 2])),
}
SHOWN = ("tolist", "nonzero", "kept", "moved pool", "write through a row", "sliding view", "more work", "global")


def run(name: str, family: str, *, fused: bool = False) -> None:
    """Two decode steps in strict mode with a fault planted. Raises `UserFault` where it is found."""
    fault = FAULTS[name]
    kernels = Faulty(fault.kind, fault.call)
    if fused:
        engine = Engine(plan(*FUSED), TINY, kernels=kernels, strict=True)
    else:
        compiled = for_family(plan(ORACLE, *CHANGES, *FOUR), family)
        engine = Engine(compiled, TINY, weights=weights_for(compiled), kernels=kernels, strict=True)
    try:
        with engine.open() as session:
            session.feed([7, 8])
            engine.decode({session: 3})  # both steps are of the same bucket of context: the second replays the first
            if fault.between is not None:
                fault.between(engine)
            engine.decode({session: 4})
    finally:
        _KEPT.clear()
