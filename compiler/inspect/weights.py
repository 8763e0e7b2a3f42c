"""Weights by role group and by encoding: tensors, parameters, bytes as stored and as kept; and constants."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from types import MappingProxyType
from typing import Any

from dsv41c.compiler.inspect.table import table
from dsv41c.kernels.catalog import WEIGHT_ROLES
from dsv41c.runtime.manifest import Manifest, WeightEntry
from dsv41c.runtime.memory import TABLE, constant_bytes, kept_bytes
from dsv41c.runtime.work_space import rows_from_host, tables_on_device
from dsv41c.words import counted, layers, size

# By group, how the roles in it begin; the first that fits counts.
_GROUPS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "embedding": ("embed",),
        "head": ("head", "final_norm"),
        "mixes": ("hc_",),
        "norms": ("attn_norm", "ffn_norm"),
        "attention": ("w", "q_norm", "kv_norm", "attn_sink"),
        "compressors": ("compressor_",),
        "indexers": ("indexer_",),
        "router": ("gate",),
        "routed experts": ("experts_",),
        "shared expert": ("shared_",),
        "engram tables": ("engram_table",),
        "engram": ("engram_",),
    }
)
_SUMS = ("tensors", "parameters", "bytes", "kept_bytes")


def group_of(role: str) -> str:
    """The group of a role: `other` where the catalogue has no such role."""
    known = role in WEIGHT_ROLES
    return next(group for group, starts in _GROUPS.items() if role.startswith(starts)) if known else "other"


def data(manifest: Manifest) -> dict[str, Any]:
    """Weights by role, and sums by group and by encoding. Tables count as kept where they are on devices."""
    roles = [_role(found, tables_kept=tables_on_device(manifest)) for found in _alike(manifest)]
    constants = [
        {"id": constant.id, "kind": constant.kind, "bytes": constant_bytes(constant, manifest)}
        for constant in manifest.constants
    ]
    return {
        "groups": _summed(roles, "group"),
        "encodings": _summed(roles, "stored", "accepted", "dtype"),
        "roles": roles,
        "constants": constants,
        **{key: sum(role[key] for role in roles) for key in _SUMS},
    }


def _alike(manifest: Manifest) -> list[list[WeightEntry]]:
    """Weights that differ in their layer alone: of one role, shape and encoding."""
    found: dict[tuple[object, ...], list[WeightEntry]] = defaultdict(list)
    for weight in manifest.weights:
        found[weight.role, *weight.shape, weight.count, weight.stored, *weight.accepted, weight.dtype].append(weight)
    order = {role: number for number, role in enumerate(WEIGHT_ROLES)}
    return sorted(found.values(), key=lambda alike: order.get(alike[0].role, len(order)))


def _role(alike: Sequence[WeightEntry], *, tables_kept: bool) -> dict[str, Any]:
    one = alike[0]
    return {
        "role": one.role,
        "group": group_of(one.role),
        "name": WEIGHT_ROLES[one.role].name if one.role in WEIGHT_ROLES else one.name,
        "layers": sorted(weight.layer for weight in alike if weight.layer is not None),
        "shape": one.shape,
        "stored": one.stored,
        "accepted": one.accepted,
        "dtype": one.dtype,
        "split": one.shard.axis if one.shard is not None else None,
        "tensors": sum(weight.count for weight in alike),
        "parameters": sum(weight.count * prod(weight.shape) for weight in alike),
        "bytes": sum(weight.bytes for weight in alike),
        "kept_bytes": sum(kept_bytes(weight) for weight in alike if tables_kept or weight.role != TABLE),
    }


def _summed(roles: list[dict[str, Any]], *keys: str) -> list[dict[str, Any]]:
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for role in roles:
        found[repr([role[key] for key in keys])].append(role)
    return [
        {
            **{key: alike[0][key] for key in keys},
            "roles": [role["role"] for role in alike],
            **{key: sum(role[key] for role in alike) for key in _SUMS},
        }
        for alike in found.values()
    ]


# --- text -------------------------------------------------------------------------------------------------------------

_STORAGE = {
    "device": "on the device of their layer",
    "host": "in pinned memory of the host",
    "mapped": "mapped from the checkpoint's files",
    "disk": "read row by row from the checkpoint's files",
}
_SIZES = (">tensors", ">parameters", ">stored", ">kept")


def overview(manifest: Manifest) -> Iterator[str]:
    """By group, by encoding, and constants in a line."""
    found = data(manifest)
    rows = [(group["group"], *_sizes(group)) for group in found["groups"]]
    yield from table("weights", _SIZES, [*rows, ("in all", *_sizes(found))])
    yield f"  stored: in the official checkpoint, scales included; kept: as kernels take them{_each(manifest)}"
    if manifest.engram is not None:
        reader = ", read by kernels" if manifest.engram.storage == "host" and not rows_from_host(manifest) else ""
        yield f"  engram tables: {_STORAGE[manifest.engram.storage]}{reader}"
    yield ""
    encodings = [
        (entry["stored"], *_sizes(entry), f"{_dtype(entry)}; binds {', '.join(entry['accepted'])}")
        for entry in found["encodings"]
    ]
    yield from table("encodings", (*_SIZES, "kept as; a checkpoint may hold"), encodings)
    total = sum(constant["bytes"] for constant in found["constants"])
    yield f"  {counted(len(found['constants']), 'constant')} made by the runtime, {size(total)}"


def _each(manifest: Manifest) -> str:
    return ", by each shard" if manifest.target.tensor_parallel > 1 else ""


def _sizes(found: dict[str, Any]) -> tuple[str, str, str, str]:
    kept = size(found["kept_bytes"]) if found["kept_bytes"] else "-"
    return f"{found['tensors']:,}", f"{found['parameters']:,}", size(found["bytes"]), kept


def _dtype(entry: dict[str, Any]) -> str:
    return "as stored" if entry["dtype"] == "stored" else str(entry["dtype"])


def _of(role: dict[str, Any]) -> str:
    where = layers(role["layers"]) if role["layers"] else "outside layers"
    return f"{where}; split by {role['split']}" if role["split"] else where


def lines(manifest: Manifest) -> Iterator[str]:
    """The same, every role and every constant."""
    found = data(manifest)
    yield from overview(manifest)
    yield ""
    rows = [
        (
            role["name"].removeprefix("layers.{layer}."),
            f"[{', '.join(map(str, role['shape']))}]",
            role["stored"],
            size(role["bytes"]),
            _of(role),
        )
        for role in found["roles"]
    ]
    yield from table("roles", ("shape", "stored", ">in all", "of"), rows)
    yield ""
    constants = [(constant["id"], constant["kind"], size(constant["bytes"])) for constant in found["constants"]]
    yield from table("constants", ("kind", ">bytes"), constants)
