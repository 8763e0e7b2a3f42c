"""What a benchmark came to, as stable JSON keys and as tables for people.

Rates are bytes or operations a second, times are seconds unless the key says `ms`, sizes are bytes. `floor_fraction` is
the time that the bytes of a step need at `bandwidth.best` (of a prompt: its operations at `matmul`) by the median time
that it took: 1 is the floor. Peaks are those of getting the first arm ready for a cell, when no other arm's weights and
no buffers for bandwidth are there. `row_cache` has rows of engram tables that were looked up, each once a step, and the
share that was in memory; it is null where whole tables are. Where a device cannot have a thing, it is null.

Where the host reads rows of engram tables (`engram.storage` is `mapped` or `disk`, and `host` where no kernel reads
them), a step of `layer`, `all` or `eager` is timed as one of an engine: it begins when the one before is over, as its
tokens are not known sooner, and its rows are read while its first layers run. `torch` reads them when it gets there.
"""

from __future__ import annotations

import platform
import re
from collections import Counter
from datetime import UTC, datetime
from statistics import fmean, median
from typing import Any

import torch

from dsv41c import __version__
from dsv41c.runtime.bench.bytes import Moved
from dsv41c.runtime.bench.cell import ArmResult, CellResult
from dsv41c.runtime.bench.measure import Spread
from dsv41c.runtime.bench.prompts import PromptResult
from dsv41c.runtime.bench.run import BenchResult
from dsv41c.runtime.bench.torch_arm import NOTE
from dsv41c.runtime.manifest import Manifest
from dsv41c.runtime.weights.row_cache import Lookups

FORMAT = "dsv41c.bench/1.0"
NOTES = (
    "synthetic state and ids; no sampler and no scheduler",
    NOTE,
    "bytes are a floor: weights once as stored, distinct experts once, visible and selected rows, written rows",
)


def data(result: BenchResult) -> dict[str, Any]:
    """The result as plain data for JSON."""
    options, bandwidth = result.options, result.bandwidth
    return {
        "format": FORMAT,
        "label": options.label,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(result.manifest),
        "plan": _plan(result.manifest),
        "weights": {
            "source": "random" if options.weights is None else "checkpoint",
            "seed": options.seed,
            "stored_experts": options.stored_experts,
            "seconds": result.load_seconds,
        },
        "memory": {
            "predicted_bytes": result.memory.predicted,
            "held_bytes": result.memory.held,
            "peak_bytes": result.memory.peak,
        },
        "bandwidth": None if bandwidth is None else bandwidth.data(),
        "matmul": result.matmul,
        "cells": [cell_data(result, cell) for cell in result.cells],
        "prefill": [_prompt(result, prompt) for prompt in result.prompts],
        "skipped": result.skipped,
        "notes": list(NOTES),
    }


def machine(manifest: Manifest) -> dict[str, Any]:
    """Device and versions."""
    on_gpu = manifest.target.family != "cpu"
    return {
        "device": torch.cuda.get_device_name(0) if on_gpu else platform.processor() or platform.machine(),
        "dsv41c": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": _triton() if on_gpu else None,
        "cuda": torch.version.cuda if on_gpu else None,
        "hip": torch.version.hip if on_gpu else None,
    }


def _triton() -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("triton")
    except PackageNotFoundError:
        return None


def _plan(manifest: Manifest) -> dict[str, Any]:
    kernels = Counter(entry.kernel.partition(".")[0] for entry in manifest.kernels)
    return {
        "name": manifest.name,
        "family": manifest.target.family,
        "layers": manifest.model.n_layers,
        "spec_sha256": manifest.spec_sha256,
        "graph_sha256": manifest.graph_sha256,
        "numerics": manifest.numerics.model_dump(),
        "runtime": manifest.runtime.model_dump(),
        "kernels": dict(sorted(kernels.items())),
    }


