"""`dsv41c import`: a config.json of the model becomes a spec that validates.

Every value keeps its place in the config, so findings point there. A key that could change the mathematics is never
ignored in silence; one that is known to say nothing about the text backbone is.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from dsv41c.compiler.importing import keys
from dsv41c.compiler.importing.quantisation import check_quantisation
from dsv41c.compiler.source import MAX_BYTES, POISON, Node, Poison, dotted, parse, read_file, shown, shown_key, to_data
from dsv41c.compiler.spec.findings import head
from dsv41c.compiler.spec.locate import Stdin, read_stdin
from dsv41c.compiler.spec.models import FORMAT, Spec
from dsv41c.compiler.spec.near import config_hint
from dsv41c.compiler.spec.validate import validate
from dsv41c.compiler.spec.write import to_yaml
from dsv41c.diagnostics import Diagnostic, Label, Sink, Span, UserFault, ordered

NAME = "deepseek-v4.1"
HEADER = (
    "Imported from a model config. What the model is comes from there; numerics, placement and runtime are defaults",
    "to change for the machine at hand (or to override with --target and --set).",
)
REMARKS = {
    "layers.compress_ratios": "0: window only; r: groups of r tokens",
    "layers.kv_source_layers": "who compresses KV; later layers read the latest one",
    "layers.index_source_layers": "who selects groups",
    "layers.candidate_source_layer": "later index sources select inside its blocks",
    "moe.swiglu_limit": "0: no clamp",
    "weights": "how the checkpoint stores them",
    "numerics.activation_quant": "none | fp8",
    "numerics.kv_cache": "none | reference | packed",
    "runtime.capture": "off | layer | {every: N} | all",
}


@dataclass(frozen=True, slots=True)
class Imported:
    """The outcome of an import: the text of a spec (None if there are errors), and every finding.

    `sources` maps the names in spans to texts, for snippets.
    """

    text: str | None
    diagnostics: tuple[Diagnostic, ...]
    sources: Mapping[str, str]


def import_config(path: str, *, name: str = NAME, stdin: Stdin | None = None) -> Imported:
    """Import the config at a path (`-`: what `stdin` reads). Faults are in the result; nothing is raised."""
    file = "<stdin>" if path == "-" else path
    sink, sources = Sink(), dict[str, str]()
    try:
        data = (stdin or read_stdin)() if path == "-" else read_file(path, file)
        data = data[: MAX_BYTES + 1]
        sources[file] = data.decode("utf-8", "replace") if isinstance(data, bytes) else str(data)
        document = parse(data, file)
    except UserFault as fault:
        found = (_in_terms_of_configs(finding, path, sources.get(file)) for finding in fault.diagnostics)
        return Imported(None, ordered(found), sources)
    sink.extend(document.diagnostics)
    spec = spec_of(document.root, name, sink)
    text = None if spec is None or sink.failed else to_yaml(spec, HEADER, REMARKS)
    return Imported(text, ordered(sink), sources)


def told(path: str, name: str, sink: Sink) -> Spec | None:
    """The spec that a config in a file stands for; None where it cannot be read, or stands for none."""
    try:
        document = parse(read_file(path, path)[: MAX_BYTES + 1], path)
    except UserFault:
        return None
    return spec_of(document.root, name, sink)


def _in_terms_of_configs(finding: Diagnostic, path: str, text: str | None) -> Diagnostic:
    """What reading any text found, said of a config: configs are JSON, also where they are read as YAML."""
    if text is None:
        return config_hint(finding, path)
    if finding.code == "DSV118":
        return replace(finding, help="give the config.json of a model")
    if finding.code not in ("DSV101", "DSV105"):
        return finding
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        place = Span(path if path != "-" else "<stdin>", error.lineno, error.colno, error.lineno, error.colno + 1)
        message = f"the config is not valid JSON: {error.msg[:1].lower()}{error.msg[1:]}"
        return Diagnostic("DSV101", message, place, help="check that it is whole, then commas, quotes and brackets")
    except (ValueError, RecursionError):  # a number or a depth that Python refuses
        return finding
    return finding


def spec_of(root: Node, name: str, sink: Sink) -> Spec | None:
    """The spec that a config stands for; None where it is not one of this family, or stands for none."""
    if not isinstance(root.value, Mapping):
        message = f"the config is {shown(to_data(root))}, expected a map"
        facts = (("expected", "the config.json of a model"),)
        sink.add(Diagnostic("DSV203", message, head(root.span), facts=facts, help="give the config.json of a model"))
        return None
    config = _Config(root, sink)
    if not config.check_architecture():
        return None
    config.gather()
    config.check_keys()
    tree = config.spec_tree(name, check_quantisation(config.places, root, sink))
    judged = Sink()
    validated = validate(tree, judged)
    # What the config lacks is reported by its own names already.
    sink.extend(finding for finding in judged if finding.code != "DSV202")
    return validated.spec


@dataclass(frozen=True, slots=True)
class _Found:
    """A parameter as it was found: under which key, at which level, in what order."""

    name: str
    level: str
    node: Node


@dataclass(slots=True)
class _Config:
    """A config being read: where parameters may stand, and what was found for each."""

    root: Node
    sink: Sink
    places: list[tuple[str, Node]] = field(init=False)
    found: dict[str, list[_Found]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.places = [("", self.root)]
        text = self.root.get("text_config")
        if text is not None and isinstance(text.value, Mapping):
            self.places.append(("text_config", text))
        elif text is not None and not isinstance(text.value, Poison):
            message = f"`text_config` is {shown(to_data(text))}, expected a map"
            facts = (("expected", "the text parameters"),)
            self.sink.add(Diagnostic("DSV203", message, head(text.span), facts=facts, help="nest the parameters in it"))

    # --- which model ------------------------------------------------------------------------------------------------

    def check_architecture(self) -> bool:
        """Whether the config names this architecture, exactly; or is the inference code's own, which names none."""
        before = len(list(self.sink))
        named = False
        for _level, place in self.places:
            for key, allowed in (("model_type", keys.MODEL_TYPES), ("architectures", keys.ARCHITECTURES)):
                node = place.get(key)
                if node is None or node.value is None or isinstance(node.value, Poison):
                    continue
                named = True
                # Only `architectures` is a list.
                names = node.value if key == "architectures" and isinstance(node.value, tuple) else (node,)
                for item in names:
                    if item.value not in allowed:
                        self.sink.add(_other_architecture(key, item, allowed))
        if not named and self.root.get("dim") is None and self.root.get("n_layers") is None:
            facts = (("supported", ", ".join((*keys.MODEL_TYPES, *keys.ARCHITECTURES))),)
            message = "the config names no `model_type` and no `architectures`"
            help_text = 'give the whole config.json, or add `"model_type": "deepseek_v41"` if it is that'
            self.sink.add(Diagnostic("DSV230", message, head(self.root.span), facts=facts, help=help_text))
        return not any(finding.code == "DSV230" for finding in list(self.sink)[before:])

    # --- what it says -----------------------------------------------------------------------------------------------

    def gather(self) -> None:
        """Find every parameter, in every spelling, at every level; report those that disagree."""
        for level, place in self.places:
            for name, node in _entries(place):
                if name in keys.SPELLINGS:
                    self._keep(keys.SPELLINGS[name], _Found(name, level, node))
            scaling = place.get("rope_scaling")
            if scaling is not None and scaling.value is not None:
                self._rope_scaling(level, scaling)
        for found in self.found.values():
            if not all([self._agree(found[0], other) for other in found[1:]]):
                # Which of them is right is not known, so nothing is concluded from either.
                found[0] = replace(found[0], node=replace(found[0].node, value=POISON))

    def _keep(self, parameter: str, found: _Found) -> None:
        self.found.setdefault(parameter, []).append(found)

    def _rope_scaling(self, level: str, scaling: Node) -> None:
        inner = f"{level}.rope_scaling" if level else "rope_scaling"
        if not isinstance(scaling.value, Mapping):
            message = f"`{inner}` is {shown(to_data(scaling))}, expected a map"
            facts = (("expected", "rope_type, factor, beta_fast, beta_slow, original_max_position_embeddings"),)
            self.sink.add(Diagnostic("DSV203", message, head(scaling.span), facts=facts, help="write a map here"))
            return
        for name, node in _entries(scaling):
            if name in keys.ROPE_SCALING:
                self._keep(keys.ROPE_SCALING[name], _Found(name, inner, node))
            elif name in ("rope_type", "type"):
                self._fixed(f"{inner}.{name}", node, ("yarn",))
            elif node.value is not None:
                self._fixed(f"{inner}.{name}", node, (None,))

    def _agree(self, first: _Found, other: _Found) -> bool:
        """Whether two places that give one parameter agree; reports it if not, or if they are at one level."""
        one, two = to_data(first.node), to_data(other.node)
        labels = (Label(first.node.key, "the other place"),) if first.node.key else ()
        names = [f"{found.level}.{found.name}" if found.level else found.name for found in (first, other)]
        facts = ((names[0], shown(one)), (names[1], shown(two)))
        if _same(one, two):
            if first.level == other.level and first.name != other.name:
                message = f"`{names[0]}` and `{names[1]}` are two spellings of one key, and agree"
                help_text = f"keep `{first.name}`"
                self.sink.add(Diagnostic("DSV207", message, other.node.key, labels, facts, help_text))
            return True
        code = "DSV206" if first.level == other.level else "DSV231"
        message = f"`{names[0]}` is {shown(one)} and `{names[1]}` is {shown(two)}, expected the same"
        self.sink.add(Diagnostic(code, message, other.node.key, labels, facts, "keep the one that is right"))
        return False

    def _fixed(self, name: str, node: Node, allowed: tuple[object, ...]) -> None:
        value = to_data(node)
        if isinstance(value, Poison) or any(_same(value, item) for item in allowed):
            return
        message = f"`{name}` is {shown(value)}, this model family has {shown(allowed[0])}"
        facts = (("expected", shown(allowed[0])),)
        help_text = "import only configs of this family; remove the key if it is a leftover"
        self.sink.add(Diagnostic("DSV233", message, head(node.span), facts=facts, help=help_text))

    def check_keys(self) -> None:
        """Every key is a parameter, has its one value, is known to say nothing, or is reported."""
        known = (*keys.SPELLINGS, *keys.FIXED)
        for level, place in self.places:
            for name, node in _entries(place):
                if name in keys.FIXED:
                    self._fixed(f"{level}.{name}" if level else name, node, keys.FIXED[name])
                elif (
                    name not in keys.SPELLINGS
                    and name not in keys.IGNORED
                    and not name.startswith(keys.IGNORED_PREFIXES)
                ):
                    self.sink.add(_unknown(level, name, node, known))

    # --- the spec ---------------------------------------------------------------------------------------------------

    def spec_tree(self, name: str, weights: Mapping[str, str]) -> Node:
        """The spec as a tree whose spans lie in the config."""
        place = head(self.root.span)
        sections: dict[str, Any] = {"format": FORMAT, "name": name, "weights": dict(weights)}
        for parameter, node in self._parameters():
            inner = sections
            *parents, last = parameter.split(".")
            for parent in parents:
                inner = inner.setdefault(parent, {})
            inner[last] = node
        return _tree(sections, place)

    def _parameters(self) -> Iterator[tuple[str, Node]]:
        """Every parameter of the spec with its value; missing ones are assumed or reported."""
        engram, candidates = self._has_engram(), self._has_candidates()
        for parameter in keys.FIELDS:
            found = self.found.get(parameter)
            if parameter.startswith("engram.") and not engram:
                continue
            if parameter in keys.WITHOUT_CANDIDATES and not candidates and not (found and _positive(found[0].node)):
                yield parameter, self._made(keys.WITHOUT_CANDIDATES[parameter])
            elif found:
                yield parameter, found[0].node
            elif parameter in keys.SILENT_DEFAULTS:
                yield parameter, self._made(keys.SILENT_DEFAULTS[parameter])
            elif parameter in keys.ASSUMED:
                yield parameter, self._assume(parameter)
            elif not self._may_lack(parameter, engram, candidates):
                self._report_missing(parameter)

    def _has_engram(self) -> bool:
        """Whether the model has engrams: layers, or tables for them (which then is for the checks to reject)."""
        lists = ("layers.engram_layers", "engram.num_embeddings")
        return any(to_data(self.found[name][0].node) not in ((), None) for name in lists if name in self.found)

    def _has_candidates(self) -> bool:
        """Whether there is a second level of selection; where only its sizes are given, the source is missing."""
        if "layers.candidate_source_layer" in self.found:
            value = self.found["layers.candidate_source_layer"][0].node.value
            return not (value is None or (isinstance(value, int) and value < 0))
        sizes = self.found.get("indexer.candidate_topk_blocks")
        return sizes is not None and _positive(sizes[0].node)

    def _may_lack(self, parameter: str, engram: bool, candidates: bool) -> bool:
        optional = {
            "layers.engram_layers": not engram,
            "layers.candidate_source_layer": not candidates,
            "engram.hash_layers": True,  # only of a model that was cut from another
        }
        return optional.get(parameter, False)

    def _made(self, value: int | float) -> Node:
        place = head(self.root.span)
        return Node(value, place, place)

    def _assume(self, parameter: str) -> Node:
        name, value = keys.FIELDS[parameter][0], keys.ASSUMED[parameter]
        message = f"the config has no `{name}`, took the released model's, {value}"
        facts = ((name, str(value)), ("in the spec", parameter))
        help_text = "check that it fits the checkpoint; change it in the spec if not"
        self.sink.add(Diagnostic("DSV236", message, self._text_place(), facts=facts, help=help_text))
        return self._made(value)

    def _report_missing(self, parameter: str) -> None:
        first, *others = keys.FIELDS[parameter]
        if parameter.startswith("rope.yarn."):
            inner = {field: name for name, field in keys.ROPE_SCALING.items()}[parameter]
            others = [f"rope_scaling.{inner}"]
        message = f"the config has no `{first}`" + "".join(f" (nor `{other}`)" for other in others)
        facts = (("looked at", "the top level" + (" and `text_config`" if len(self.places) > 1 else "")),)
        help_text = f"add `{first}`; write an empty list, or -1 for a layer, if the model has none"
        self.sink.add(Diagnostic("DSV237", message, self._text_place(), facts=facts, help=help_text))

    def _text_place(self) -> Span:
        node = self.places[-1][1]
        return node.key or head(node.span)


