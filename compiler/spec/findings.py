"""From pydantic's errors to findings: the key or value at fault, what was expected, the nearest name."""

from __future__ import annotations

import difflib
import types
import typing
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from dsv41c.compiler.source import Path, Poison, Spans, dotted, shown, shown_key
from dsv41c.compiler.spec.aliases import ALIASES
from dsv41c.compiler.spec.mechanical import inside, respelled, retyped
from dsv41c.compiler.spec.models import SECTIONS
from dsv41c.diagnostics import MOST_OF_A_CODE, Diagnostic, Edit, Span
from dsv41c.kernels.catalog import FAMILIES
from dsv41c.words import counted

_TYPES = {
    "int_type": "an integer",
    "float_type": "a number",
    "string_type": "text",
    "tuple_type": "a list",
    "list_type": "a list",
    "dict_type": "a map",
    "mapping_type": "a map",
    "model_type": "a map",
    "bool_type": "true or false",
    "finite_number": "a finite number",
}
_RANGES = {
    "greater_than_equal": ("ge", "at least"),
    "greater_than": ("gt", "more than"),
    "less_than_equal": ("le", "at most"),
    "less_than": ("lt", "less than"),
}
_CODES = {"missing": "DSV202", "literal_error": "DSV205", "string_pattern_mismatch": "DSV213"}
_LENGTHS = {"too_short": ("min_length", "at least"), "too_long": ("max_length", "at most")}


def head(span: Span) -> Span:
    """The first character of a span over several lines, else the span: what a finding points at."""
    if span.end_line <= span.line:
        return span
    return Span(span.file, span.line, span.column, span.line, span.column + 1)


def section_findings(
    section: str, errors: Iterable[ErrorDetails], spans: Spans
) -> tuple[list[Diagnostic], frozenset[Path], dict[str, int]]:
    """Findings of one section, and the keys that unknown ones were most likely meant to be: those are not missing.

    Of a code that comes too often the rest is counted only: to look for the nearest key of each takes long.
    """
    unknown: list[Diagnostic] = []
    missing: list[tuple[Path, Diagnostic]] = []
    others: list[Diagnostic] = []
    meant: set[Path] = set()
    counts: Counter[str] = Counter()
    for error in errors:
        path = _path(section, error)
        if path is None or isinstance(error["input"], Poison) or _follows(error):
            continue
        code = _code(error)
        counts[code] += 1
        if counts[code] > MOST_OF_A_CODE:
            continue
        if code == "DSV201":
            finding, suggestion = unknown_key(path, known_keys(path[:-1]), spans)
            unknown.append(finding)
            if suggestion:
                meant.add((*path[:-1], suggestion))
        elif code == "DSV202":
            missing.append((path, missing_key(path, spans)))
        else:
            others.append(_value(path, error, spans))
    absent = (finding for path, finding in missing if path not in meant)
    left_out = {code: count - MOST_OF_A_CODE for code, count in counts.items() if count > MOST_OF_A_CODE}
    return [*unknown, *absent, *dict.fromkeys(others)], frozenset(meant), left_out


def known_keys(parent: Path) -> tuple[str, ...]:
    """The canonical keys that a map of the spec takes."""
    if not parent:
        return ("format", "name", *SECTIONS, "extends")
    if parent[:2] == ("layers", "reads"):
        return ("compress_kv", "index_k", "topk", "candidates")
    model = _model(parent)
    return tuple(model.model_fields) if model else ()