def cell_data(result: BenchResult, cell: CellResult) -> dict[str, Any]:
    """One cell; fractions of the floor are by what the bandwidth is known to be so far."""
    whole = cell.moved.whole()
    return {
        "batch": cell.cell.batch,
        "context": cell.cell.context,
        "rounds": result.options.rounds,
        "bytes": _bytes(whole),
        "layers": [
            {
                "layer": layer,
                **_bytes(moved),
                "distinct_experts": cell.distinct.get(layer) if layer is not None else None,
            }
            for layer, moved in sorted(cell.moved.layers.items(), key=lambda item: -1 if item[0] is None else item[0])
        ],
        "distinct_experts": fmean(cell.distinct.values()) if cell.distinct else None,
        "arms": {name: _arm(result, cell, arm) for name, arm in cell.arms.items()},
        "ratios": {name: spread.data() for name, spread in cell.ratios.items()},
        "launches": _launches(cell),
        "kernels": _kernels(cell),
        "peak_bytes": cell.peak_bytes,
        "row_cache": _row_cache(cell.row_cache),
    }


def _row_cache(found: Lookups | None) -> dict[str, Any] | None:
    return None if found is None else {"hits": found.hits, "misses": found.misses, "hit_rate": found.rate}


def _bytes(moved: Moved) -> dict[str, float]:
    return {"total": moved.total, **moved.parts()}


def _arm(result: BenchResult, cell: CellResult, arm: ArmResult | None) -> dict[str, Any] | None:
    if arm is None:
        return None
    taken = Spread.of(arm.seconds)
    return {
        "ms_per_step": Spread(taken.median * 1e3, taken.iqr * 1e3).data(),
        "tokens_per_second": cell.cell.batch / taken.median,
        "floor_fraction": floor_fraction(result, cell, arm),
        "graphs": arm.graphs,
        "capture_seconds": arm.capture_seconds,
        "steps": arm.steps,
        "apart": arm.apart,
    }


def floor_fraction(result: BenchResult, cell: CellResult, arm: ArmResult) -> float:
    """The time that the bytes of a step need at the best bandwidth, by the median time of a step."""
    assert result.bandwidth is not None, "bandwidth is measured before any cell"
    return cell.moved.whole().total / result.bandwidth.best / median(arm.seconds)


def _launches(cell: CellResult) -> dict[str, Any] | None:
    if cell.launches is None:
        return None
    # A layer that shares its graph, as the first one does with the embedding, is not counted.
    layers = [count for name, count in cell.launches.items() if re.fullmatch(r"layers\.\d+", name)]
    return {
        "step": sum(cell.launches.values()),
        "per_layer": Spread.of(layers).median if layers else None,
        "parts": cell.launches,
    }


def _kernels(cell: CellResult) -> list[dict[str, Any]] | None:
    times = cell.kernels
    if times is None:
        return None
    return [
        {
            "name": kernel.name,
            "count": kernel.count,
            "ms": kernel.seconds * 1e3,
            "share": kernel.seconds / times.seconds,
        }
        for kernel in times.kernels
    ]


def _prompt(result: BenchResult, prompt: PromptResult) -> dict[str, Any]:
    def kind(name: str) -> dict[str, Any]:
        taken, flops = Spread.of(prompt.seconds[name]), prompt.flops[name]
        return {
            "seconds": taken.data(),
            "tokens_per_second": prompt.prompt.tokens / taken.median,
            "flops": flops,
            "floor_fraction": None if result.matmul is None else flops / result.matmul / taken.median,
        }

    return {
        "tokens": prompt.prompt.tokens,
        "chunk": prompt.chunk,
        "arms": {name: kind(name) for name in prompt.seconds},
        "ratios": {name: spread.data() for name, spread in prompt.ratios.items()},
        "row_cache": _row_cache(prompt.row_cache),
    }


_KERNELS = 25  # as many a table shows; JSON has all

# --- for people -------------------------------------------------------------------------------------------------------


def text(found: dict[str, Any]) -> str:
    """The data as tables."""
    plan, machine_data, rates, memory = found["plan"], found["machine"], found["bandwidth"], found["memory"]
    weights = found["weights"]
    kept = f", {weights['stored_experts']} experts stored" if weights["stored_experts"] is not None else ""
    lines = [
        f"{plan['name']} on {machine_data['device']}: {plan['layers']} layers, {weights['source']} weights{kept}",
        f"  copy {_rate(rates['copy'])}, read {_rate(rates['read'])}, "
        f"drift {100 * rates['drift']:.1f} %{'' if rates['steady'] else ': NOT STEADY, run it again'}",
        f"  memory: {_bytes_text(memory['predicted_bytes'])} predicted"
        + (f", {_bytes_text(memory['held_bytes'])} held" if memory["held_bytes"] is not None else "")
        + (f", {_bytes_text(memory['peak_bytes'])} at most" if memory["peak_bytes"] is not None else ""),
    ]
    for cell in found["cells"]:
        lines += ["", *cell_lines(cell)]
    for prompt in found["prefill"]:
        lines += ["", *_prompt_lines(prompt)]
    lines += ["", *(f"not measured for lack of time: {name}" for name in found["skipped"])]
    return "\n".join([*lines, *(f"note: {note}" for note in found["notes"])]).strip() + "\n"


