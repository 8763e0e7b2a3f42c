"""What a benchmark of several devices came to, as stable JSON keys and as tables.

Seconds are of the wall, bytes of a token. `bubble`: the share of the devices' time, together, in which none of their
stages was at work. `busy`: seconds a step or a prompt, by stage. `boundaries`: what crossed, and what the plan says.
`against`: the plan of one device that was run by turns with this one, or null; `time_ratio` is this plan's time by its.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from dsv41c.runtime.bench.measure import Spread
from dsv41c.runtime.bench.report import machine
from dsv41c.runtime.bench.stages import Measured, StagesCell, StagesPrompt, StagesResult
from dsv41c.runtime.manifest import Manifest

FORMAT = "dsv41c.bench.stages/1.1"


def data(result: StagesResult) -> dict[str, Any]:
    """The result as plain data for JSON."""
    manifest, options = result.manifest, result.options
    return {
        "format": FORMAT,
        "label": options.label,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(manifest),
        "plan": _plan(manifest),
        "against": None if result.against is None else _plan(result.against),
        "processes": result.processes,
        "weights": {
            "source": "random" if options.weights is None else "checkpoint",
            "seed": options.seed,
            "stored_experts": options.stored_experts,
            "seconds": result.load_seconds,
        },
        "cells": [_cell(cell) for cell in result.cells],
        "prefill": [_prompt(found, manifest.runtime.prefill_chunk) for found in result.prompts],
        "skipped": result.skipped,
    }


def _plan(manifest: Manifest) -> dict[str, Any]:
    return {
        "name": manifest.name,
        "family": manifest.target.family,
        "spec_sha256": manifest.spec_sha256,
        "graph_sha256": manifest.graph_sha256,
        "runtime": manifest.runtime.model_dump(),
        "tensor_parallel": manifest.target.tensor_parallel,
        "stages": [
            {"stage": entry.index, "device": entry.device, "layers": [entry.first_layer, entry.end_layer]}
            for entry in manifest.stages
        ],
    }


def _prompt(found: StagesPrompt, chunk: int) -> dict[str, Any]:
    def arm(kind: str, measured: Measured) -> dict[str, Any]:
        return {**_read(found, measured), **_shares(measured), **_against(measured, found.against.get(kind))}

    arms = {kind: arm(kind, measured) for kind, measured in found.kinds.items()}
    against = {kind: _read(found, measured) for kind, measured in found.against.items()}
    return {"tokens": found.prompt.tokens, "chunk": chunk, "arms": arms, "against": against}


def _read(found: StagesPrompt, measured: Measured) -> dict[str, Any]:
    taken = Spread.of(measured.seconds)
    return {"seconds": taken.data(), "tokens_per_second": found.prompt.tokens / taken.median}


def _against(measured: Measured, other: Measured | None) -> dict[str, Any]:
    if other is None:
        return {}
    pairs = zip(measured.seconds, other.seconds, strict=True)
    return {"time_ratio": Spread.of([seconds / others for seconds, others in pairs]).data()}


def _cell(cell: StagesCell) -> dict[str, Any]:
    def arm(name: str, measured: Measured) -> dict[str, Any]:
        taken = Spread.of(measured.seconds)
        return {
            "ms_per_step": Spread(taken.median * 1e3, taken.iqr * 1e3).data(),
            "tokens_per_second": cell.cell.batch / taken.median,
            **({} if name == "against" else {**_shares(measured), **_against(measured, cell.arms.get("against"))}),
        }

    pairs = zip(cell.arms["one"].seconds, cell.arms["filled"].seconds, strict=True)
    return {
        "batch": cell.cell.batch,
        "context": cell.cell.context,
        "in_flight": cell.in_flight,
        "arms": {name: arm(name, measured) for name, measured in cell.arms.items()},
        "speedup": Spread.of([one / filled for one, filled in pairs]).data(),
        "boundaries": [
            {"stage": moved.stage, "bytes_per_token": moved.measured, "said": moved.said} for moved in cell.moved
        ],
    }


def _shares(measured: Measured) -> dict[str, Any]:
    return {
        "bubble": Spread.of(measured.bubbles).data(),
        "busy": {str(stage): Spread.of([busy[stage] for busy in measured.busy]).median for stage in measured.busy[0]},
    }


def text(found: dict[str, Any]) -> str:
    """The data as tables."""
    plan, processes = found["plan"], found["processes"]
    stages = ", ".join(
        f"{s['stage']} on {s['device']}: layers {s['layers'][0]}-{s['layers'][1] - 1}" for s in plan["stages"]
    )
    started = "one process" if processes == 1 else f"{processes} processes"
    lines = [
        f"{plan['name']} on {found['machine']['device']}: {started}",
        f"  stages {stages}",
    ]
    if found["against"] is not None:
        lines.append(f"  by turns with a plan on one device: {found['against']['name']} (`of one`: time by its time)")
    for cell in found["cells"]:
        lines += ["", f"batch {cell['batch']}, context {cell['context']}", _HEAD]
        names = {"one": "one", "filled": f"{cell['in_flight']} in flight", "against": "one device"}
        lines += [_row(names[name], arm["ms_per_step"], "ms", arm) for name, arm in cell["arms"].items()]
        lines.append(f"  tokens a second, filled by one: {cell['speedup']['median']:.3f}")
        for moved in cell["boundaries"]:
            lines.append(
                f"  into stage {moved['stage']}: {moved['bytes_per_token']:,.0f} bytes a token,"
                f" the plan says {moved['said']:,.0f}"
            )
    for prompt in found["prefill"]:
        lines += ["", f"a prompt of {prompt['tokens']} tokens in chunks of {prompt['chunk']}", _HEAD]
        lines += [_row(name, arm["seconds"], "s", arm) for name, arm in prompt["arms"].items()]
        lines += [_row(f"{name}, one", arm["seconds"], "s", arm) for name, arm in prompt["against"].items()]
    lines += [f"not measured for lack of time: {name}" for name in found["skipped"]]
    return "\n".join(lines) + "\n"


_HEAD = f"  {'':12} {'time':>12} {'iqr':>8} {'tokens/s':>10} {'of one':>8} {'bubble':>8}  busy by stage"


def _row(name: str, taken: dict[str, float], unit: str, arm: dict[str, Any]) -> str:
    """A way to run; `of one`: its time by that of the plan on one device."""
    scale = 1e3 if unit == "ms" else 1.0
    ratio = f"{arm['time_ratio']['median']:.3f}" if "time_ratio" in arm else ""
    line = (
        f"  {name:12} {taken['median']:9.3f} {unit:2} {taken['iqr']:8.3f} {arm['tokens_per_second']:10.1f} {ratio:>8}"
    )
    if "busy" not in arm:
        return line.rstrip()
    busy = ", ".join(f"{seconds * scale:.3f}" for seconds in arm["busy"].values())
    return f"{line} {100 * arm['bubble']['median']:6.1f} %  {busy} {unit}"
