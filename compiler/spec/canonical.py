"""Brings keys of a tree to their canonical names, each document by itself, before documents are merged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from dsv41c.compiler.source import Node, Path, dotted, shown, to_data
from dsv41c.compiler.spec.aliases import ALIASES
from dsv41c.diagnostics import Diagnostic, Label, Sink


def canonicalise(root: Node, sink: Sink) -> Node:
    """The tree with canonical keys. Two spellings of one key are a note where they agree and an error where not."""
    if not isinstance(root.value, Mapping):
        return root
    sections = {name: _section(name, node, sink) for name, node in root.value.items()}
    return replace(root, value=sections)


def canonical_path(path: Path) -> Path:
    """A path with canonical names in place of aliases."""
    words = list(path)
    for depth in (1, 2):
        section = ".".join(str(word) for word in words[:depth])
        if len(words) > depth and section in ALIASES:
            words[depth] = ALIASES[section].get(str(words[depth]), words[depth])
    return tuple(words)


def _section(name: str, node: Node, sink: Sink) -> Node:
    if name not in ALIASES or not isinstance(node.value, Mapping):
        return node
    entries: dict[str, Node] = {}
    for key, child in node.value.items():
        canonical = ALIASES[name].get(key, key)
        inner = _section(f"{name}.{canonical}", child, sink)
        if canonical not in entries:
            entries[canonical] = inner
        else:
            sink.add(_twice((*name.split("."), canonical), key, entries[canonical], inner))
    return replace(node, value=entries)


def _twice(path: Path, key: str, first: Node, second: Node) -> Diagnostic:
    """Two spellings of one key in one section."""
    name = dotted(path)
    labels = (Label(first.key, "the other spelling"),) if first.key else ()
    if to_data(first) == to_data(second):
        message = f"`{name}` is given in two spellings that agree"
        same = (("value", shown(to_data(first))),)
        return Diagnostic("DSV207", message, second.key, labels, same, f"keep `{path[-1]}` and drop `{key}`")
    values = f"{shown(to_data(first))} and {shown(to_data(second))}"
    message = f"`{name}` is given in two spellings that disagree: {values}"
    facts = (("first", shown(to_data(first))), ("second", shown(to_data(second))))
    return Diagnostic("DSV206", message, second.key, labels, facts, f"keep one of the two, as `{path[-1]}`")
