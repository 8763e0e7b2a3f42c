"""`cut`: some layers of a spec as a spec of their own, and with a checkpoint their weights."""

from __future__ import annotations

import json
from argparse import Namespace
from typing import TYPE_CHECKING

from dsv41c.compiler.cli.console import Console
from dsv41c.compiler.cli.faults import Refused
from dsv41c.compiler.cli.files import expect_no_other, expect_parent, expect_writable, write_text
from dsv41c.compiler.cli.parsing import UsageError
from dsv41c.compiler.cli.specs import sound_spec
from dsv41c.diagnostics import UserFault
from dsv41c.report.escape import escape
from dsv41c.words import counted, size

if TYPE_CHECKING:
    from dsv41c.compiler.cut import Cut
    from dsv41c.compiler.spec import Loaded

FORMAT = "dsv41c.cut/1.0"


def work(arguments: Namespace, console: Console) -> int:
    """Write the spec, or a folder with the checkpoint and the spec; with errors, nothing."""
    if arguments.checkpoint is None:
        expect_writable(arguments.output)
    elif arguments.output == "-":
        raise UsageError("a checkpoint goes to a folder: give `-o DIR` with `--checkpoint`")
    else:
        expect_parent(arguments.output)
    loaded, whole = sound_spec(arguments, console)
    from dsv41c.compiler.cut import cut
    from dsv41c.compiler.spec.write import to_yaml

    try:
        kept = cut(loaded, arguments.layers, arguments.experts)
    except UserFault as fault:
        raise Refused(fault.diagnostics, loaded.sources) from None
    text = to_yaml(kept.spec, kept.header(whole))
    if arguments.checkpoint is not None:
        return _with_checkpoint(arguments, console, loaded, kept, text)
    if not arguments.json or arguments.output != "-":
        if not arguments.force:
            expect_no_other(arguments.output, text, "give another name, or `--force` to replace it")
        write_text(arguments.output, text, console)
    if arguments.json:
        where = {"spec": text} if arguments.output == "-" else {"path": arguments.output}
        console.result(_json(kept, **where))
    if arguments.output != "-":
        console.say(f"wrote {escape(arguments.output)}; next: dsv41c validate {escape(arguments.output)}")
    return 0


def _with_checkpoint(arguments: Namespace, console: Console, loaded: Loaded, kept: Cut, text: str) -> int:
    from dsv41c.compiler import compile_spec
    from dsv41c.compiler.importing.hf_config import to_hf_config

    with console.step("compile"):
        manifest = compile_spec(loaded).manifest
    from dsv41c.runtime.weights.cut import cut_checkpoint

    files = {
        "config.json": json.dumps(to_hf_config(kept.spec), indent=2, ensure_ascii=False) + "\n",
        "spec.yaml": text,
    }
    progress = console.progress("writing", 1)
    with console.step("cut the checkpoint"):
        report = cut_checkpoint(
            manifest,
            arguments.checkpoint,
            arguments.output,
            layers=kept.layers,
            experts=kept.experts,
            files=files,
            progress=progress.of,
            say=lambda line: console.say(escape(line)),
        )
    progress.close()
    out = escape(str(arguments.output))
    if arguments.json:
        written = {"tensors": report.tensors, "bytes": report.bytes, "shards": report.shards}
        console.result(_json(kept, path=arguments.output, **written))
    parts = (counted(report.tensors, "tensor"), size(report.bytes), counted(report.shards, "shard"))
    console.say(f"wrote {out}: {', '.join(parts)}; next: dsv41c validate {out}/spec.yaml --checkpoint {out}")
    return 0


def _json(kept: Cut, **more: object) -> str:
    """`layers` are the numbers that the layers had, in the order of those they have now."""
    found = {"format": FORMAT, "layers": list(kept.layers), "experts": kept.experts, **more}
    return json.dumps(found, ensure_ascii=False) + "\n"
