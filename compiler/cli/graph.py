"""`graph`: the graph of a spec or a plan (or one given as text), or what a selection of it answers.

With `--compare OTHER`, SPEC is what there is and OTHER what there was. Text is then a line a difference, and JSON is
`dsv41c.graph-compare/1.0`, described in `compiler/draw/differences.py`. The form of `--overlay` is described in
`compiler/draw/overlay.py`.
"""

from __future__ import annotations

import re
from argparse import Namespace
from dataclasses import replace
from typing import TYPE_CHECKING

from dsv41c.compiler.cli.console import Console
from dsv41c.compiler.cli.faults import Refused
from dsv41c.compiler.cli.files import expect_writable, read_text, write_text
from dsv41c.compiler.cli.graph_input import Placed, placed
from dsv41c.compiler.cli.parsing import UsageError
from dsv41c.diagnostics import Diagnostic, UserFault

if TYPE_CHECKING:
    from dsv41c.compiler.draw import Drawing
    from dsv41c.compiler.draw.overlay import Overlay
    from dsv41c.compiler.draw.picture import Level
    from dsv41c.compiler.ir import Graph
    from dsv41c.compiler.select import Selection

VIEWS = ("html", "svg")
COMPARING = ("text", "json", *VIEWS)
BYTES = "bytes"  # the overlay that the plan itself gives
_ONE_THING = re.compile(r"(?!kind:|device:|layers\.\d+-)[^+,\s]+")


def work(arguments: Namespace, console: Console) -> int:
    """Draw; the graph is the placed one, so that what crosses devices shows."""
    expect_writable(arguments.output)
    _check(arguments)
    whole = arguments.format in VIEWS or arguments.compare is not None
    sides = [placed(str(arguments.spec), arguments, console, whole=whole)]
    if arguments.compare is not None:
        plain = Namespace(**{**vars(arguments), "target": None, "sets": []})
        sides.append(placed(arguments.compare, plain, console, whole=whole))
    overlay = None if arguments.overlay is None else _overlay(arguments.overlay, sides[0])
    with console.step("draw"):
        from dsv41c.compiler.draw import draw

        text = draw(_drawing(arguments, sides, overlay), arguments.format)
    write_text(arguments.output, text, console)
    return 0


def _check(arguments: Namespace) -> None:
    """Raise `UsageError` where options do not go together."""
    form, views = arguments.format, arguments.format in VIEWS
    if [arguments.spec, arguments.compare, arguments.overlay].count("-") > 1:
        raise UsageError("`-` is standard input, which can be read once: give the other one as a file")
    if arguments.compare is not None and form not in COMPARING:
        raise UsageError(f"`--format {form}` draws one graph; `--compare` goes with {', '.join(COMPARING)}")
    if arguments.overlay is not None and not views:
        raise UsageError(f"`--overlay` colours rows, which `--format {form}` has not: give `--format html` or `svg`")
    if arguments.depth is not None and arguments.focus is None and arguments.select is None:
        raise UsageError("`--depth` counts steps from something: give `--focus` or `--select` with it")
    if arguments.focus is None:
        return
    if _ONE_THING.fullmatch(arguments.focus) is None:
        raise UsageError(
            f"`--focus {arguments.focus}` is not one thing, such as `layers.30`, `compress_kv@L20` or an op; "
            "for several, give `--select`"
        )
    if arguments.compare is not None and not views:
        raise UsageError("`--focus` is where a picture begins; with `--compare` it goes with `--format html` and `svg`")
    if arguments.select is not None and (arguments.depth is not None or not views):
        raise UsageError(
            "`--focus` and `--select` both say what is drawn here: give one of them "
            "(html and svg take both, without `--depth`)"
        )


def _drawing(arguments: Namespace, sides: list[Placed], overlay: Overlay | None) -> Drawing:
    """What to draw: of two graphs the second is what the first is compared with."""
    from dsv41c.compiler.draw import Drawing
    from dsv41c.compiler.draw.around import alike, around, focus_of

    views = arguments.format in VIEWS
    by_layer = views or len(sides) > 1 or arguments.format in ("dot", "mermaid")
    level: Level = arguments.level or ("layer" if by_layer else "op")
    shown = asked = _selected(arguments.select, sides, "--select")
    focus, depth = None, arguments.depth
    if arguments.focus is not None:
        focused = _selected(arguments.focus, sides, "--focus")
        asked = _selected(f"+{arguments.focus},{arguments.focus}+", sides, "--focus")
        both = zip(sides, focused, strict=True)
        focus = next(found for side, one in both if one and (found := focus_of(side.graph, one, level)))
        if not any(_drawn(side.graph, *pair) for side, *pair in zip(sides, focused, shown, strict=True)):
            raise UsageError(f"`--focus {arguments.focus}` is not in what `--select {arguments.select}` draws")
        if depth is not None or not views:
            shown, depth = focused, 1 if depth is None else depth
    if depth is not None:
        shown = [around(side.graph, one, depth, level) for side, one in zip(sides, shown, strict=True) if one]
    selected = [(side.graph, one) for side, one in zip(sides, shown, strict=True) if one]
    if len(selected) > 1:
        shown = [*alike(selected, level)]
    drawings = [
        Drawing(
            side.graph, one, side.devices, arguments.level, arguments.hide, side.facts, question, called=side.called
        )
        for side, one, question in zip(sides, shown, asked, strict=True)
    ]
    other = drawings[1] if len(drawings) > 1 else None
    return replace(drawings[0], focus=focus, other=other, overlay=overlay)


def _drawn(graph: Graph, focused: Selection | None, whole: Selection | None) -> bool:
    """Whether a thing is in what is drawn: one of its ops, or a value itself or what makes it."""
    if whole is None or focused is None:
        return whole is None
    makers = {op.id for value in focused.shown_values for op in graph.producers.get(value, ())}
    ops, values = focused.shown_ops | makers, focused.shown_values
    return not ops.isdisjoint(whole.shown_ops) or not values.isdisjoint(whole.shown_values)


def _selected(expression: str | None, sides: list[Placed], option: str) -> list[Selection | None]:
    """What an expression selects in each graph; None without an expression."""
    from dsv41c.compiler.select import SOURCE, select_each

    if expression is None:
        return [None for _ in sides]
    try:
        return [*select_each([(side.graph, side.devices) for side in sides], expression)]
    except UserFault as fault:
        place = SOURCE.replace("--select", option)
        found = [_at(finding, place) for finding in fault.diagnostics]
        raise Refused(found, {**sides[0].sources, place: expression}) from None


def _at(finding: Diagnostic, place: str) -> Diagnostic:
    assert finding.span is not None
    return replace(finding, span=replace(finding.span, file=place))


def _overlay(given: str, side: Placed) -> Overlay:
    """The numbers of a file, or those that the plan itself gives."""
    from dsv41c.compiler.draw.overlay import read_overlay
    from dsv41c.compiler.draw.picture import group_of

    if given == BYTES:
        if side.program is None:
            raise UsageError("`--overlay bytes` needs a spec or a plan: a graph as text has no sizes")
        from dsv41c.compiler.draw.facts import sizes

        return sizes(side.program)
    name = "<stdin>" if given == "-" else given
    text = read_text(given)
    try:
        return read_overlay(text, name, {group_of(op) for op in side.graph.ops})
    except UserFault as fault:
        raise Refused(fault.diagnostics, {name: text}) from None
