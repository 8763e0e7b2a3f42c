"""What a plan is, in a few lines: layers, state by kind, weights, stages and what crosses between them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dsv41c.kernels.catalog import COLLECTIVES
from dsv41c.words import counted, layers, size

if TYPE_CHECKING:
    from dsv41c.runtime.manifest import Manifest, MemoryEntry


def summary(manifest: Manifest) -> dict[str, object]:
    """The numbers, as plain data for `--json`."""
    return {
        "name": manifest.name,
        "family": manifest.target.family,
        "numerics": manifest.numerics.model_dump(),
        "layers": manifest.model.n_layers,
        "ops": len(manifest.ops),
        "regions": len(manifest.regions),
        "state": state_bytes(manifest),
        "weights": len(manifest.weights),
        "weight_bytes": weight_bytes(manifest),
        "memory": [entry.model_dump() for entry in manifest.memory],
        "sessions": manifest.runtime.max_sessions,
        "max_context": manifest.runtime.max_context,
        "stages": [stage.model_dump() for stage in manifest.stages],
        "tensor_parallel": manifest.target.tensor_parallel,
        "collective_bytes_per_token": collective_bytes(manifest),
        "transfers": len(manifest.transfers),
        "transfer_bytes_per_token": sum(transfer.bytes_per_token for transfer in manifest.transfers),
    }


def state_bytes(manifest: Manifest) -> dict[str, dict[str, int]]:
    """Session state by kind: how many pools, and bytes of one session over all of them."""
    kinds: dict[str, dict[str, int]] = {}
    for value in manifest.values:
        if value.scope == "session" and value.storage in (None, value.id):
            entry = kinds.setdefault(value.kind, {"pools": 0, "bytes": 0})
            entry["pools"] += 1
            entry["bytes"] += value.bytes
    return kinds


def weight_bytes(manifest: Manifest) -> int:
    """Bytes of the weights as the official checkpoint stores them, scales included."""
    return sum(weight.bytes for weight in manifest.weights)


def collective_bytes(manifest: Manifest) -> int:
    """What one shard gives to collectives for a token."""
    return sum(int(op.attrs["bytes_per_token"]) for op in manifest.ops if op.kind in COLLECTIVES)


def lines(manifest: Manifest) -> list[str]:
    """The same for a person."""
    parts = ((manifest.ops, "op"), (manifest.values, "value"), (manifest.regions, "region"))
    rows = [
        ("model", f"{manifest.name}: {counted(manifest.model.n_layers, 'layer')}, dim {manifest.model.dim}"),
        ("numerics", ", ".join(f"{name} {value}" for name, value in manifest.numerics.model_dump().items())),
        ("graph", ", ".join(counted(len(part), noun) for part, noun in parts)),
        ("weights", f"{counted(len(manifest.weights), 'role')}, {size(weight_bytes(manifest))} in the checkpoint"),
    ]
    runtime = manifest.runtime
    rows.append(("sessions", f"up to {runtime.max_sessions} of {runtime.max_context} tokens; state of each:"))
    state = state_bytes(manifest)
    rows += [("", f"{kind} {entry['pools']} x, {size(entry['bytes'])}") for kind, entry in state.items()]
    rows.append(("", f"in all {size(sum(entry['bytes'] for entry in state.values()))}"))
    rows += [("stages" if not stage.index else "", _stage(manifest, stage.index)) for stage in manifest.stages]
    rows += [("memory" if not index else "", _memory(entry)) for index, entry in enumerate(manifest.memory)]
    shards = manifest.target.tensor_parallel
    if shards > 1:
        count, given = sum(op.kind in COLLECTIVES for op in manifest.ops), size(collective_bytes(manifest))
        rows.append(("shards", f"{shards} of each stage; each gives {given} a token to {count} collectives"))
    if manifest.transfers:
        crossing = sum(transfer.bytes_per_token for transfer in manifest.transfers)
        rows.append(("transfers", f"{len(manifest.transfers)}, {size(int(crossing))} a token"))
    return table(rows)


def _stage(manifest: Manifest, index: int) -> str:
    stage = manifest.stages[index]
    arriving = [transfer.value for transfer in manifest.transfers if transfer.to_stage == index]
    reads = f", receives {', '.join(arriving)}" if arriving else ""
    return f"{index} on {stage.device}: {layers(range(stage.first_layer, stage.end_layer))}{reads}"


def _memory(entry: MemoryEntry) -> str:
    return f"{entry.device}: {size(entry.weights)} of weights, {size(entry.state)} of pools"


def table(rows: Sequence[tuple[str, str]]) -> list[str]:
    """Two columns, aligned."""
    width = max(len(name) for name, _ in rows)
    return [f"  {name:{width}}  {text}" for name, text in rows]
