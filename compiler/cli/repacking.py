"""`repack`: a checkpoint with the same values in a layout that is read in fewer and longer pieces."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path

from dsv41c.compiler.cli.console import Console
from dsv41c.compiler.cli.files import expect_parent, expect_plan
from dsv41c.report.escape import escape
from dsv41c.words import counted, size


def work(arguments: Namespace, console: Console) -> int:
    """Write it; with errors, nothing."""
    expect_plan(arguments.plan)
    expect_parent(arguments.output)
    from dsv41c.runtime.manifest import read
    from dsv41c.runtime.repack import repack

    manifest = read(Path(arguments.plan))
    lines = {what: console.progress(what, 1) for what in ("writing", "comparing")}
    limit = {} if arguments.max_file is None else {"shard_bytes": arguments.max_file}
    with console.step("repack"):
        report = repack(
            manifest,
            arguments.checkpoint,
            arguments.output,
            experts=arguments.experts,
            tables=arguments.tables,
            check=not arguments.no_check,
            progress=lambda what, done, total: lines[what].of(done, total),
            say=lambda line: console.say(escape(line)),
            **limit,
        )
    for line in lines.values():
        line.close()
    if arguments.json:
        result = {
            "path": arguments.output,
            "tensors": report.tensors,
            "bytes": report.bytes,
            "shards": report.shards,
            "read": report.read,
            "compared": report.compared,
        }
        console.result(json.dumps({"format": "dsv41c.repack/1.0", **result}) + "\n")
    out = escape(str(arguments.output))
    parts = (counted(report.tensors, "tensor"), size(report.bytes), counted(report.shards, "shard"))
    console.say(f"wrote {out}: {', '.join(parts)}, of {counted(report.read, 'tensor')}")
    if report.compared is not None:
        console.say(f"{report.compared:,} elements decoded on both sides, all equal")
    return 0
