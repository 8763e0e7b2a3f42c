"""`import`: a model's config.json, or a GGUF file of it, as a spec."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path

from dsv41c.compiler.cli.console import Console
from dsv41c.compiler.cli.faults import exit_code, show
from dsv41c.compiler.cli.files import expect_no_other, expect_writable, write_text
from dsv41c.diagnostics import has_errors
from dsv41c.report.escape import escape


def work(arguments: Namespace, console: Console) -> int:
    """Write the spec; with errors, nothing."""
    expect_writable(arguments.output)
    from dsv41c.compiler.importing import import_config, import_gguf
    from dsv41c.runtime.weights.gguf.files import is_gguf

    with console.step("import"):
        read = import_gguf if arguments.config != "-" and is_gguf(Path(arguments.config)) else import_config
        imported = read(arguments.config)
    show(console, imported.diagnostics, imported.sources)
    text = imported.text
    if has_errors(imported.diagnostics) or text is None:
        return exit_code(imported.diagnostics)
    if arguments.json and arguments.output == "-":
        console.result(json.dumps({"format": "dsv41c.import/1.0", "spec": text}, ensure_ascii=False) + "\n")
        return 0
    if not arguments.force:
        expect_no_other(arguments.output, text, "give another name, or `--force` to replace it")
    write_text(arguments.output, text, console)
    if arguments.output != "-":
        if arguments.json:
            console.result(json.dumps({"format": "dsv41c.import/1.0", "path": arguments.output}) + "\n")
        console.say(f"wrote {escape(arguments.output)}; next: dsv41c validate {escape(arguments.output)}")
    return 0
