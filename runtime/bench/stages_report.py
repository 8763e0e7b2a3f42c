"""What a benchmark of several devices came to, as stable JSON keys and as tables.

Seconds are of the wall, bytes of a token. `bubble`: the share of the devices' time, together, in which none of their
stages was at work. `busy`: seconds a step or a prompt, by stage. `boundaries`: what crossed, and what the plan says.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from dsv41c.runtime.bench.measure import Spread
from dsv41c.runtime.bench.report import machine
from dsv41c.runtime.bench.stages import Measured, StagesCell, StagesResult

FORMAT = "dsv41c.bench.stages/1.0"


def data(result: StagesResult) -> dict[str, Any]:
    """The result as plain data for JSON."""
    manifest, options = result.manifest, result.options
    return {
        "format": FORMAT,
        "label": options.label,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(manifest),
        "plan": {
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
        },
        "processes": result.processes,
        "weights": {"seed": options.seed, "stored_experts": options.stored_experts, "seconds": result.load_seconds},
        "cells": [_cell(cell) for cell in result.cells],
        "prefill": [
            {
                "tokens": prompt.tokens,
                "chunk": manifest.runtime.prefill_chunk,
                "arms": {
                    kind: {
                        "seconds": Spread.of(measured.seconds).data(),
                        "tokens_per_second": prompt.tokens / Spread.of(measured.seconds).median,
                        **_shares(measured),
                    }
                    for kind, measured in kinds.items()
                },
            }
            for prompt, kinds in result.prompts
        ],
        "skipped": result.skipped,
    }


def _cell(cell: StagesCell) -> dict[str, Any]:
    def arm(measured: Measured) -> dict[str, Any]:
        taken = Spread.of(measured.seconds)
        return {
            "ms_per_step": Spread(taken.median * 1e3, taken.iqr * 1e3).data(),
            "tokens_per_second": cell.cell.batch / taken.median,
            **_shares(measured),
        }

    pairs = zip(cell.one.seconds, cell.filled.seconds, strict=True)
    return {
        "batch": cell.cell.batch,
        "context": cell.cell.context,
        "in_flight": cell.in_flight,
        "arms": {"one": arm(cell.one), "filled": arm(cell.filled)},
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
    for cell in found["cells"]:
        lines += ["", f"batch {cell['batch']}, context {cell['context']}", _HEAD]
        lines += [
            _row(name if name == "one" else f"{cell['in_flight']} in flight", arm["ms_per_step"], "ms", arm)
            for name, arm in cell["arms"].items()
        ]
        lines.append(f"  tokens a second, filled by one: {cell['speedup']['median']:.3f}")
        for moved in cell["boundaries"]:
            lines.append(
                f"  into stage {moved['stage']}: {moved['bytes_per_token']:,.0f} bytes a token,"
                f" the plan says {moved['said']:,.0f}"
            )
    for prompt in found["prefill"]:
        lines += ["", f"a prompt of {prompt['tokens']} tokens in chunks of {prompt['chunk']}", _HEAD]
        lines += [_row(name, arm["seconds"], "s", arm) for name, arm in prompt["arms"].items()]
    lines += [f"not measured for lack of time: {name}" for name in found["skipped"]]
    return "\n".join(lines) + "\n"


_HEAD = f"  {'':12} {'time':>12} {'iqr':>8} {'tokens/s':>10} {'bubble':>8}  busy by stage"


def _row(name: str, taken: dict[str, float], unit: str, arm: dict[str, Any]) -> str:
    scale = 1e3 if unit == "ms" else 1.0
    busy = ", ".join(f"{seconds * scale:.3f}" for seconds in arm["busy"].values())
    return (
        f"  {name:12} {taken['median']:9.3f} {unit:2} {taken['iqr']:8.3f} {arm['tokens_per_second']:10.1f}"
        f" {100 * arm['bubble']['median']:6.1f} %  {busy} {unit}"
    )