def cell_lines(cell: dict[str, Any]) -> list[str]:
    """One cell as a table."""
    parts = cell["bytes"]
    caches = parts["total"] - parts["weights"] - parts["experts"] - parts["table_rows"]
    experts = "" if cell["distinct_experts"] is None else f"; {cell['distinct_experts']:.1f} experts a layer"
    lines = [
        f"batch {cell['batch']}, context {cell['context']}: {_bytes_text(parts['total'])} a step (weights"
        f" {_bytes_text(parts['weights'])}, experts {_bytes_text(parts['experts'])}, caches {_bytes_text(caches)})"
        + experts,
        f"  {'arm':6} {'ms/step':>10} {'iqr':>8} {'tokens/s':>10} {'floor':>7} {'graphs':>7} {'capture':>9}"
        f" {'apart':>9}",
    ]
    for name, arm in cell["arms"].items():
        if arm is None:
            lines.append(f"  {name:6} {'-':>10}")
            continue
        taken = arm["ms_per_step"]
        capture = "-" if arm["capture_seconds"] is None else f"{arm['capture_seconds']:.2f} s"
        apart = "-" if arm["apart"] is None else f"{arm['apart']:.1e}"
        lines.append(
            f"  {name:6} {taken['median']:10.3f} {taken['iqr']:8.3f} {arm['tokens_per_second']:10.1f}"
            f" {100 * arm['floor_fraction']:5.1f} % {arm['graphs'] or '-':>7} {capture:>9} {apart:>9}"
        )
    for name, spread in cell["ratios"].items():
        lines.append(f"  {name}: {spread['median']:.3f} (iqr {spread['iqr']:.3f})")
    lines += _row_cache_lines(cell)
    if cell["launches"] is not None:
        layer = cell["launches"]["per_layer"]
        lines.append(f"  launches: {cell['launches']['step']} a step" + (f", {layer:g} a layer" if layer else ""))
    for kernel in (cell["kernels"] or [])[:_KERNELS]:
        lines.append(f"  {100 * kernel['share']:5.1f} % {kernel['ms']:9.3f} ms {kernel['count']:5} x {kernel['name']}")
    return lines


def _prompt_lines(prompt: dict[str, Any]) -> list[str]:
    lines = [
        f"a prompt of {prompt['tokens']} tokens in chunks of {prompt['chunk']}",
        f"  {'rows':6} {'seconds':>10} {'iqr':>8} {'tokens/s':>10} {'floor':>7} {'GFLOP/token':>12}",
    ]
    for name, arm in prompt["arms"].items():
        taken, each = arm["seconds"], arm["flops"] / prompt["tokens"] / 1e9
        lines.append(
            f"  {name:6} {taken['median']:10.3f} {taken['iqr']:8.3f} {arm['tokens_per_second']:10.1f}"
            f" {100 * arm['floor_fraction']:5.1f} % {each:12.2f}"
        )
    lines += [f"  {name}: {spread['median']:.3f}" for name, spread in prompt["ratios"].items()]
    return lines + _row_cache_lines(prompt)


def _row_cache_lines(found: dict[str, Any]) -> list[str]:
    cache = found["row_cache"]
    if cache is None or cache["hit_rate"] is None:
        return []
    return [f"  engram rows: {100 * cache['hit_rate']:.1f} % of {cache['hits'] + cache['misses']:,} were in the cache"]


def _rate(rate: float) -> str:
    return f"{rate / 1e9:,.1f} GB/s"


def _bytes_text(count: float) -> str:
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if count >= scale:
            return f"{count / scale:.2f} {unit}"
    return f"{count:.0f} B"
