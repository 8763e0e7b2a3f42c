"""The weights a plan binds: for every weight an op names, its tensor, shape, encodings and what kernels get."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from dsv41c.compiler.engram_hash import columns
from dsv41c.compiler.ir import Graph, Op
from dsv41c.kernels.catalog import OPS, WEIGHT_ROLES, WeightRole
from dsv41c.kernels.encodings import ENCODINGS, PLAIN_ENCODINGS
from dsv41c.kernels.fusion import STORED_ROLES
from dsv41c.runtime.manifest import ConstantEntry, ShardEntry, WeightEntry

if TYPE_CHECKING:
    from dsv41c.compiler.spec.models import Spec

# Tensors that no checkpoint holds: the runtime makes them.
CONSTANT_PREFIXES = ("rope.", "engram.")


def role_of(weight: str) -> str:
    """The role in a weight id: `wq_a` of `layers.4.wq_a`, `head` of `head`."""
    return weight.rpartition(".")[2]


def dimensions(spec: Spec, layer: int | None = None) -> Mapping[str, int]:
    """Every size expression of the catalogue's roles, worked out. `engram_rows` only for an engram layer."""
    model, attention, indexer, moe, streams = spec.model, spec.attention, spec.indexer, spec.moe, spec.mhc.streams
    heads_width = attention.n_heads * attention.head_dim
    table = {
        "3": 3,
        "vocab_size": model.vocab_size,
        "dim": model.dim,
        "streams": streams,
        "streams*dim": streams * model.dim,
        "(2+streams)*streams": (2 + streams) * streams,
        "(streams+1)*dim": (streams + 1) * model.dim,
        "heads": attention.n_heads,
        "head_dim": attention.head_dim,
        "heads*head_dim": heads_width,
        "heads*head_dim//groups": heads_width // attention.o_groups,
        "q_lora_rank": attention.q_lora_rank,
        "groups*o_lora_rank": attention.o_groups * attention.o_lora_rank,
        "index_heads": indexer.n_heads,
        "index_head_dim": indexer.head_dim,
        "index_heads*index_head_dim": indexer.n_heads * indexer.head_dim,
        "experts": moe.n_routed_experts,
        "inter_dim": moe.inter_dim,
    }
    if spec.engram is not None:
        table |= {"engram_head_dim": spec.engram.head_dim, "engram_width": columns(spec.engram) * spec.engram.head_dim}
        if layer in spec.layers.engram_layers:
            table["engram_rows"] = spec.engram.num_embeddings[spec.layers.engram_layers.index(layer)]
    return table


def weight_entries(spec: Spec, graph: Graph, *, native: bool = False) -> list[WeightEntry]:
    """Every weight of the graph's ops, in the order of first use. The experts of a layer are one entry a matrix.

    `native` kernels take more of them as they are stored.
    """
    users: dict[str, list[Op]] = {}
    for op in graph.ops:
        for _, weight in op.weights:
            if not weight.startswith(CONSTANT_PREFIXES):
                users.setdefault(weight, []).append(op)
    common = dimensions(spec)
    return [_entry(spec, common, weight, ops, native) for weight, ops in users.items()]


def _entry(spec: Spec, common: Mapping[str, int], weight: str, ops: list[Op], native: bool) -> WeightEntry:
    role = WEIGHT_ROLES[role_of(weight)]
    layer = ops[0].layer
    sizes = dimensions(spec, layer) if "engram_rows" in role.shape else common
    stored = _stored(spec, role)
    shape = [sizes[size] for size in role.shape]
    count = spec.moe.n_routed_experts if "{expert}" in role.name else 1
    shards = spec.placement.tensor_parallel
    return WeightEntry(
        id=weight,
        role=role.role,
        layer=layer,
        stage=ops[0].stage,
        # Not str.format: the expert's place stays open.
        name=role.name.replace("{layer}", str(layer)),
        shape=shape,
        count=count,
        stored=stored,
        bytes=count * ENCODINGS[stored].bytes(shape),
        accepted=list(dict.fromkeys((stored, *PLAIN_ENCODINGS))),
        dtype=_dtype(spec, role, layer, native),
        ops=[op.id for op in ops],
        shard=None if shards == 1 or role.split is None else ShardEntry(axis=role.split, count=shards),
    )


def _stored(spec: Spec, role: WeightRole) -> str:
    sections = {"linear": spec.weights.linear, "experts": spec.weights.experts, "engram": spec.weights.engram}
    return sections.get(role.stored, role.stored)


def _dtype(spec: Spec, role: WeightRole, layer: int | None, native: bool) -> str:
    """What kernels get. A compressor that pools (ratio over 1) works in fp32, as the released model does."""
    if native and role.role in STORED_ROLES:
        return "stored"
    if role.role in ("compressor_wkv", "compressor_wgate") and layer is not None:
        return "f32" if spec.layers.compress_ratios[layer] > 1 else spec.numerics.compute
    return spec.numerics.compute if role.compute == "compute" else role.compute


def constant_entries(spec: Spec, graph: Graph) -> list[ConstantEntry]:
    """The tensors that the runtime makes itself, in the order of first use."""
    used = dict.fromkeys(weight for op in graph.ops for _, weight in op.weights if weight.startswith(CONSTANT_PREFIXES))
    return [_constant(spec, weight) for weight in used]


def _constant(spec: Spec, weight: str) -> ConstantEntry:
    rope_dim, rope = spec.attention.rope_head_dim, spec.rope
    if weight == "rope.window":
        return ConstantEntry(id=weight, kind="rope_frequencies", attrs={"rope_dim": rope_dim, "theta": rope.theta})
    if weight == "rope.compress":
        yarn: dict[str, int | float] = {
            "factor": rope.yarn.factor,
            "original_seq_len": rope.yarn.original_seq_len,
            "beta_fast": rope.yarn.beta_fast,
            "beta_slow": rope.yarn.beta_slow,
        }
        attrs = {"rope_dim": rope_dim, "theta": rope.compress_theta, **yarn}
        return ConstantEntry(id=weight, kind="rope_frequencies", attrs=attrs)
    if weight == "engram.token_map":
        return ConstantEntry(id=weight, kind="token_map", attrs={})
    part = weight.removeprefix("engram.")
    if part not in OPS["engram_ids"].weights:
        raise ValueError(f"no constant is named {weight}")
    return ConstantEntry(id=weight, kind=f"engram_{part}", attrs={})  # type: ignore[arg-type]