def unknown_key(path: Path, known: tuple[str, ...], spans: Spans) -> tuple[Diagnostic, str | None]:
    """The finding for a key that nothing reads, and the key it was most likely meant to be."""
    key, parent = str(path[-1]), path[:-1]
    aliases = ALIASES.get(".".join(map(str, parent)), {})
    near = difflib.get_close_matches(key, [*known, *aliases], 1, 0.6)
    suggestion = aliases.get(near[0], near[0]) if near else None
    homes = [
        name
        for name, model in SECTIONS.items()
        if (name,) != parent and (key in model.model_fields or key in ALIASES.get(name, {}))
    ]
    place, fix = spans.key(path), respelled(key, (*known, *aliases), spans.key(path))
    if homes and (suggestion is None or near[0] != key):
        fix = ()
        home = ALIASES.get(homes[0], {}).get(key, key)
        help_text, suggestion = f"`{home}` belongs in `{homes[0]}`", None
    elif key.partition(":")[0] in (*known, *aliases):
        help_text, written = "put a space after the colon", inside(key, place)
        fix = (Edit(written, key.replace(":", ": ", 1)),) if written == place else ()
    elif suggestion:
        help_text = f"did you mean `{near[0]}`?"
    else:
        help_text = "remove it"
    facts = ((f"keys of {dotted(parent) or 'a spec'}", ", ".join(known)),)
    message = f"unknown key `{shown_key(key)}`" + (f" in `{dotted(parent)}`" if parent else "")
    return Diagnostic("DSV201", message, place, facts=facts, help=help_text, fix=fix), suggestion


def missing_key(path: Path, spans: Spans) -> Diagnostic:
    """The finding for a required key that is not there."""
    field = _field(path)
    parent = path[:-1]
    place = f"`{dotted(parent)}`" if parent else "the spec"
    meaning = (field.description if field is not None else None) or (SECTIONS[str(path[-1])].__doc__ or "")
    facts = (("meaning", meaning.splitlines()[0].rstrip(".")),) if meaning else ()
    help_text = f"add `{path[-1]}:` to {place}" + (
        "" if parent else ", or start from a shipped spec with `extends: NAME`"
    )
    span = head(spans.key(parent)) if parent else head(spans.value(()))
    return Diagnostic("DSV202", f"{place} has no `{path[-1]}`", span, facts=facts, help=help_text)


def wrong_type(path: Path, expected: str, value: object, span: Span) -> Diagnostic:
    """The finding for a value of another type."""
    field = _field(path)
    facts = [("expected", expected), ("given", shown(value))]
    if field is not None and field.description:
        facts.append(("meaning", field.description.rstrip(".")))
    message = f"`{dotted(path)}` is {_kind(value)}, expected {expected}"
    help_text, fix = retyped(path, expected, value, span)
    return Diagnostic("DSV203", message, head(span), facts=tuple(facts), help=help_text, fix=fix)


def one_of(path: Path, allowed: Iterable[str], value: object, span: Span) -> Diagnostic:
    """The finding for a word that is not among those a key takes."""
    names = tuple(allowed)
    near = difflib.get_close_matches(value, names, 1, 0.5) if isinstance(value, str) else []
    if near:
        help_text = f"did you mean `{near[0]}`?"
    else:
        help_text = f"write `{names[0]}`" if len(names) == 1 else f"write one of {', '.join(names)}"
    message = f"`{dotted(path)}` is {shown(value)}, expected {_either(names)}"
    fix = respelled(value, names, span) if isinstance(value, str) else ()
    return Diagnostic("DSV205", message, head(span), facts=(("allowed", ", ".join(names)),), help=help_text, fix=fix)


def out_of_range(
    path: Path, value: object, bound: str, span: Span, facts: tuple[tuple[str, str], ...] = ()
) -> Diagnostic:
    """The finding for a number outside its range; `bound` reads `at least 1`."""
    message = f"`{dotted(path)}` is {shown(value)}, expected {bound}"
    facts = (("expected", bound), *facts)
    return Diagnostic("DSV204", message, head(span), facts=facts, help=f"give a value that is {bound}")


def bad_name(name: str, span: Span) -> Diagnostic:
    """The finding for a model name that is not a plain one."""
    facts = (("expected", "1 to 100 letters, digits, `.`, `_` or `-`, a letter or digit first"),)
    message = f"`name` is {shown(name)}, which is no plain name"
    return Diagnostic("DSV212", message, head(span), facts=facts, help="choose a name of those characters")


