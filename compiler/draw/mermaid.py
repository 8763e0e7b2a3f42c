"""Mermaid text, for pages that render it. It stays readable only while it is small."""

from __future__ import annotations

import html

from dsv41c.compiler.draw.picture import Arrow, Node, Picture
from dsv41c.compiler.draw.style import colour
from dsv41c.compiler.draw.words import escaped

MAX_ARROWS = 200


def draw(picture: Picture) -> str:
    """The picture as a mermaid flowchart: a subgraph a stage, arrows coloured by state kind, crossings dotted."""
    lines = [f"%% {escaped(remark)}" for remark in picture.remarks]
    lines += ["flowchart TB"]
    names = {node.id: f"n{number}" for number, node in enumerate(picture.nodes)}
    staged = len(set(picture.devices)) > 1
    for stage in sorted({node.stage for node in picture.nodes}):
        if staged:
            lines.append(f"  subgraph stage{stage}[{_text(f'stage {stage} on {picture.devices[stage]}')}]")
        lines += [f"  {'  ' * staged}{_node(node, names[node.id])}" for node in picture.nodes if node.stage == stage]
        if staged:
            lines.append("  end")
    lines += [_arrow(arrow, names) for arrow in picture.arrows]
    lines += [f"  style {names[node.id]} stroke-width:4px" for node in picture.nodes if picture.focused(node)]
    lines += _arrow_colours(picture)
    return "\n".join(lines) + "\n"


def _text(text: str) -> str:
    """A quoted mermaid label; HTML escapes keep hostile names inside the quotes."""
    inner = "<br/>".join(html.escape(escaped(line), quote=True) for line in text.split("\n"))
    return '"' + inner.replace("&#x27;", "'").replace("`", "#96;") + '"'


def _node(node: Node, name: str) -> str:
    opening, closing = ("(", ")") if node.shape == "value" else ("[", "]")
    return f"{name}{opening}{_text(node.label)}{closing}"


def _arrow(arrow: Arrow, names: dict[str, str]) -> str:
    line = "-.->" if arrow.crossing else "-->"
    labelled = not (arrow.source.startswith("value:") or arrow.target.startswith("value:"))
    # The spine of streams and pre goes from each layer to the next; its label would only repeat that.
    values = [value for value in arrow.values if not value.startswith(("streams@", "pre@"))]
    label = f"|{_text(', '.join(values))}|" if labelled and values else ""
    return f"  {names[arrow.source]} {line}{label} {names[arrow.target]}"


def _arrow_colours(picture: Picture) -> list[str]:
    by_colour: dict[str, list[str]] = {}
    for number, arrow in enumerate(picture.arrows):
        by_colour.setdefault(colour(arrow.kind), []).append(str(number))
    return [f"  linkStyle {','.join(numbers)} stroke:{shade}" for shade, numbers in by_colour.items()]
