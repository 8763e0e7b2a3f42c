"""Text to data, with the place of every value and key. No input raises anything but `UserFault`."""

from __future__ import annotations

from dataclasses import dataclass

from dsv41c.compiler.source.compose import MAX_DEPTH, MAX_NODES, Composer
from dsv41c.compiler.source.nodes import (
    POISON,
    Node,
    Path,
    Poison,
    Scalar,
    Spans,
    dotted,
    poisoned,
    shown,
    shown_key,
    to_data,
)
from dsv41c.compiler.source.text import MAX_BYTES, decode, read_file, refuse_strange
from dsv41c.diagnostics import Diagnostic, Span, UserFault

__all__ = [
    "MAX_BYTES",
    "MAX_DEPTH",
    "MAX_NODES",
    "POISON",
    "Document",
    "Node",
    "Path",
    "Poison",
    "Scalar",
    "Spans",
    "decode",
    "dotted",
    "parse",
    "poisoned",
    "read_file",
    "refuse_strange",
    "shown",
    "shown_key",
    "to_data",
]


@dataclass(frozen=True, slots=True)
class Document:
    """A text that was read. Values that `diagnostics` tells about are `POISON` in the tree."""

    root: Node
    text: str
    file: str
    diagnostics: tuple[Diagnostic, ...]


def parse(source: str | bytes, file: str) -> Document:
    """Read YAML or JSON. `file` is the name that spans carry. Raises UserFault where nothing can be read."""
    text = decode(source, file) if isinstance(source, bytes) else source
    refuse_strange(text, file)
    composer = Composer(text, file)
    composer.run()
    if composer.root is None:
        help_text = "write a spec, or `extends: toy` to start from one"
        raise UserFault([*composer.findings, Diagnostic("DSV118", "text is empty", Span(file), help=help_text)])
    return Document(composer.root, text, file, tuple(composer.findings))