def _code(error: ErrorDetails) -> str:
    """The code of the finding that an error becomes."""
    kind = error["type"]
    if kind == "extra_forbidden" or error["loc"][-1:] == ("[key]",):
        return "DSV201"
    if kind in _RANGES or kind in _LENGTHS:
        return "DSV204"
    return _CODES.get(kind, "DSV203")


def _value(path: Path, error: ErrorDetails, spans: Spans) -> Diagnostic:
    """A value of the wrong type, range or form."""
    kind, value, context = error["type"], error["input"], error.get("ctx", {})
    span = spans.value(path)
    if kind in _RANGES:
        name, words = _RANGES[kind]
        return out_of_range(path, value, f"{words} {context[name]}", span)
    if kind in _LENGTHS:
        name, words = _LENGTHS[kind]
        bound = f"{words} {context[name]}"
        message = f"`{dotted(path)}` has {counted(len(value), 'entry')}, expected {bound}"
        return Diagnostic("DSV204", message, head(span), facts=(("expected", bound),), help=f"give {bound}")
    if kind == "literal_error":
        return one_of(path, _words(path, str(context["expected"])), value, span)
    if kind == "string_pattern_mismatch":
        return _bad_device(path, value, span)
    return wrong_type(path, _TYPES.get(kind, "another value"), value, span)


def _words(path: Path, expected: str) -> list[str]:
    words = [word.strip(" '") for word in expected.replace(" or ", ", ").split(",")]
    return [*words, "{every: N}"] if path == ("runtime", "capture") else words


def _bad_device(path: Path, value: object, span: Span) -> Diagnostic:
    message = f"`{dotted(path)}` is {shown(value)}, which is no device"
    facts = (("expected", "family:index"), ("families", ", ".join(FAMILIES)))
    near = f"{value}:0" if value in FAMILIES else "cuda:0"
    return Diagnostic("DSV213", message, span, facts=facts, help=f"write a family and an index, such as `{near}`")


def _follows(error: ErrorDetails) -> bool:
    """Whether a list counts as short only because pydantic does not count its wrong entries, reported by themselves."""
    return error["type"] == "too_short" and len(error["input"]) >= error["ctx"]["min_length"]


def _path(section: str, error: ErrorDetails) -> Path | None:
    """The path of an error in the spec; None for the branch of a union that was not meant."""
    words: list[str | int] = [section]
    for word in error["loc"]:
        if word == "[key]":
            continue
        if isinstance(word, str) and word.startswith("literal["):
            if isinstance(error["input"], Mapping):
                return None
        elif word == "CaptureEvery":
            if error["type"] == "model_type":
                return None
        else:
            words.append(str(word) if "reads" in words else word)
    return tuple(words)


def _models(path: Path) -> Iterator[FieldInfo]:
    """The fields along a path."""
    model: type[BaseModel] | None = SECTIONS.get(str(path[0])) if path else None
    for word in path[1:]:
        field = model.model_fields.get(str(word)) if model else None
        if field is None:
            return
        yield field
        model = _inner(field.annotation)


def _inner(annotation: Any) -> type[BaseModel] | None:
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        found = [item for item in map(_inner, typing.get_args(annotation)) if item]
        return found[0] if found else None
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def _field(path: Path) -> FieldInfo | None:
    names = tuple(word for word in path if not isinstance(word, int))
    fields = list(_models(names))
    return fields[-1] if len(fields) == len(names) - 1 and fields else None


def _model(path: Path) -> type[BaseModel] | None:
    if len(path) == 1:
        return SECTIONS.get(str(path[0]))
    field = _field(path)
    return _inner(field.annotation) if field else None


def _kind(value: object) -> str:
    if value is None:
        return "empty"
    if isinstance(value, Mapping):
        return "a map"
    if isinstance(value, tuple | list):
        return "a list"
    return f"text {shown(value)}" if isinstance(value, str) else shown(value)


def _either(names: tuple[str, ...]) -> str:
    quoted = [f"`{name}`" for name in names]
    return quoted[0] if len(quoted) == 1 else ", ".join(quoted[:-1]) + f" or {quoted[-1]}"
