"""What `h200x2.sh` measured, as text: `h200x2.py FOLDER NAME` is one result, `h200x2.py FOLDER` the ratios of all."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dsv41c.runtime.bench.stages_report import text


def read(folder: Path) -> dict[str, dict[str, Any]]:
    """The results there are, by name."""
    files = sorted(folder.glob("h200x2-*.json"))
    return {file.stem.removeprefix("h200x2-"): json.loads(file.read_text()) for file in files}


def summary(found: dict[str, dict[str, Any]]) -> Iterator[str]:
    """One line a ratio that matters: of times in one run, by turns."""
    for name, result in found.items():
        cell, shards = result["cells"][0], result["plan"]["tensor_parallel"]
        ratio = cell["arms"]["one"]["time_ratio"]
        if shards > 1:
            yield f"{name}: {1 / ratio['median']:.3f} of one GPU's tokens a second"
        else:
            yield f"{name}: a step takes {ratio['median']:.3f} of one GPU's (iqr {ratio['iqr']:.3f})"
            moved = ", ".join(f"{each['bytes_per_token']:,.0f} of {each['said']:,.0f}" for each in cell["boundaries"])
            filled = f"{cell['in_flight']} in flight are {cell['speedup']['median']:.3f} of one"
            yield f"{name}: {filled}; {moved} bytes a token"
        for prompt in result["prefill"]:
            for kind, arm in prompt["arms"].items():
                rate, bubble = 1 / arm["time_ratio"]["median"], arm["bubble"]["median"]
                text = f"is read at {rate:.3f} of one GPU's rate, with a bubble of {bubble:.3f}"
                yield f"{name}: a prompt of {prompt['tokens']} ({kind}) {text}"


if __name__ == "__main__":
    folder, names = Path(sys.argv[1]), sys.argv[2:]
    results = read(folder)
    print("".join(text(results[name]) for name in names) if names else "\n".join(summary(results)))
