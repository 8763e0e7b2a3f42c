"""Kernels: native or plain torch, how many calls of each a step makes, and which ops they cover."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from dsv41c.compiler.inspect.table import table
from dsv41c.kernels.catalog import CARRIERS
from dsv41c.kernels.fusion import NATIVE_VARIANT
from dsv41c.runtime.manifest import CallEntry, Manifest, RegionEntry
from dsv41c.words import counted, layers


def calls(region: RegionEntry, kinds: Mapping[str, str]) -> list[CallEntry]:
    """The calls of a region in order, each op by itself where the plan joins none; `kinds` of ops by id."""
    return region.calls or [CallEntry(kind=kinds[op], ops=[op]) for op in region.ops]


def data(manifest: Manifest) -> list[dict[str, Any]]:
    """Every kernel that the plan names, with its calls of a step."""
    ops = {op.id: op for op in manifest.ops}
    kinds = {op.id: op.kind for op in manifest.ops}
    made = Counter(call.kind for region in manifest.regions for call in calls(region, kinds))
    variant = NATIVE_VARIANT.get(manifest.target.family)
    found = []
    for entry in manifest.kernels:
        kind = entry.kernel.partition(".")[2]
        served = [ops[op] for op in entry.ops if op in ops]
        found.append(
            {
                "kernel": entry.kernel,
                "native": entry.kernel.partition(".")[0] == variant,
                "calls": made[kind],
                "ops": len(served),
                "op_kinds": list(dict.fromkeys(op.kind for op in served)),
                "layers": sorted({op.layer for op in served if op.layer is not None}),
                "outside": [op.id for op in served if op.layer is None],
            }
        )
    return found


def title(manifest: Manifest) -> str:
    """How many of them are native, and what they cover."""
    found = data(manifest)
    native = sum(kernel["native"] for kernel in found)
    count = sum(kernel["calls"] for kernel in found)
    carried = sum(op.kind in CARRIERS for op in manifest.ops)
    rest = f"; the runtime does {carried:,} between stages" if carried else ""
    kinds = f"{native} native, {len(found) - native} plain torch"
    return f"  {kinds}; {counted(count, 'call')} a step for {counted(len(manifest.ops) - carried, 'op')}{rest}"


def overview(manifest: Manifest) -> Iterator[str]:
    """A line a native kernel, and one for those of plain torch."""
    found = data(manifest)
    rows = [
        (kernel["kernel"], f"{kernel['calls']:,}", ", ".join(kernel["op_kinds"]))
        for kernel in found
        if kernel["native"]
    ]
    plain = [kernel for kernel in found if not kernel["native"]]
    if plain:
        kinds = dict.fromkeys(kind for kernel in plain for kind in kernel["op_kinds"])
        rows.append(("plain torch", f"{sum(kernel['calls'] for kernel in plain):,}", ", ".join(kinds)))
    yield from table("kernels", (">calls", "ops of a call"), rows)
    yield title(manifest)


def lines(manifest: Manifest) -> Iterator[str]:
    """The same with where each is called."""
    rows = [
        (
            kernel["kernel"],
            "native" if kernel["native"] else "torch",
            f"{kernel['calls']:,}",
            f"{kernel['ops']:,}",
            f"{', '.join(kernel['op_kinds'])}; {_places(kernel)}",
        )
        for kernel in data(manifest)
    ]
    yield from table("kernels", ("", ">calls", ">ops", "ops of a call; where"), rows)
    yield title(manifest)


def _places(kernel: dict[str, Any]) -> str:
    inside = [layers(kernel["layers"])] if kernel["layers"] else []
    return ", ".join((*inside, *kernel["outside"]))
