"""Capture: which regions of a decode step are one graph, how many graphs there are, and what prompts do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dsv41c.compiler.inspect.kernels import calls
from dsv41c.compiler.inspect.table import table
from dsv41c.runtime.manifest import Manifest
from dsv41c.runtime.work_space import captured_together, captures, contexts, decode_sizes, rows_from_host
from dsv41c.words import counted, joined


def data(manifest: Manifest) -> dict[str, Any]:
    """What is captured, and every region with the graph that it is in."""
    parts, kinds = captured_together(manifest), {op.id: op.kind for op in manifest.ops}
    graph_of = {index: number for number, part in enumerate(parts) for index in part}
    sizes, lengths = decode_sizes(manifest), contexts(manifest)
    captured = captures(manifest)
    return {
        "capture": manifest.runtime.capture,
        "captured": captured,
        "graphs_per_step": len(parts) if captured else 0,
        "buckets": list(sizes) if captured else [],
        "contexts": list(lengths) if captured else [],
        "graphs_in_all": len(parts) * len(sizes) * len(lengths) if captured else 0,
        "graphs": [_graph(manifest, part, kinds) for part in parts],
        "regions": [
            {
                "id": region.id,
                "function": region.function,
                "stage": region.stage,
                "graph": graph_of.get(index),
                "ops": len(region.ops),
                "calls": len(calls(region, kinds)),
                "tail_rows": region.tail_rows,
                "span": region.span,
            }
            for index, region in enumerate(manifest.regions)
        ],
    }


def _graph(manifest: Manifest, part: range, kinds: Mapping[str, str]) -> dict[str, Any]:
    inside = [manifest.regions[index] for index in part]
    rows = any(kinds[op] == "engram_rows" for region in inside for op in region.ops)
    return {
        "stage": inside[0].stage,
        "first": inside[0].id,
        "last": inside[-1].id,
        "regions": len(inside),
        "ops": sum(len(region.ops) for region in inside),
        "calls": sum(len(calls(region, kinds)) for region in inside),
        "rows_from_host": rows and rows_from_host(manifest),
    }


# --- text -------------------------------------------------------------------------------------------------------------


def overview(manifest: Manifest) -> Iterator[str]:
    """What is captured, in a few lines."""
    found = data(manifest)
    yield f"capture  {found['capture']}, {counted(len(found['regions']), 'region')}"
    yield from (f"  {line}" for line in _decode(found))
    yield f"  prefill  runs eagerly, in chunks of {manifest.runtime.prefill_chunk:,} tokens{_tails(found)}"


def _decode(found: dict[str, Any]) -> Iterator[str]:
    if not found["graphs"]:
        yield "decode   runs eagerly"
        return
    if not found["captured"]:
        parts = counted(len(found["graphs"]), "graph")
        yield f"decode   is not captured on a CPU; strict mode holds {parts} a step to the rules"
        return
    waiting = sum(graph["rows_from_host"] for graph in found["graphs"])
    buckets, lengths = joined([f"{size:,}" for size in found["buckets"]], "or"), len(found["contexts"])
    yield f"decode   {counted(found['graphs_per_step'], 'graph')} a step, for {buckets} rows" + (
        f" and {lengths} lengths of context" if lengths > 1 else ", whatever the context"
    )
    yield f"         {counted(found['graphs_in_all'], 'graph')} in all, made when a session first needs them"
    if waiting:
        yield f"         {waiting} of a step's graphs wait for engram rows from the host"


def _tails(found: dict[str, Any]) -> str:
    fewer = [region for region in found["regions"] if region["tail_rows"] is not None]
    return f"; with the exact tail, {counted(len(fewer), 'region')} compute less" if fewer else ""


def lines(manifest: Manifest) -> Iterator[str]:
    """The same, and every region."""
    found = data(manifest)
    yield from overview(manifest)
    yield ""
    rows = [
        (
            region["id"],
            str(region["stage"]),
            "-" if region["graph"] is None else str(region["graph"]),
            str(region["ops"]),
            str(region["calls"]),
            "every" if region["tail_rows"] is None else f"last {region['tail_rows']:,}",
            region["span"],
        )
        for region in found["regions"]
    ]
    names = (">stage", ">graph", ">ops", ">calls", ">prompt rows", "place in the spec")
    yield from table("regions", names, rows)
