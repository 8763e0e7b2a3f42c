"""A text as a tree of nodes, each with the place it was written at; and the flat forms made of it: data and spans."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from dsv41c.diagnostics import Span

Path = tuple[str | int, ...]


class Poison:
    """Stands for a value that is already reported as wrong, so that nobody reports it again."""

    def __repr__(self) -> str:
        return "<reported>"


POISON: Final = Poison()
Scalar = bool | int | float | str | Poison | None


@dataclass(frozen=True, slots=True)
class Node:
    """A value and the span of it and of its key. Sequences are tuples; keys of mappings are always text."""

    value: Scalar | tuple[Node, ...] | Mapping[str, Node]
    span: Span
    key: Span | None = None

    def get(self, key: str) -> Node | None:
        """The value of a key, if this is a mapping that has it."""
        return self.value.get(key) if isinstance(self.value, Mapping) else None

    def with_key(self, key: Span | None) -> Node:
        """The same node under another key."""
        return replace(self, key=key)


def to_data(node: Node) -> Any:
    """Plain data: dicts with text keys, tuples and scalars."""
    if isinstance(node.value, Mapping):
        return {key: to_data(child) for key, child in node.value.items()}
    if isinstance(node.value, tuple):
        return tuple(to_data(child) for child in node.value)
    return node.value


def poisoned(node: Node) -> bool:
    """Whether some value in a tree is already reported as wrong."""
    if isinstance(node.value, Mapping):
        return any(poisoned(child) for child in node.value.values())
    if isinstance(node.value, tuple):
        return any(poisoned(child) for child in node.value)
    return isinstance(node.value, Poison)


def shown(value: object, limit: int = 60) -> str:
    """A value as a message shows it: JSON-like, printable whatever it holds, and short."""
    if isinstance(value, Poison):
        return repr(value)
    if isinstance(value, dict | Mapping):
        text = "{" + ", ".join(f"{key}: {shown(item)}" for key, item in list(value.items())[:8]) + "}"
    elif isinstance(value, list | tuple):
        text = "[" + ", ".join(shown(item) for item in value[:24]) + (", …]" if len(value) > 24 else "]")
    else:
        text = json.dumps(value, ensure_ascii=False, default=str)
    text = "".join(char if char.isprintable() else f"\\u{ord(char):04x}" for char in text)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def shown_key(key: str) -> str:
    """A key as a message shows it, without quotes."""
    return shown(key)[1:-1] if shown(key).endswith('"') else shown(key)[1:]


def dotted(path: Path) -> str:
    """A path as people write it: `layers.kv_source_layers[2]`."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += ("." if text else "") + shown_key(part)
    return text


class Spans:
    """Where every value and every key was written, by path; a path that was not written gives its nearest parent.

    `layers.reads` has layer numbers as keys, which paths may give as text or as int. `names` gives files other names
    than they were read under.
    """

    def __init__(self, root: Node, names: Mapping[str, str] | None = None) -> None:
        self._root = root
        self._names = names or {}

    def named(self, names: Mapping[str, str]) -> Spans:
        """The same places, in files of other names."""
        return Spans(self._root, names)

    def value(self, path: Path) -> Span:
        """The place of a value, or of its nearest parent that was written."""
        return self._place(self._nearest(path)[0].span)

    def key(self, path: Path) -> Span:
        """The place of a key; the value's where it has none (a list entry); or of the nearest parent's key."""
        node, _ = self._nearest(path)
        return self._place(node.key or node.span)

    def _place(self, span: Span) -> Span:
        name = self._names.get(span.file, span.file)
        return span if name == span.file else replace(span, file=name)

    def has(self, path: Path) -> bool:
        """Whether a value was written at this path, rather than filled in."""
        return self._nearest(path)[1] == len(path)

    def _nearest(self, path: Path) -> tuple[Node, int]:
        """The deepest node on the way to a path, and how many of its words lead there."""
        node = self._root
        for depth, word in enumerate(path):
            child = _child(node, word)
            if child is None:
                return node, depth
            node = child
        return node, len(path)


def _child(node: Node, word: str | int) -> Node | None:
    entries = node.value
    if isinstance(entries, tuple):
        index = int(word) if isinstance(word, int) or (word.isascii() and word.isdecimal()) else -1
        return entries[index] if 0 <= index < len(entries) else None
    return entries.get(str(word)) if isinstance(entries, Mapping) else None
