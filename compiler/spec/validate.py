"""Validates a tree section by section, so that one fault does not hide the others."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError

from dsv41c.compiler.source import Node, Poison, Spans, poisoned, shown, to_data
from dsv41c.compiler.spec import dims, findings, normalise, salvage
from dsv41c.compiler.spec.locate import shipped_names
from dsv41c.compiler.spec.models import FORMAT, NAME_PATTERN, OPTIONAL_SECTIONS, SECTIONS, Section, Spec
from dsv41c.compiler.spec.salvage import Salvaged
from dsv41c.diagnostics import MOST_OF_A_CODE, Diagnostic, Sink
from dsv41c.words import shortlist

_HEADER = ("format", "name")


@dataclass(frozen=True, slots=True)
class Validated:
    """`spec` is there when every section has the right form; rules between sections may still have findings.

    `sections` are those that can be judged, by name: the valid ones, and those whose only fault are unknown keys.
    `invalid` names those that are wrong or missing. A section in neither (`engram`) is absent from the model.
    `salvaged` is what can still be judged of a layer map that is not valid.
    """

    spec: Spec | None
    sections: Mapping[str, Section]
    invalid: frozenset[str]
    salvaged: Salvaged | None
    spans: Spans


def validate(root: Node, sink: Sink) -> Validated:
    """Validate a merged tree with canonical keys."""
    if not isinstance(root.value, Mapping):
        sink.add(_no_map(root))
        return Validated(None, {}, frozenset(SECTIONS), None, Spans(root))
    spans = Spans(root)
    if (whole := _something_else(root)) is not None:
        sink.add(whole)
        return Validated(None, {}, frozenset(SECTIONS), None, spans)
    suppressed = _unknown_sections(root, spans, sink)
    if (fragment := _fragment(root, suppressed)) is not None:
        sink.add(fragment)
        suppressed |= {"extends", *findings.known_keys(())}
    # Of a section that was meant by a misspelt one, what a base says is not what the spec says.
    doubtful = suppressed & set(SECTIONS) if "extends" not in suppressed else set()
    root = replace(root, value={key: node for key, node in root.value.items() if key not in doubtful})
    header = _header(root, spans, sink, suppressed)
    run = _Run(root, sink, suppressed, spans)
    for name in SECTIONS:
        run.section(name)
    spans = Spans(Node(run.nodes, root.span))
    for finding in dims.check(run.valid, spans):
        sink.add(finding)
    spec = None
    if header is not None and not run.invalid:
        spec = Spec.model_validate({"format": FORMAT, "name": header, "engram": None, **run.valid})
    return Validated(spec, run.valid, frozenset(run.invalid), run.salvaged, spans)


class _Run:
    """One pass over the sections; `nodes` is the tree in normal form, for spans."""

    def __init__(self, root: Node, sink: Sink, suppressed: set[str], written: Spans) -> None:
        assert isinstance(root.value, Mapping)
        self.nodes: dict[str, Node] = dict(root.value)
        self.sink = sink
        self.suppressed = suppressed
        self.valid: dict[str, Section] = {}
        self.invalid: set[str] = set()
        self.salvaged: Salvaged | None = None
        self.root = root
        self.written = written
        self.counts = normalise.Counts.of(root)

    def section(self, name: str) -> None:
        """Validate one section, if it is there or has defaults."""
        before = self.sink.errors
        node = self.nodes.get(name)
        if node is None or (node.value is None and name in OPTIONAL_SECTIONS):
            if name in self.suppressed:
                self.invalid.add(name)
                return
            if name == "engram":
                return
            if name not in OPTIONAL_SECTIONS:
                self.invalid.add(name)
                self.sink.add(findings.missing_key((name,), self.written))
                return
            data: Any = {}
        elif name == "layers":
            node = self.nodes[name] = normalise.layers(node, self.counts, self.sink)
            data = normalise.layers_data(node)
        else:
            data = to_data(node)
        self._judge(name, node, data, before)

    def _judge(self, name: str, node: Node | None, data: Any, before: int) -> None:
        """Validate the data of one section against its model."""
        if name == "placement" and isinstance(data, dict):
            data = normalise.placement(data, self.counts)
        if name == "runtime" and isinstance(data, dict):
            data = normalise.runtime(data, self.counts)
        try:
            section = SECTIONS[name].model_validate(data)
        except ValidationError as error:
            self.invalid.add(name)
            spans = Spans(Node({name: node} if node else {}, self.root.span))
            errors = error.errors(include_url=False)
            found, meant, left_out = findings.section_findings(name, errors, spans)
            base_meant = "extends" in self.suppressed  # then a section holds but the lines that differ
            self.sink.extend(item for item in found if not (base_meant and item.code == "DSV202"))
            for code, count in left_out.items():
                self.sink.leave_out(code, count)
            self._salvage(name, node, data, [*(part["loc"] for part in errors), *(path[1:] for path in meant)])
            return
        if self.sink.errors > before or (node is not None and poisoned(node)):
            self.invalid.add(name)
            self._salvage(name, node, data, [])
            return
        self.valid[name] = section

    def _salvage(self, name: str, node: Node | None, data: Any, wrong: Sequence[tuple[str | int, ...]]) -> None:
        """Keep what can still be judged of a section: some layer map, or the section without its unknown keys."""
        if name == "layers" and node is not None:
            self.salvaged = salvage.layers(node, data, wrong)
        elif isinstance(data, dict) and (section := salvage.known_part(SECTIONS[name], data)) is not None:
            self.valid[name] = section


def _unknown_sections(root: Node, spans: Spans, sink: Sink) -> set[str]:
    """Report unknown keys at the top; the sections they were most likely meant to be."""
    assert isinstance(root.value, Mapping)
    meant = set()
    unknown = [key for key in root.value if key not in SECTIONS and key not in _HEADER]
    for key in unknown[:MOST_OF_A_CODE]:
        finding, suggestion = findings.unknown_key((key,), findings.known_keys(()), spans)
        sink.add(finding)
        if suggestion:
            meant.add(suggestion)
    if len(unknown) > MOST_OF_A_CODE:  # to look for the nearest key of each takes long
        sink.leave_out("DSV201", len(unknown) - MOST_OF_A_CODE)
    if "extends" in meant:  # whatever is missing was to come from there
        meant.update(findings.known_keys(()))
    return meant


def _header(root: Node, spans: Spans, sink: Sink, suppressed: set[str]) -> str | None:
    """Check `format` and `name`; the name, if both are right."""
    names: dict[str, Any] = {}
    for key in _HEADER:
        node = root.get(key)
        if node is None:
            if key not in suppressed:
                sink.add(_missing_header(key, spans))
        elif not isinstance(node.value, Poison):
            names[key] = to_data(node)
    valid = True
    if "format" in names and names["format"] != FORMAT:
        message = f"`format` is {shown(names['format'])}, expected `{FORMAT}`"
        span = findings.head(spans.value(("format",)))
        sink.add(Diagnostic("DSV214", message, span, facts=(("read here", FORMAT),), help=f"write `format: {FORMAT}`"))
        valid = False
    if "name" in names:
        valid &= _check_name(names["name"], spans, sink)
    return names["name"] if valid and len(names) == 2 else None


def _check_name(name: object, spans: Spans, sink: Sink) -> bool:
    span = spans.value(("name",))
    if not isinstance(name, str):
        sink.add(findings.wrong_type(("name",), "text", name, span))
        return False
    if not re.fullmatch(NAME_PATTERN, name):
        sink.add(findings.bad_name(name, span))
        return False
    return True


def _something_else(root: Node) -> Diagnostic | None:
    """The finding for a model's config where a spec is expected."""
    if root.get("model_type") is None and root.get("text_config") is None:
        return None
    message = "text is the config of a model, expected a spec"
    help_text = "make a spec of it: `dsv41c import CONFIG.json -o SPEC.yaml`"
    return Diagnostic("DSV203", message, findings.head(root.span), facts=(("expected", "a spec"),), help=help_text)


