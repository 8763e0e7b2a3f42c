"""The differences of two graphs as text and JSON."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict

from dsv41c.compiler.draw.compare import ORDER
from dsv41c.compiler.draw.view import View
from dsv41c.compiler.draw.words import escaped, spelled

FORMAT = "dsv41c.graph-compare/1.0"
EQUAL = "no difference in layers, states, who reads what, devices, ops or kernels"


def summary(view: View) -> str:
    """How many differences there are, by kind: `2 added, 1 moved`; or that there are none."""
    counts = Counter(change.kind for change in view.differences)
    return ", ".join(f"{counts[kind]} {kind}" for kind in ORDER if kind in counts) or EQUAL


def text(view: View) -> str:
    """What is compared, and a line a difference."""
    assert view.before is not None
    lines = [f"# before: {view.before}", f"# after: {view.after}", f"# {summary(view)}"]
    lines += [f"{change.kind:10}  {change.sentence}" for change in view.differences]
    return "".join(f"{escaped(line)}\n" for line in lines)


def as_json(view: View) -> str:
    """`before` and `after` name the graphs, `differences` has each one with the rows and states that it is of."""
    counts = Counter(change.kind for change in view.differences)
    data = {
        "format": FORMAT,
        "after": view.after,
        "before": view.before,
        "level": view.level,
        "counts": {kind: counts[kind] for kind in ORDER},
        "differences": [asdict(change) for change in view.differences],
    }
    return spelled(json.dumps(data, indent=1, sort_keys=True, ensure_ascii=False), "\n") + "\n"
