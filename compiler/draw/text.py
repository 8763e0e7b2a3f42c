"""Text: the graph's own stable form, or a line a layer; `#` lines in front answer a selection in words."""

from __future__ import annotations

from dsv41c.compiler.draw.picture import Arrow, Picture
from dsv41c.compiler.draw.words import escaped, spelled
from dsv41c.compiler.ir import Graph
from dsv41c.compiler.select import Selection


def draw_ops(graph: Graph, selection: Selection | None, remarks: tuple[str, ...]) -> str:
    """The graph, or its selected ops and values, in the form that `ir.parse` reads back."""
    shown = graph if selection is None else selection.subgraph(graph)
    return "".join(f"# {escaped(remark)}\n" for remark in remarks) + spelled(str(shown), "\n")


def draw_layers(picture: Picture) -> str:
    """A line a layer: what it makes, and what it reads of others."""
    arriving: dict[str, list[Arrow]] = {}
    for arrow in picture.arrows:
        arriving.setdefault(arrow.target, []).append(arrow)
    lines = [f"# {remark}" for remark in picture.remarks]
    width = max((len(_title(node.label)) for node in picture.nodes), default=0)
    for node in picture.nodes:
        values = [value for arrow in arriving.get(node.id, ()) for value in arrow.values]
        reads = f"reads {', '.join(values)}" if values else ""
        lines.append(f"{_title(node.label):{width}}  {reads}".rstrip())
    return "\n".join(escaped(line) for line in lines) + "\n"


def _title(label: str) -> str:
    return "; ".join(label.split("\n"))
