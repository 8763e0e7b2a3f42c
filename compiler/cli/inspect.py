"""`inspect`: what a plan folder holds, in a few lines, or what crosses its stage boundaries."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from dsv41c.compiler.cli import summary
from dsv41c.compiler.cli.console import Console
from dsv41c.compiler.cli.files import expect_plan

if TYPE_CHECKING:
    from dsv41c.runtime.manifest import Manifest


def work(arguments: Namespace, console: Console) -> int:
    """Print the summary of the plan's manifest with its boundaries, or these alone."""
    from dsv41c.compiler.cli import boundaries
    from dsv41c.runtime.manifest_text import read

    expect_plan(arguments.plan)
    manifest = read(Path(arguments.plan))
    if arguments.json:
        data = {"name": manifest.name} if arguments.boundaries else summary.summary(manifest)
        data = {"format": "dsv41c.inspect/1.0", **data, "boundaries": boundaries.boundaries(manifest)}
        console.result(json.dumps(data, indent=2, sort_keys=True, ensure_ascii=False) + "\n")
    else:
        shown = boundaries.lines(manifest) if arguments.boundaries else _lines(manifest)
        console.result("\n".join(shown) + "\n")
    return 0


def _lines(manifest: Manifest) -> Iterable[str]:
    from dsv41c.compiler.cli.boundaries import boundaries, title

    titles = [title(boundary) for boundary in boundaries(manifest)]
    rows = [("boundary " if not number else "", line) for number, line in enumerate(titles)]
    return [*summary.lines(manifest), *(summary.table(rows) if rows else ())]