def _entries(place: Node) -> list[tuple[str, Node]]:
    return list(place.value.items()) if isinstance(place.value, Mapping) else []


def _tree(value: Any, place: Span) -> Node:
    """Nested dicts of nodes and plain values as a tree; what has no place of its own gets `place`."""
    if isinstance(value, Node):
        return value
    if isinstance(value, dict):
        return Node({key: _tree(item, place) for key, item in value.items()}, place, place)
    return Node(value, place, place)


def _same(one: object, two: object) -> bool:
    """Equality that keeps 1 and true apart."""
    return one == two and isinstance(one, bool) == isinstance(two, bool)


def _positive(node: Node) -> bool:
    return isinstance(node.value, int) and not isinstance(node.value, bool) and node.value > 0


def _other_architecture(key: str, node: Node, allowed: tuple[str, ...]) -> Diagnostic:
    value = to_data(node)
    reason = keys.NEIGHBOURS.get(value) if isinstance(value, str) else None
    message = f"{shown_key(value)} {reason}" if reason else f"`{key}` is {shown(value)}, which is not supported"
    facts = (("supported", ", ".join(allowed)), ("given", shown(value)))
    help_text = "import a config of DeepSeek-V4.1"
    return Diagnostic("DSV230", message, head(node.span), facts=facts, help=help_text)


def _unknown(level: str, name: str, node: Node, known: tuple[str, ...]) -> Diagnostic:
    path = dotted((level, name)) if level else shown_key(name)
    near = difflib.get_close_matches(name, known, 1, 0.8)
    facts = ((path, shown(to_data(node))),)
    if near:
        message = f"unknown key `{path}`, which resembles a parameter of the model"
        return Diagnostic("DSV235", message, node.key, facts=facts, help=f"did you mean `{near[0]}`?")
    if name.startswith(keys.FAMILIES):
        message = f"unknown key `{path}`, which is named like a parameter of the model"
        help_text = "remove it if it does not change what the model computes"
        return Diagnostic("DSV235", message, node.key, facts=facts, help=help_text)
    help_text = "nothing to do if it does not change what the model computes"
    return Diagnostic("DSV234", f"key `{path}` is not read", node.key, facts=facts, help=help_text)
