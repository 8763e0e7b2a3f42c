"""What validating and compiling cost: against starting Python with the libraries they need, and as a model grows.

    python tests/bench/compile_cost.py [--repeat 5] [--layers 40,400,4000] [--json FILE]

Everything is measured in one run, the commands by turns, and given as medians and ratios: seconds of one machine mean
nothing on another. The grown models repeat the released model's layer pattern, engram layers among them. A row is
printed when it is measured; with the defaults it all takes a minute or two.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

PATTERN = 40  # layers of the released model
MODEL = "deepseek-v4.1-flash"
LARGE = 1000  # layers from which a run takes so long that one tells as much as the median of three


def grown_spec(layers: int) -> str:
    """The released model with its layer pattern repeated to a number of layers; no candidates, which come once."""
    from dsv41c.compiler.engram_hash import hash_constants
    from dsv41c.compiler.spec import load

    base = load(MODEL).spec
    assert base is not None
    assert base.engram is not None
    starts = range(0, layers, PATTERN)
    lists = {
        name: [start + layer for start in starts for layer in getattr(base.layers, name) if start + layer < layers]
        for name in ("kv_source_layers", "index_source_layers", "engram_layers")
    }
    ratios = [base.layers.compress_ratios[layer % PATTERN] for layer in range(layers)]
    rows = [constants.rows for constants in hash_constants(base.engram, lists["engram_layers"])]
    spec = {
        "extends": MODEL,
        "name": f"grown-{layers}",
        "model": {"n_layers": layers, "n_mtp_layers": 0},
        "layers": {"compress_ratios": ratios, **lists, "candidate_source_layer": -1},
        "engram": {"num_embeddings": rows},
        "placement": {"layer_ends": [layers]},
    }
    return json.dumps(spec)


def seconds(work: Callable[[], object]) -> float:
    """Wall seconds of one call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def by_turns(works: dict[str, Callable[[], object]], repeat: int, *, warm: bool = True) -> dict[str, float]:
    """Median seconds of each, measured by turns, with `warm` after one round that is not counted."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(repeat + warm):
        for name, work in works.items():
            taken = seconds(work)
            if turn >= warm:
                times[name].append(taken)
    return {name: statistics.median(taken) for name, taken in times.items()}


def command(*arguments: str) -> Callable[[], object]:
    """A run of a Python command line, which has to succeed."""
    line = [sys.executable, *arguments]
    return lambda: subprocess.run(line, check=True, capture_output=True, stdin=subprocess.DEVNULL)


def ratios(repeat: int, folder: Path) -> dict[str, float]:
    """Seconds of whole commands on the released model, and of the imports that any such command needs."""
    return by_turns(
        {
            "imports": command("-c", "import yaml, pydantic"),
            "validate": command("-m", "dsv41c", "validate", MODEL),
            "compile": command("-m", "dsv41c", "compile", MODEL, "-o", str(folder / "plan")),
        },
        repeat,
    )


def growth(layers: Sequence[int], repeat: int, folder: Path) -> Iterator[tuple[int, dict[str, float]]]:
    """By number of layers, one after the other: seconds of each command within a running process."""
    from dsv41c.compiler.cli import main

    for count in layers:
        file = folder / f"grown{count}.yaml"
        file.write_text(grown_spec(count))
        arguments = {"validate": [str(file)], "compile": [str(file), "-o", str(folder / f"grown{count}.plan")]}
        works = {verb: partial(quietly, main, [verb, *more]) for verb, more in arguments.items()}
        large = count >= LARGE
        yield count, by_turns(works, 1 if large else repeat, warm=not large)


def quietly(main: Callable[[list[str]], int], argv: list[str]) -> None:
    """A command in process, its talk thrown away; it has to succeed."""
    from contextlib import redirect_stderr, redirect_stdout

    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        code = main(argv)
    if code:
        raise RuntimeError(f"dsv41c {' '.join(argv)} exited with {code}")


def exponent(taken: dict[int, float]) -> float:
    """p where time goes as layers to the p, from the two largest models."""
    (fewer, before), (more, after) = sorted(taken.items())[-2:]
    return math.log(after / before) / math.log(more / fewer)


def report(whole: dict[str, float], grown: dict[str, dict[int, float]]) -> dict[str, object]:
    """The numbers as data."""
    return {
        "ratio_to_imports": {verb: whole[verb] / whole["imports"] for verb in ("validate", "compile")},
        "seconds": whole,
        "growth_seconds": {verb: {str(n): t for n, t in taken.items()} for verb, taken in grown.items()},
        "growth_exponent": {verb: exponent(taken) for verb, taken in grown.items() if len(taken) > 1},
    }


def show_commands(whole: dict[str, float]) -> None:
    """The rows of whole commands."""
    for name, taken in whole.items():
        print(f"{name:34} {taken:8.3f} {taken / whole['imports']:9.2f}x", flush=True)


def show_growth(rows: Iterable[tuple[int, dict[str, float]]]) -> dict[str, dict[int, float]]:
    """The rows of grown models, each as it comes; the same, by command."""
    print(f"\n{'layers':>8} {'validate':>10} {'compile':>10}   seconds in a running process", flush=True)
    grown: dict[str, dict[int, float]] = {"validate": {}, "compile": {}}
    for count, row in rows:
        print(f"{count:8} {row['validate']:10.3f} {row['compile']:10.3f}", flush=True)
        for verb, taken in row.items():
            grown[verb][count] = taken
    if len(grown["compile"]) > 1:
        print(f"{'power':>8} {' '.join(f'{exponent(taken):10.2f}' for taken in grown.values())}   1.00 is linear")
    return grown


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repeat", type=int, default=5, help="rounds of the commands; fewer for grown models")
    parser.add_argument("--layers", default="40,400,4000", help="sizes of the grown models")
    parser.add_argument("--json", metavar="FILE", help="write the numbers as JSON")
    arguments = parser.parse_args(argv)
    layers = [int(word) for word in arguments.layers.split(",")]
    with tempfile.TemporaryDirectory() as name:
        print(f"{'command on ' + MODEL:34} {'seconds':>8} {'of imports':>10}", flush=True)
        whole = ratios(arguments.repeat, Path(name))
        show_commands(whole)
        grown = show_growth(growth(layers, min(3, arguments.repeat), Path(name)))
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(report(whole, grown), indent=2) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
