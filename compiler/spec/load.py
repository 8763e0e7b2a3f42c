"""Loads a spec: finds the text, follows `extends`, lays target and overrides over it, validates. Never raises."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from dsv41c.compiler.source import MAX_BYTES, Document, Node, Poison, Spans, parse, shown, shown_key, to_data
from dsv41c.compiler.spec.canonical import canonicalise
from dsv41c.compiler.spec.findings import head
from dsv41c.compiler.spec.locate import Origin, Stdin, find, find_base, name_in_plan
from dsv41c.compiler.spec.merge import apply_set, overlay
from dsv41c.compiler.spec.models import SECTIONS, TARGET_SECTIONS, Section, Spec
from dsv41c.compiler.spec.salvage import Salvaged
from dsv41c.compiler.spec.validate import Validated, validate
from dsv41c.diagnostics import Diagnostic, Label, Sink, Span, UserFault, ordered

MAX_EXTENDS = 8


@dataclass(frozen=True, slots=True)
class Loaded:
    """A spec as far as it is valid, and every finding.

    `spec` is there when every section is valid by itself; `diagnostics` may still hold errors (rules between values),
    so ask `has_errors` before building on it. `sections` holds those that can be judged, `invalid` names those that are
    wrong (a section whose only fault are unknown keys is in both); a section in neither is absent from the model;
    `salvaged` is what can still be judged of an invalid layer map. `sources` maps the names in spans to texts, for
    snippets; `names` maps them to what a plan calls these files, wherever they lie.
    """

    file: str
    spec: Spec | None
    sections: Mapping[str, Section]
    invalid: frozenset[str]
    salvaged: Salvaged | None
    spans: Spans
    sources: Mapping[str, str]
    diagnostics: tuple[Diagnostic, ...]
    names: Mapping[str, str]


def load(
    ref: str,
    *,
    target: str | None = None,
    sets: Sequence[str] = (),
    stdin: Stdin | None = None,
    instead: str | None = None,
) -> Loaded:
    """Load the spec `ref` (a file, `-`, or a shipped name), for a target, with `path=value` overrides.

    `stdin` reads what `-` means; `instead` is a text in place of the one that `ref` holds. Faults are in the result;
    nothing is raised for any input.
    """
    loader = _Loader()
    try:
        origin = find(ref, stdin) if instead is None else replace(find(ref, lambda: instead), data=instead)
        loader.file = origin.file
        root = loader.document(origin, ())
        if target is not None:
            root = loader.target(root, target)
        for number, text in enumerate(sets, 1):
            file = f"<--set {number}>"
            loader.sources[file] = text
            root = apply_set(root, text, file, loader.sink)
    except UserFault as fault:
        loader.sink.extend(fault.diagnostics)
        return loader.failed(ref)
    return loader.result(validate(root, loader.sink))


class _Loader:
    """Collects texts and findings of one load."""

    def __init__(self) -> None:
        self.file = ""
        self.sink = Sink()
        self.sources: dict[str, str] = {}
        self.names: dict[str, str] = {}

    def document(self, origin: Origin, chain: tuple[str, ...]) -> Node:
        """The tree of a text, laid over what it extends. `chain` holds the identities of those that extend it."""
        root = self._parse(origin, chain[0] if chain else origin.identity)
        base = root.get("extends")
        if base is None or not isinstance(root.value, Mapping):
            return root
        own = replace(root, value={key: node for key, node in root.value.items() if key != "extends"})
        span = head(base.span)
        if isinstance(base.value, Poison):
            raise UserFault([])  # reported already; without the base everything would be missing
        if not isinstance(base.value, str):
            message = f"`extends` is {shown(to_data(base))}, expected the name of a spec"
            facts = (("expected", "a shipped name, or a file in this folder"),)
            raise UserFault([Diagnostic("DSV203", message, span, facts=facts, help="write `extends: NAME`")])
        chain = (*chain, origin.identity)
        source = find_base(base.value, span, origin)
        self._check_chain(base.value, source, chain, span)
        return overlay(self.document(source, chain), own)

    def target(self, root: Node, ref: str) -> Node:
        """The tree with a target's sections laid over it."""
        origin = find(ref, None, "targets")
        tree = self._parse(origin, origin.identity)
        if not isinstance(tree.value, Mapping):
            message = f"the target is {shown(to_data(tree))}, expected a map"
            facts = (("sections", ", ".join(TARGET_SECTIONS)),)
            help_text = "write the sections of a machine"
            raise UserFault([Diagnostic("DSV203", message, head(tree.span), facts=facts, help=help_text)])
        kept = {}
        for key, node in tree.value.items():
            if key in TARGET_SECTIONS:
                kept[key] = node
                continue
            message = f"`{shown_key(key)}` is no section of a target, which describes a machine"
            facts = (("sections of a target", ", ".join(TARGET_SECTIONS)),)
            help_text = "move it to the spec" if key in SECTIONS else "remove it"
            self.sink.add(Diagnostic("DSV223", message, node.key, facts=facts, help=help_text))
        # The place of the whole stays the spec's: what is missing is missing there.
        return replace(overlay(root, replace(tree, value=kept)), span=root.span)

    def result(self, validated: Validated) -> Loaded:
        """The outcome of a load that reached validation."""
        return Loaded(
            self.file,
            validated.spec,
            validated.sections,
            validated.invalid,
            validated.salvaged,
            validated.spans,
            self.sources,
            ordered(self.sink),
            self.names,
        )

    def failed(self, ref: str) -> Loaded:
        """The outcome of a load that could not go on."""
        nothing = Spans(Node({}, Span(self.file or ref)))
        found = ordered(self.sink)
        return Loaded(self.file or ref, None, {}, frozenset(SECTIONS), None, nothing, self.sources, found, self.names)

    def _parse(self, origin: Origin, first: str) -> Node:
        """The tree of a text; `first` is the identity of the text that was asked for and extends this one."""
        self.names[origin.file] = name_in_plan(origin, first)
        data = origin.data[: MAX_BYTES + 1]
        # Kept before parsing, so that a text that cannot be parsed has snippets too.
        self.sources[origin.file] = data.decode("utf-8", "replace") if isinstance(data, bytes) else data
        document: Document = parse(data, origin.file)
        self.sink.extend(document.diagnostics)
        return canonicalise(document.root, self.sink)

    def _check_chain(self, ref: str, source: Origin, chain: tuple[str, ...], span: Span) -> None:
        """Refuse a chain of bases that is endless or very long. Raises UserFault."""
        facts = (("extends", shown_key(ref)), ("specs in the chain", str(len(chain))))
        if source.identity in chain:
            message = f"`extends: {shown_key(ref)}` comes back to a spec that extends this one"
            labels = (Label(Span(source.file), "this spec"),)
            raise UserFault(
                [
                    Diagnostic(
                        "DSV221", message, span, labels, facts, "let one of them stand alone, or extend a shipped spec"
                    )
                ]
            )
        if len(chain) >= MAX_EXTENDS:
            message = f"more than {MAX_EXTENDS} specs extend one another"
            raise UserFault([Diagnostic("DSV221", message, span, (), facts, "write the spec out")])
