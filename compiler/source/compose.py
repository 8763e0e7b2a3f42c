"""From YAML or JSON text to nodes, by PyYAML's events.

Events rather than PyYAML's own composer: it recurses, expands without bound, resolves by YAML 1.1 and takes the last of
duplicate keys. Here depth, node count and alias expansion are bounded, and each such trap is a finding.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import yaml

from dsv41c.compiler.source.nodes import POISON, Node, Scalar, shown_key
from dsv41c.compiler.source.scalars import ScalarFault, resolve
from dsv41c.compiler.source.syntax import syntax
from dsv41c.diagnostics import Diagnostic, Label, Sink, Span, UserFault

MAX_DEPTH = 32
MAX_NODES = 300_000
# The C parser is ten times as fast; both give the same events.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(slots=True)
class _Frame:
    """A collection that is being read."""

    is_map: bool
    start: Span
    flow: bool
    anchor: str | None
    tagged: bool
    items: list[Node] = field(default_factory=list)
    entries: dict[str, Node] = field(default_factory=dict)
    key: str | None = None
    key_at: Span | None = None
    size: int = 1
    height: int = 1


class Composer:
    """Reads one document. `root` is None for an empty text; `findings` are those that reading could go on after.

    A text with more of them than a `Sink` keeps is none that people wrote, and is read for their number alone.
    """

    def __init__(self, text: str, file: str) -> None:
        self.text = text
        self.file = file
        self.root: Node | None = None
        self.findings = Sink()
        self._stack: list[_Frame] = []
        self._anchors: dict[str, tuple[Node, int, int]] = {}
        self._open_anchors: set[str] = set()
        self._count = 0
        self._documents = 0

    def run(self) -> None:
        """Read the whole text. Raises UserFault where reading cannot go on."""
        loader = _LOADER(self.text)
        try:
            while loader.check_event():
                self._event(loader.get_event())
        except yaml.YAMLError as error:
            self._stop(syntax(error, self.text, self.file))
        finally:
            loader.dispose()
        if any(finding.left_out for finding in self.findings):
            raise UserFault(self.findings)

    # --- events ---------------------------------------------------------------------------------------------------

    def _event(self, event: Any) -> None:
        if isinstance(event, yaml.ScalarEvent):
            self._scalar(event)
        elif isinstance(event, yaml.AliasEvent):
            self._alias(event)
        elif isinstance(event, yaml.MappingStartEvent | yaml.SequenceStartEvent):
            self._start(event)
        elif isinstance(event, yaml.MappingEndEvent | yaml.SequenceEndEvent):
            self._end(event)
        elif isinstance(event, yaml.DocumentStartEvent):
            self._document(event)

    def _document(self, event: Any) -> None:
        self._documents += 1
        if self._documents > 1:
            help_text = "keep one document to a file"
            self._stop(Diagnostic("DSV110", "text holds more than one document", self._span(event), help=help_text))

    def _scalar(self, event: Any) -> None:
        span = self._span(event)
        frame = self._stack[-1] if self._stack else None
        if frame is not None and frame.is_map and frame.key is None:
            self._check_tag(event, span)
            frame.key, frame.key_at = event.value, span
            return
        value: Scalar = event.value
        if self._check_tag(event, span):
            value = POISON
        elif event.implicit[0]:
            resolved = resolve(event.value)
            if isinstance(resolved, ScalarFault):
                self._report(Diagnostic(resolved.code, resolved.message, span, help=_HELP[resolved.code]))
                value = POISON
            else:
                value = resolved
        self._attach(Node(value, span), 1, 0, event.anchor)

    def _alias(self, event: Any) -> None:
        span = self._span(event)
        name = event.anchor
        if self._stack and self._stack[-1].is_map and self._stack[-1].key is None:
            self._stop(_bad_key(span))
        if name in self._open_anchors or name not in self._anchors:
            fault = "inside the value it names" if name in self._open_anchors else "before any anchor of that name"
            help_text = f"define `&{shown_key(name)}` above, on a value that does not hold the alias"
            self._stop(Diagnostic("DSV116", f"alias `*{shown_key(name)}` stands {fault}", span, help=help_text))
        node, size, height = self._anchors[name]
        self._depth(len(self._stack) + height, span)
        self._attach(node, size, height, None, span)

    def _start(self, event: Any) -> None:
        span = self._span(event)
        parent = self._stack[-1] if self._stack else None
        if parent is not None and parent.is_map and parent.key is None:
            self._stop(_bad_key(span))
        self._depth(len(self._stack) + 1, span)
        if event.anchor:
            self._open_anchors.add(event.anchor)
        tagged = self._check_tag(event, span)
        is_map = isinstance(event, yaml.MappingStartEvent)
        self._stack.append(_Frame(is_map, span, bool(event.flow_style), event.anchor, tagged))

    def _end(self, event: Any) -> None:
        frame = self._stack.pop()
        start = frame.start
        if frame.flow:
            end = (event.end_mark.line + 1, event.end_mark.column + 1)
        else:
            # A block collection ends, for the parser, where the next thing starts: take the end of its last entry.
            last = list(frame.entries.values())[-1:] or frame.items[-1:]
            end = (last[0].span.end_line, last[0].span.end_column) if last else (start.line, start.column)
        span = Span(self.file, start.line, start.column, *end)
        value = POISON if frame.tagged else frame.entries if frame.is_map else tuple(frame.items)
        self._open_anchors.discard(frame.anchor or "")
        self._attach(Node(value, span), frame.size, frame.height, frame.anchor)

    # --- building ---------------------------------------------------------------------------------------------------

    def _attach(self, node: Node, size: int, height: int, anchor: str | None, alias: Span | None = None) -> None:
        """Put a finished node into its parent. `alias` is where an alias stands that repeats the node."""
        self._count += size if alias else 1
        if self._count > MAX_NODES:
            facts = (("limit", str(MAX_NODES)),)
            message = f"text expands to more than {MAX_NODES} values"
            self._stop(Diagnostic("DSV113", message, alias or node.span, facts=facts, help="use fewer aliases"))
        if anchor:
            self._anchors[anchor] = (node, size, height)
        if not self._stack:
            self.root = node
            return
        frame = self._stack[-1]
        frame.size += size
        frame.height = max(frame.height, height + 1)
        if not frame.is_map:
            frame.items.append(node)
            return
        key, span = frame.key or "", frame.key_at
        frame.key = frame.key_at = None
        if key == "<<":
            help_text = "write the entries out, or use `extends` to start from another spec"
            self._report(Diagnostic("DSV108", "merge key `<<` is not part of YAML 1.2", span, help=help_text))
        elif key in frame.entries:
            first = frame.entries[key].key
            labels = (Label(first, "first given here"),) if first else ()
            message = f"key `{shown_key(key)}` is given twice"
            self._report(Diagnostic("DSV106", message, span, labels, help="keep one of the two"))
        else:
            frame.entries[key] = node.with_key(span)

    def _check_tag(self, event: Any, span: Span) -> bool:
        """Whether a node has a tag of its own; reports it."""
        if event.tag in (None, "!"):
            return False
        written = event.tag.replace("tag:yaml.org,2002:", "!!")
        message = f"tag `{shown_key(written)}` is not allowed, values have no tags here"
        self._report(Diagnostic("DSV107", message, span, help="remove the tag"))
        return True

    def _depth(self, depth: int, span: Span) -> None:
        if depth > MAX_DEPTH:
            message = f"values are nested more than {MAX_DEPTH} deep"
            facts = (("limit", str(MAX_DEPTH)),)
            self._stop(Diagnostic("DSV112", message, span, facts=facts, help="a spec is at most five levels deep"))

    def _report(self, finding: Diagnostic) -> None:
        self.findings.add(finding)

    def _stop(self, finding: Diagnostic) -> None:
        raise UserFault([*self.findings, finding])

    def _span(self, event: Any) -> Span:
        start, end = event.start_mark, event.end_mark
        return Span(self.file, start.line + 1, start.column + 1, end.line + 1, end.column + 1)


_HELP = {
    "DSV114": "write a number in range, or quote it if it is text",
    "DSV115": "write a finite number, or quote it if it is text",
}


def _bad_key(span: Span) -> Diagnostic:
    message = "key is a list, a map or an alias, expected text"
    return Diagnostic("DSV109", message, span, help="quote the key if it holds brackets, braces, `*` or `&`")
