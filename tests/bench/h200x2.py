"""What `h200x2.sh` measured, as text: `h200x2.py FOLDER NAME` is one result, `h200x2.py FOLDER` all against each other.

Steps of different runs are set against each other, so a ratio is as good as the machine was steady: the log has clocks.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dsv41c.runtime.bench.stages_report import text

STAGES = ("even-both", "even", "uneven-both", "uneven")
SHARDS = ("shards", "shards-all")


def read(folder: Path) -> dict[str, dict[str, Any]]:
    """The results there are, by name."""
    files = sorted(folder.glob("h200x2-*.json"))
    return {file.stem.removeprefix("h200x2-"): json.loads(file.read_text()) for file in files}


def summary(found: dict[str, dict[str, Any]]) -> Iterator[str]:
    """One line a ratio that matters."""

    def step(name: str, arm: str = "one") -> float:
        return float(found[name]["cells"][0]["arms"][arm]["ms_per_step"]["median"])

    for name in STAGES:
        if name not in found:
            continue
        cell = found[name]["cells"][0]
        moved = ", ".join(f"{each['bytes_per_token']:,.0f} of {each['said']:,.0f}" for each in cell["boundaries"])
        yield f"{name}: {cell['in_flight']} in flight are {cell['speedup']['median']:.3f} of one; {moved} bytes a token"
        if "one" in found:
            yield f"{name}: a step takes {step(name) / step('one'):.3f} of one GPU's"
        for prompt in found[name]["prefill"]:
            for kind, arm in prompt["arms"].items():
                yield f"{name}: a prompt of {prompt['tokens']} ({kind}) has a bubble of {arm['bubble']['median']:.3f}"
    for name in SHARDS:
        if name in found and "one" in found:
            yield f"{name}: {step('one') / step(name):.3f} of one GPU's tokens a second"


if __name__ == "__main__":
    folder, names = Path(sys.argv[1]), sys.argv[2:]
    results = read(folder)
    print("".join(text(results[name]) for name in names) if names else "\n".join(summary(results)))
