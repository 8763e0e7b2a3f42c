"""`synth`: a random checkpoint of a spec in the official layout."""

from __future__ import annotations

import json
from argparse import Namespace

from dsv41c.compiler.cli.console import Console
from dsv41c.compiler.cli.files import expect_parent
from dsv41c.compiler.cli.specs import sound_spec
from dsv41c.report.escape import escape
from dsv41c.words import counted, size


def work(arguments: Namespace, console: Console) -> int:
    """Write it; nothing stays behind on failure."""
    expect_parent(arguments.output)
    loaded, spec = sound_spec(arguments, console)
    from dsv41c.compiler import compile_spec
    from dsv41c.compiler.importing.hf_config import to_hf_config

    with console.step("compile"):
        manifest = compile_spec(loaded).manifest
    from dsv41c.runtime.synth import DEFAULT_MAX_BYTES, synth

    limit = DEFAULT_MAX_BYTES if arguments.max_bytes is None else arguments.max_bytes
    progress = console.progress("writing", 1)
    with console.step("synth"):
        report = synth(
            manifest,
            to_hf_config(spec),
            arguments.output,
            seed=arguments.seed,
            max_bytes=limit,
            progress=progress.of,
            say=lambda line: console.say(escape(line)),
        )
    progress.close()
    if arguments.json:
        result = {"path": arguments.output, "tensors": report.tensors, "bytes": report.bytes, "shards": report.shards}
        console.result(json.dumps({"format": "dsv41c.synth/1.0", "seed": arguments.seed, **result}) + "\n")
    parts = (counted(report.tensors, "tensor"), size(report.bytes), counted(report.shards, "shard"))
    console.say(f"wrote {escape(str(arguments.output))}: {', '.join(parts)}")
    return 0
