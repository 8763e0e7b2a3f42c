"""Stages: the layers of each, on which device, and what each device holds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dsv41c.compiler.inspect.table import table
from dsv41c.kernels.catalog import COLLECTIVES
from dsv41c.runtime.manifest import Manifest, MemoryEntry
from dsv41c.runtime.memory import TABLE, kept_bytes, memory, pools
from dsv41c.words import counted, ranges, size


def data(manifest: Manifest) -> list[dict[str, Any]]:
    """The manifest's stages, each with its ops and regions, the weights it keeps, and a session's state, in bytes."""
    return [
        {
            **stage.model_dump(),
            "ops": sum(op.stage == stage.index for op in manifest.ops),
            "regions": sum(region.stage == stage.index for region in manifest.regions),
            "weight_bytes": sum(
                kept_bytes(weight)
                for weight in manifest.weights
                if weight.stage == stage.index and weight.role != TABLE
            ),
            "state_bytes": sum(pool.bytes for pool in pools(manifest) if pool.stage == stage.index),
        }
        for stage in manifest.stages
    ]


def held(manifest: Manifest) -> list[MemoryEntry]:
    """What an engine holds by device; plans of before minor version 1 do not say it themselves."""
    return manifest.memory or memory(manifest)


def lines(manifest: Manifest) -> Iterator[str]:
    """A table of stages, one of devices, and what shards are."""
    rows = [
        (
            str(stage["index"]),
            stage["device"],
            ranges(range(stage["first_layer"], stage["end_layer"])),
            f"{stage['ops']:,}",
            f"{stage['regions']:,}",
            size(stage["weight_bytes"]),
            size(stage["state_bytes"]),
            stage["file"],
        )
        for stage in data(manifest)
    ]
    yield from table("stages", ("device", "layers", ">ops", ">regions", ">weights", ">a session", "code"), rows)
    yield ""
    devices = [(entry.device, size(entry.weights), size(entry.state), size(entry.total)) for entry in held(manifest)]
    yield from table("memory", (">weights", ">pools", ">in all"), devices)
    yield f"  as the plan runs, without engram tables; pools are for {_slots(manifest)}"
    if manifest.target.tensor_parallel > 1:
        yield from _shards(manifest)


def _slots(manifest: Manifest) -> str:
    return f"{counted(manifest.runtime.max_sessions, 'session')} and a spare one"


def _shards(manifest: Manifest) -> Iterator[str]:
    meeting = [op for op in manifest.ops if op.kind in COLLECTIVES]
    given = sum(int(op.attrs["bytes_per_token"]) for op in meeting)
    yield ""
    yield f"shards  {manifest.target.tensor_parallel} processes run each stage; what is kept and held here is of each"
    yield f"        they meet in {counted(len(meeting), 'collective')} a step; each gives {size(given)} a token"
