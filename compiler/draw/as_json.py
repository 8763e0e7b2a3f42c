"""JSON: nodes and edges with their YAML positions, for other tools. Keys are sorted; `format` names the version."""

from __future__ import annotations

import json

from dsv41c.compiler.draw.picture import Arrow, Node, Picture
from dsv41c.compiler.draw.words import spelled
from dsv41c.compiler.ir import Graph
from dsv41c.compiler.select import Selection

FORMAT = "dsv41c.graph-json/1.0"


def draw(picture: Picture, graph: Graph, selection: Selection | None) -> str:
    """The picture as one JSON object. With a selection, `selected` tells the answer from what was asked about."""
    answer = None
    if selection is not None:
        ops, values = selection.ops, selection.values
        answer = {
            "ops": [op.id for op in graph.ops if op.id in ops],
            "values": [value for value in graph.values if value in values],
        }
    data = {
        "format": FORMAT,
        "name": picture.name,
        "level": picture.level,
        "devices": list(picture.devices),
        "remarks": list(picture.remarks),
        "selected": answer,
        "nodes": [_node(node, graph) for node in picture.nodes],
        "edges": [_edge(arrow) for arrow in picture.arrows],
    }
    return spelled(json.dumps(data, indent=1, sort_keys=True, ensure_ascii=False), "\n") + "\n"


def _node(node: Node, graph: Graph) -> dict[str, object]:
    entry: dict[str, object] = {
        "id": node.id,
        "label": node.label,
        "type": node.shape,
        "kind": node.kind,
        "stage": node.stage,
        "span": str(node.span),
    }
    if node.shape == "value":
        value = graph.values[node.label]
        readers = [op.id for op in graph.readers(value.id)]
        producer = graph.producer(value.id)
        entry |= {"shape": list(value.shape), "dtype": value.dtype, "scope": value.scope, "readers": readers}
        entry["producer"] = producer.id if producer else None
    return entry


def _edge(arrow: Arrow) -> dict[str, object]:
    return {
        "source": arrow.source,
        "target": arrow.target,
        "values": list(arrow.values),
        "kind": arrow.kind,
        "crossing": arrow.crossing,
    }
