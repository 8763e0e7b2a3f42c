"""Whether devices have room for what a benchmark puts on them: weights and state of sessions, as manifests say."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping

import torch

from dsv41c.diagnostics import Diagnostic
from dsv41c.runtime.bench.options import BenchOptions
from dsv41c.runtime.bench.random_weights import held_bytes
from dsv41c.runtime.manifest import Manifest
from dsv41c.runtime.memory import pool_bytes
from dsv41c.runtime.shards import of_shard
from dsv41c.runtime.stages.layout import Layout
from dsv41c.runtime.stages.weights import used_by
from dsv41c.words import size


def too_large(parts: Iterable[tuple[Manifest, Mapping[int, str]]], options: BenchOptions) -> list[Diagnostic]:
    """Findings (DSV884) for devices too small for places of some plans, each of a device by its name on this host.

    What else takes memory is not known beforehand. Nothing is found where weights are a checkpoint's.
    """
    if options.weights is not None:
        return []
    needed: Counter[str] = Counter()
    for manifest, places in parts:
        for place, device in places.items():
            needed["cpu" if device.startswith("cpu") else device] += _bytes(manifest, place, options.stored_experts)
    help_text = "give `--stored-experts N`, or compile with a smaller `runtime.max_context` or `runtime.max_sessions`"
    found = []
    for device, wanted in needed.items():
        there = _memory(device)
        if there is not None and wanted > there:
            text = f"weights and state of this benchmark take {size(wanted)} of `{device}`, which has {size(there)}"
            found.append(Diagnostic("DSV884", text, help=help_text))
    return found


def _bytes(manifest: Manifest, place: int, stored: int | None) -> int:
    """Those of a place, or of one of the shards that share it."""
    layout = Layout.of(manifest)
    used = used_by(manifest, layout, (place,)).get(place, set())
    weights = [of_shard(entry) for entry in manifest.weights if entry.id in used]
    values = [value for value in manifest.values if value.device == layout.devices[place]]
    part = manifest.model_copy(update={"weights": weights, "values": values})
    return held_bytes(part, stored_experts=stored) + pool_bytes(part)


def _memory(device: str) -> int | None:
    """Bytes of a device's memory, free ones where that can be told; None where nothing can be."""
    if device == "cpu":
        pages = os.sysconf("SC_PHYS_PAGES") if "SC_PHYS_PAGES" in os.sysconf_names else 0
        return pages * os.sysconf("SC_PAGE_SIZE") if pages > 0 else None
    if not torch.cuda.is_available():
        return None
    return int(torch.cuda.mem_get_info(device.replace("rocm", "cuda"))[0])
