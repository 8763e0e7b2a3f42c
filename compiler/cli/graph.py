"""`graph`: the graph of a spec, or what a selection of it answers, as text or picture."""

from __future__ import annotations

from argparse import Namespace

from dsv41c.compiler.cli.console import Console
from dsv41c.compiler.cli.faults import Refused
from dsv41c.compiler.cli.files import expect_writable, write_text
from dsv41c.compiler.cli.specs import sound_spec
from dsv41c.diagnostics import UserFault


def work(arguments: Namespace, console: Console) -> int:
    """Draw; the graph is the placed one, so that what crosses devices shows."""
    expect_writable(arguments.output)
    loaded, spec = sound_spec(arguments, console)
    from dsv41c.compiler import passes
    from dsv41c.compiler.build import build
    from dsv41c.compiler.draw import Drawing, draw
    from dsv41c.compiler.select import SOURCE, select

    with console.step("build and place"):
        program = passes.Program(spec, loaded.spans, build(spec, loaded.spans))
        placed = passes.run(program, pipeline=passes.PIPELINE[:3])
    selection = None
    if arguments.select is not None:
        try:
            selection = select(placed.graph, arguments.select, placed.devices)
        except UserFault as fault:
            raise Refused(fault.diagnostics, {**loaded.sources, SOURCE: arguments.select}) from None
    with console.step("draw"):
        drawing = Drawing(placed.graph, selection, placed.devices, arguments.level, arguments.hide)
        text = draw(drawing, arguments.format)
    write_text(arguments.output, text, console)
    return 0
