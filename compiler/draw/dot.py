"""DOT text, for those who have graphviz."""

from __future__ import annotations

from dsv41c.compiler.draw.picture import Arrow, Node, Picture
from dsv41c.compiler.draw.style import INK, colour, shape
from dsv41c.compiler.draw.words import escaped


def draw(picture: Picture) -> str:
    """The picture as a DOT digraph: a cluster a stage, state kinds by colour and shape, crossings dashed."""
    lines = [f"// {escaped(remark)}" for remark in picture.remarks]
    lines += [f"digraph {quoted(picture.name)} {{", "  rankdir=TB;", '  node [fontname="Helvetica"];']
    lines += ['  edge [fontname="Helvetica", fontsize=9];']
    lines += _clusters(picture)
    lines += [_arrow(arrow) for arrow in picture.arrows]
    return "\n".join([*lines, "}"]) + "\n"


def quoted(text: str) -> str:
    """A DOT string that means exactly this text: quotes and backslashes escaped, line breaks centred."""
    inner = text.replace("\\", "\\\\").replace('"', '\\"').replace("\r", " ").replace("\n", "\\n")
    return f'"{escaped(inner)}"'


def _clusters(picture: Picture) -> list[str]:
    lines: list[str] = []
    for stage in sorted({node.stage for node in picture.nodes}):
        device = picture.devices[stage] if stage < len(picture.devices) else "unplaced"
        lines += [f"  subgraph cluster_{stage} {{", f"    label={quoted(f'stage {stage} on {device}')};"]
        lines += [f"    {_node(node, strong=picture.focused(node))}" for node in picture.nodes if node.stage == stage]
        lines += ["  }"]
    return lines


def _node(node: Node, *, strong: bool) -> str:
    if node.shape == "value":
        style = f"shape={shape(node.kind)}, color={quoted(colour(node.kind))}"
    else:
        style = f"shape=box, color={quoted(INK)}"
    style += ", penwidth=3" if strong else ""
    return f"{quoted(node.id)} [label={quoted(node.label)}, {style}, tooltip={quoted(str(node.span))}];"


def _arrow(arrow: Arrow) -> str:
    attributes = [f"color={quoted(colour(arrow.kind))}"]
    if not (arrow.source.startswith("value:") or arrow.target.startswith("value:")):
        attributes.append(f"label={quoted(', '.join(arrow.values))}")
    if arrow.crossing:
        attributes.append("style=dashed")
    return f"  {quoted(arrow.source)} -> {quoted(arrow.target)} [{', '.join(attributes)}];"
