"""`inspect`: what a plan folder holds, in a few lines."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path

from dsv41c.compiler.cli import summary
from dsv41c.compiler.cli.console import Console
from dsv41c.compiler.cli.files import expect_plan


def work(arguments: Namespace, console: Console) -> int:
    """Print the summary of the plan's manifest."""
    from dsv41c.runtime.manifest_text import read

    expect_plan(arguments.plan)
    manifest = read(Path(arguments.plan))
    if arguments.json:
        data = {"format": "dsv41c.inspect/1.0", **summary.summary(manifest)}
        console.result(json.dumps(data, indent=2, sort_keys=True, ensure_ascii=False) + "\n")
    else:
        console.result("\n".join(summary.lines(manifest)) + "\n")
    return 0
