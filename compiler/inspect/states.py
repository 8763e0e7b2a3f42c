"""States by kind: how many there are, who makes them, bytes a token and a session, and where they live."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from math import prod
from typing import Any

from dsv41c.compiler.inspect.table import table
from dsv41c.kernels.catalog import CARRIERS, DTYPE_BYTES
from dsv41c.runtime.manifest import Manifest, OpEntry, ValueEntry
from dsv41c.runtime.memory import pools, ratios, slots
from dsv41c.words import layers, ranges, size


def data(manifest: Manifest) -> dict[str, Any]:
    """Every pool of session state, the values of a step, both with who makes and reads them, and totals by kind."""
    ends = _Ends(manifest)
    versions: dict[str, list[ValueEntry]] = defaultdict(list)
    for value in manifest.values:
        versions[value.storage or value.id].append(value)
    groups, count = ratios(manifest), slots(manifest)
    held = [_pool(pool, versions[pool.id], ends, groups.get(pool.id), count) for pool in pools(manifest)]
    step = [
        {**_entry(value, [value], ends), "bytes_per_token": value.bytes}
        for value in manifest.values
        if value.scope == "step"
    ]
    return {"kinds": [*_held_kinds(held), *_step_kinds(step)], "held": held, "step": step}


class _Ends:
    """The ops that write and that read each value, by its id."""

    def __init__(self, manifest: Manifest) -> None:
        self.writers: dict[str, list[OpEntry]] = defaultdict(list)
        self.readers: dict[str, list[OpEntry]] = defaultdict(list)
        for op in manifest.ops:
            for value in op.writes.values():
                self.writers[value].append(op)
            for value in op.reads.values():
                self.readers[value].append(op)


def _pool(pool: ValueEntry, versions: list[ValueEntry], ends: _Ends, group: int | None, count: int) -> dict[str, Any]:
    """A pool of `count` slots; `group`: tokens of a row, where it has one for each group."""
    row = prod(int(width) for width in pool.shape[1:]) * DTYPE_BYTES[pool.dtype]
    return {
        **_entry(pool, versions, ends),
        "mirror": any(op.kind in CARRIERS for value in versions for op in ends.writers[value.id]),
        "bytes_per_token": row / group if group is not None else 0,
        "bytes_per_session": pool.bytes,
        "bytes": pool.bytes * count,
    }


def _entry(value: ValueEntry, versions: Iterable[ValueEntry], ends: _Ends) -> dict[str, Any]:
    made, read = (
        list(dict.fromkeys(op.id for version in versions for op in side[version.id]))
        for side in (ends.writers, ends.readers)
    )
    return {
        "id": value.id,
        "kind": value.kind,
        "layer": value.layer,
        "shape": value.shape,
        "dtype": value.dtype,
        "stage": value.stage,
        "device": value.device,
        "producers": made,
        "readers": read,
    }


def _held_kinds(held: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for (kind, mirror), found in _grouped(held, "kind", "mirror"):
        yield {
            **_kind(kind, "session", found),
            "mirror": mirror,
            **{key: sum(pool[key] for pool in found) for key in ("bytes_per_token", "bytes_per_session", "bytes")},
        }


def _step_kinds(step: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for (kind,), found in _grouped(step, "kind"):
        sizes = [value["bytes_per_token"] for value in found]
        yield {**_kind(kind, "step", found), "smallest_per_token": min(sizes), "largest_per_token": max(sizes)}


def _kind(kind: str, scope: str, found: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "kind": kind,
        "scope": scope,
        "count": len(found),
        "layers": sorted({value["layer"] for value in found if value["layer"] is not None}),
        "stages": sorted({value["stage"] for value in found}),
        "devices": list(dict.fromkeys(value["device"] for value in found)),
    }


def _grouped(entries: list[dict[str, Any]], *keys: str) -> list[tuple[tuple[Any, ...], list[dict[str, Any]]]]:
    found: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for entry in entries:
        found[tuple(entry[key] for key in keys)].append(entry)
    return list(found.items())


# --- text -------------------------------------------------------------------------------------------------------------


def overview(manifest: Manifest) -> Iterator[str]:
    """A line a kind, with totals."""
    kinds = data(manifest)["kinds"]
    held = [kind for kind in kinds if kind["scope"] == "session"]
    rows = [(_name(kind), f"{kind['count']:,}", *_sizes(kind), _layers(kind), _stages(kind)) for kind in held]
    totals = {
        key: sum(kind[key] for kind in held) for key in ("count", "bytes_per_token", "bytes_per_session", "bytes")
    }
    rows.append(("in all", f"{totals['count']:,}", *_sizes(totals), "", ""))
    yield from table("state held", (">count", ">a token", ">a session", ">pools", "made by", "on"), rows)
    yield ""
    step = [kind for kind in kinds if kind["scope"] == "step"]
    values = [(kind["kind"], f"{kind['count']:,}", _range(kind), _layers(kind), _stages(kind)) for kind in step]
    yield from table("values of a step", (">count", ">a token, each", "made by", "on"), values)


def _name(kind: dict[str, Any]) -> str:
    return f"{kind['kind']}, mirrored" if kind["mirror"] else str(kind["kind"])


def _sizes(found: dict[str, Any]) -> tuple[str, str, str]:
    rate = f"{found['bytes_per_token']:,.10g} B" if found["bytes_per_token"] else "fixed"
    return rate, size(found["bytes_per_session"]), size(found["bytes"])


def _range(kind: dict[str, Any]) -> str:
    low, high = kind["smallest_per_token"], kind["largest_per_token"]
    return f"{high:,} B" if low == high else f"{low:,} to {high:,} B"


def _layers(kind: dict[str, Any]) -> str:
    return layers(kind["layers"]) if kind["layers"] else "outside layers"


def _stages(kind: dict[str, Any]) -> str:
    return f"stage{'s' if len(kind['stages']) > 1 else ''} {ranges(kind['stages'])}"


def lines(manifest: Manifest) -> Iterator[str]:
    """A line each."""
    found = data(manifest)
    ops = {op.id: op for op in manifest.ops}
    yield from overview(manifest)
    yield ""
    rows = [(pool["id"], *_form(pool), *_sizes(pool)[:2], _told(ops, pool)) for pool in found["held"]]
    yield from table("state held", ("on", "shape", ">a token", ">a session", "made by -> read by"), rows)
    yield ""
    values = [
        (value["id"], *_form(value), f"{value['bytes_per_token']:,} B", _told(ops, value))
        for value in found["step"]
        if value["kind"] != "temporary"
    ]
    yield from table("values of a step", ("on", "shape", ">a token", "made by -> read by"), values)
    hidden = sum(value["kind"] == "temporary" for value in found["step"])
    yield f"  and {hidden:,} temporary ones; --json lists them"


def _form(value: dict[str, Any]) -> tuple[str, str]:
    return value["device"], f"{value['dtype']} [{', '.join(map(str, value['shape']))}]"


def _told(ops: dict[str, OpEntry], value: dict[str, Any]) -> str:
    made, read = ([ops[op] for op in value[key]] for key in ("producers", "readers"))
    carried = [op.kind for op in made if op.kind in CARRIERS]
    return f"{', '.join(carried) or _ops(made) or 'fed'} -> {_ops(read) or 'nobody'}"


def _ops(ops: list[OpEntry]) -> str:
    """`layers 2-7, stage 1`: who they are; those outside of layers by name."""
    inside = {op.layer for op in ops if op.layer is not None}
    carried = {op.stage for op in ops if op.kind in CARRIERS}
    words = [layers(inside)] if inside else []
    words += dict.fromkeys(op.id for op in ops if op.layer is None and op.kind not in CARRIERS)
    words += [f"to stage {ranges(carried)}"] if carried else []
    return ", ".join(words)
