"""Laying one tree over another: `extends`, `--target` and `--set`. Every value keeps the place it came from."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from dsv41c.compiler.source import MAX_DEPTH, Node, Path, dotted, parse, shown, shown_key
from dsv41c.compiler.spec.canonical import canonical_path, canonicalise
from dsv41c.diagnostics import Diagnostic, Sink, Span, UserFault

# Maps that are one value: a new one replaces the old one whole.
_WHOLE = {("layers", "compress_ratios"), ("runtime", "capture")}


def overlay(base: Node, top: Node, path: Path = ()) -> Node:
    """`top` over `base`: maps merge, everything else is replaced."""
    if not isinstance(base.value, Mapping) or not isinstance(top.value, Mapping) or path in _WHOLE:
        return top
    entries = dict(base.value)
    if path == ("placement",) and "devices" in top.value:
        entries.pop("layer_ends", None)  # the old bounds belong to the old devices
    for key, node in top.value.items():
        entries[key] = overlay(entries[key], node, (*path, key)) if key in entries else node
    return replace(top, value=entries, key=top.key or base.key)


def apply_set(root: Node, text: str, file: str, sink: Sink) -> Node:
    """The tree with `path=value` set; `file` names the override in spans. Faults go to the sink, the tree stays."""
    span = Span(file, 1, 1, 1, len(text) + 1)
    name, equals, value = text.partition("=")
    words = canonical_path(tuple(word.strip() for word in name.split(".")))
    if not equals or not all(words) or len(words) > MAX_DEPTH:
        sink.add(_bad(f"`{shown_key(text)}` is no override", span, "write `--set section.key=value`"))
        return root
    try:
        document = parse(value if value.strip() else "null", file)
    except UserFault as fault:
        sink.extend(replace(finding, span=span, labels=()) for finding in fault.diagnostics)
        return root
    sink.extend(replace(finding, span=span, labels=()) for finding in document.diagnostics)
    node = _canonical(words, _at(document.root, span), sink)
    try:
        return _put(root, words, node, ())
    except _NoPlaceError as fault:
        sink.add(_bad(fault.args[0], span, "give the path of a value, with list indexes as numbers"))
        return root


def _canonical(words: Path, node: Node, sink: Sink) -> Node:
    """The value of an override with canonical keys, as its place demands."""
    whole = node
    for word in reversed(words):
        whole = Node({str(word): whole}, node.span)
    whole = canonicalise(whole, sink)
    for word in words:
        whole = whole.get(str(word)) or whole
    return whole


class _NoPlaceError(Exception):
    """A path that leads nowhere; its argument is the sentence."""


def _put(node: Node, path: Path, value: Node, done: Path) -> Node:
    """`node` with `value` at `path`; makes the maps that are missing."""
    if not path:
        return value
    word, rest = str(path[0]), path[1:]
    current = _as_list(node) if (*done,) == ("layers", "compress_ratios") else node
    if isinstance(current.value, tuple):
        if not re.fullmatch(r"[0-9]{1,9}", word) or int(word) >= len(current.value):
            raise _NoPlaceError(f"`{dotted(done)}` has entries 0 to {len(current.value) - 1}, no `{shown_key(word)}`")
        index = int(word)
        items = list(current.value)
        items[index] = _put(items[index], rest, value, (*done, index))
        return replace(current, value=tuple(items))
    if current.value is not None and not isinstance(current.value, Mapping):
        raise _NoPlaceError(f"`{dotted(done)}` is {shown(current.value)}, which has no `{shown_key(word)}`")
    entries = dict(current.value or {})
    child = entries.get(word) or Node(None, value.span, value.span)
    entries[word] = _put(child, rest, value, (*done, word))
    return replace(current, value=entries)


def _as_list(node: Node) -> Node:
    """A well-formed compact ratio map as the list it stands for, so that one layer can be set; else the node itself."""
    from dsv41c.compiler.spec.ratios import expand

    return expand(node) or node


def _at(node: Node, span: Span) -> Node:
    """The same values, all at one place."""
    if isinstance(node.value, Mapping):
        return Node({key: _at(child, span) for key, child in node.value.items()}, span, span)
    if isinstance(node.value, tuple):
        return Node(tuple(_at(child, span) for child in node.value), span, span)
    return Node(node.value, span, span)


def _bad(message: str, span: Span, help_text: str) -> Diagnostic:
    return Diagnostic("DSV224", message, span, facts=(("form", "--set path=value"),), help=help_text)
