"""What the exact tail saves: a long prompt with and without it, by turns in one run, as a ratio.

    python tests/bench/exact_tail.py [--tokens 960] [--layers 8,24] [--repeat 3] [--json FILE]

The toy model, and the toy with more layers behind its last KV source, on random weights. `rows` is the share of rows
that the regions compute, `seconds` that of the time; seconds themselves mean nothing on another machine.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dsv41c.runtime.engine import Engine

TOY_LAYERS = 8


def grown_toy(layers: int, tokens: int) -> str:
    """The toy with its last layers continued, and room for a prompt."""
    spec = {
        "extends": "toy",
        "model": {"n_layers": layers},
        "layers": {"compress_ratios": {"0-1": 0, "2-4": 2, f"5-{layers - 1}": 1}},
        "placement": {"layer_ends": [layers]},
        "runtime": {"max_context": tokens, "max_sessions": 1, "prefill_chunk": 64},
    }
    return json.dumps(spec)


def engines(layers: int, tokens: int, folder: Path) -> tuple[Engine, Engine]:
    """Engines of one plan on the same weights: with the exact tail, and without."""
    from dsv41c.compiler.importing.hf_config import to_hf_config
    from dsv41c.compiler.plan import compile_spec, write_plan
    from dsv41c.compiler.spec import load
    from dsv41c.runtime.engine import Engine
    from dsv41c.runtime.plan import load_plan
    from dsv41c.runtime.synth import synth

    file = folder / "toy.yaml"
    file.write_text(grown_toy(layers, tokens))
    loaded = load(str(file))
    assert loaded.spec is not None, loaded.diagnostics
    write_plan(compile_spec(loaded), folder / "plan")
    plan = load_plan(folder / "plan")
    synth(plan.manifest, to_hf_config(loaded.spec), folder / "checkpoint")
    tail = Engine(plan, folder / "checkpoint")
    return tail, Engine(plan, folder / "checkpoint", weights=tail.weights, tail="every")


def seconds(engine: Engine, tokens: Sequence[int]) -> float:
    """Wall seconds of one prompt."""
    with engine.open() as session:
        start = time.perf_counter()
        session.feed(tokens)
        return time.perf_counter() - start


def share_of_rows(engine: Engine, tokens: int) -> float:
    """Rows that the regions of layers compute, of all rows."""
    tails = [region.tail_rows for region in engine.manifest.regions if region.id.startswith("layers.")]
    return sum(tokens if rows is None else min(tokens, rows) for rows in tails) / (tokens * len(tails))


def measured(layers: int, tokens: int, repeat: int) -> dict[str, float]:
    """Median seconds of both by turns, after one round that is not counted, and what the tail saves."""
    with tempfile.TemporaryDirectory() as name:
        tail, full = engines(layers, tokens, Path(name))
        prompt = [(7 * position) % 500 + 3 for position in range(tokens)]
        times = [(seconds(tail, prompt), seconds(full, prompt)) for _ in range(repeat + 1)][1:]
    ours, theirs = (statistics.median(taken) for taken in zip(*times, strict=True))
    return {"tail": ours, "every": theirs, "ratio": ours / theirs, "rows": share_of_rows(tail, tokens)}


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tokens", type=int, default=960)
    parser.add_argument("--layers", default=f"{TOY_LAYERS},24", help=f"sizes of the toy, {TOY_LAYERS} or more")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--json", metavar="FILE", help="write the numbers as JSON")
    arguments = parser.parse_args(argv)
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # torch is not imported yet
    found = {}
    print(
        f"{'layers':>8} {'rows':>7} {'seconds':>9}   of a prompt of {arguments.tokens} tokens, to computing every row"
    )
    for layers in map(int, arguments.layers.split(",")):
        found[layers] = measured(layers, arguments.tokens, arguments.repeat)
        print(f"{layers:8} {found[layers]['rows']:7.2f} {found[layers]['ratio']:9.2f}", flush=True)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(found, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
