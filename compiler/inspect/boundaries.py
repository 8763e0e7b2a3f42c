"""What crosses each stage boundary of a plan, from its manifest: who makes each value, who reads it, and its bytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

from dsv41c.compiler.inspect.table import aligned
from dsv41c.kernels.catalog import CARRIERS
from dsv41c.runtime.manifest import Manifest, OpEntry, StageEntry, TransferEntry
from dsv41c.words import counted, layers, ranges, size

Writers = Mapping[str, OpEntry]  # by the value that an op writes


def data(manifest: Manifest) -> list[dict[str, Any]]:
    """Every boundary in order, as plain data; none where there is one stage."""
    writers = {value: op for op in manifest.ops for value in op.writes.values()}
    return [_boundary(manifest, writers, before, stage) for before, stage in pairwise(manifest.stages)]


def _boundary(manifest: Manifest, writers: Writers, before: StageEntry, stage: StageEntry) -> dict[str, Any]:
    moves = [move for move in manifest.transfers if move.to_stage == stage.index]
    return {
        "from_stage": before.index,
        "to_stage": stage.index,
        "from": before.device,
        "to": stage.device,
        "layer": stage.first_layer,
        "bytes_per_token": sum(move.bytes_per_token for move in moves),
        "values": [_value(manifest, writers, move) for move in moves],
    }


def _value(manifest: Manifest, writers: Writers, move: TransferEntry) -> dict[str, Any]:
    named = set(move.readers)
    readers = [op for op in manifest.ops if op.id in named]
    own = [op for op in readers if op.kind not in CARRIERS]
    return {
        "value": move.value,
        "arrives_as": move.arrives_as,
        "kind": move.kind,
        "how": move.how,
        "producer": _producer(writers, move.value, len(manifest.stages)),
        "layers": sorted({op.layer for op in own if op.layer is not None}),
        "ops": [op.id for op in own if op.layer is None],
        "passed_on": sorted({op.stage for op in readers if op.kind in CARRIERS}),
        "bytes_per_token": move.bytes_per_token,
    }


def _producer(writers: Writers, value: str, stages: int) -> str | None:
    """The op that made a value in the first place, whatever carried it since; None where it came from outside."""
    for _ in range(stages):  # it was carried over fewer boundaries than there are stages
        op = writers.get(value)
        if op is None or op.kind not in CARRIERS:
            return op.id if op is not None else None
        value = op.reads["value"]
    return None


def overview(manifest: Manifest) -> Iterator[str]:
    """A line a boundary."""
    titles = [title(boundary) for boundary in data(manifest)]
    if titles:
        yield from aligned([("boundaries" if not number else "", line) for number, line in enumerate(titles)])


def lines(manifest: Manifest) -> Iterator[str]:
    """Every boundary with its values."""
    found = data(manifest)
    if not found:
        (stage,) = manifest.stages
        yield f"one stage, {layers(range(stage.first_layer, stage.end_layer))} on {stage.device}: nothing crosses"
    for boundary in found:
        yield title(boundary)
        if boundary["values"]:
            yield from aligned([_cells(value) for value in boundary["values"]])


def title(boundary: dict[str, Any]) -> str:
    """A boundary in a line."""
    count, total = counted(len(boundary["values"]), "value"), size(round(boundary["bytes_per_token"]))
    stages, places = f"{boundary['from_stage']} -> {boundary['to_stage']}", f"{boundary['from']} to {boundary['to']}"
    return f"{stages}, before layer {boundary['layer']}, {places}: {count}, {total} a token"


def _cells(value: dict[str, Any]) -> tuple[str, ...]:
    read = [layers(value["layers"])] if value["layers"] else []
    read += value["ops"]
    readers = [f"read by {', '.join(read)}"] if read else []
    readers += [f"passed on to stage {ranges(value['passed_on'])}"] if value["passed_on"] else []
    producer = value["producer"] if value["producer"] is not None else "fed"
    return f"  {value['value']}", value["how"], f"{value['bytes_per_token']:,.10g} B", producer, ", ".join(readers)