def _fragment(root: Node, suppressed: set[str]) -> Diagnostic | None:
    """The finding for a part of a spec that says neither what it is nor where the rest comes from."""
    assert isinstance(root.value, Mapping)
    required = [name for name in (*_HEADER, *SECTIONS) if name not in OPTIONAL_SECTIONS]
    absent = [name for name in required if root.get(name) is None and name not in suppressed]
    if not set(_HEADER) <= set(absent) or len(absent) < len(required) // 2:
        return None
    message = f"the spec lacks {shortlist([f'`{name}`' for name in absent], 4)}, and extends no spec that has them"
    help_text = "add `extends: NAME` to start from a shipped spec, or write the rest out"
    facts = (("shipped specs", ", ".join(shipped_names())),)
    return Diagnostic("DSV202", message, findings.head(root.span), facts=facts, help=help_text)


def _no_map(root: Node) -> Diagnostic:
    message = f"the spec is {shown(to_data(root))}, expected a map of sections"
    facts = (("sections", ", ".join(SECTIONS)),)
    help_text = "write sections, or `extends: toy` to start from a shipped spec"
    return Diagnostic("DSV203", message, findings.head(root.span), facts=facts, help=help_text)


def _missing_header(key: str, spans: Spans) -> Diagnostic:
    line = f"format: {FORMAT}" if key == "format" else "name: NAME"
    message = f"the spec has no `{key}`"
    return Diagnostic(
        "DSV202", message, findings.head(spans.value(())), facts=(("expected", line),), help=f"add `{line}`"
    )
