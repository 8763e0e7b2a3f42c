"""Plain torch for comparison: the ops of the manifest one by one, on dense weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from dsv41c.kernels.catalog import WEIGHT_ROLES
from dsv41c.kernels.reference.encodings import Packed, dense
from dsv41c.kernels.reference.engram import HeldTable
from dsv41c.kernels.registry import kernels_for
from dsv41c.runtime.device.tensors import is_held
from dsv41c.runtime.engine import Engine
from dsv41c.runtime.manifest import Manifest
from dsv41c.runtime.reference import ReferenceExecutor

SHARED_EXPERTS = 16
NOTE = (
    f"torch: plain torch ops, dense weights held as BF16 (F32 where the model's math is); {SHARED_EXPERTS} experts at"
    " most, decoded beforehand, serve all layers, which spares it their decoding and flatters it"
)


class Repeated:
    """A few experts in place of many: expert e is the one of number e modulo their count."""

    def __init__(self, items: list[Tensor]) -> None:
        self.items = items

    def __getitem__(self, expert: int) -> Tensor:
        return self.items[expert % len(self.items)]


def dense_weights(manifest: Manifest, weights: Mapping[str, object]) -> dict[str, object]:
    """Weights and constants by id for plain torch, beside the given ones: what was packed is dense.

    Matrices are in the plan's compute dtype, those that the model's math uses in f32 in f32. Of each projection the
    first `SHARED_EXPERTS` experts of the first layer serve every layer. Tables, and what is dense already, are shared;
    of tables on a device torch looks the rows up.
    """
    compute = torch.bfloat16 if manifest.numerics.compute == "bf16" else torch.float32
    shared: dict[str, Repeated] = {}
    found: dict[str, object] = dict(weights)
    for entry in manifest.weights:
        weight = weights[entry.id]
        if "{expert}" in entry.name:
            if entry.role not in shared:
                shared[entry.role] = Repeated(_first(weight, compute))
            found[entry.id] = shared[entry.role]
        elif isinstance(weight, Packed | Tensor):
            wanted = torch.float32 if WEIGHT_ROLES[entry.role].compute == "f32" else compute
            found[entry.id] = dense(weight, wanted)
        elif is_held(weight):
            found[entry.id] = HeldTable(weight.codes, weight.scale)  # type: ignore[attr-defined]
    return found


def _first(experts: object, dtype: torch.dtype) -> list[Tensor]:
    assert isinstance(experts, Sequence), type(experts)
    return [dense(experts[expert], dtype) for expert in range(min(SHARED_EXPERTS, len(experts)))]


def plain_torch(engine: Engine) -> ReferenceExecutor:
    """An executor of plain torch on the engine's own pools."""
    return _executor(engine, dense_weights(engine.manifest, engine.weights))


def oracle(engine: Engine) -> ReferenceExecutor:
    """The reference kernels on the engine's own weights and pools: slow, and what the fast ones have to agree with."""
    return _executor(engine, engine.weights)


def _executor(engine: Engine, weights: Mapping[str, object]) -> ReferenceExecutor:
    kernels = kernels_for(engine.manifest.target.family, "reference")
    return ReferenceExecutor(engine.manifest, weights, kernels=kernels, pools=engine.pools)
