"""Writes a spec out: every value, canonical names, always the same bytes; loading the text gives an equal spec."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from dsv41c.compiler.source.scalars import resolve
from dsv41c.compiler.spec.models import SECTIONS, Spec

WIDTH = 120
REMARK_COLUMN = 48
# Plain text that no YAML reader takes for anything else.
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_./]*(-[A-Za-z0-9_./]+)*")
# What says nothing: a part of the model that is not there, a stage that is not split.
_LEFT_OUT: tuple[tuple[str, object], ...] = (("layers.reads", {}), ("placement.tensor_parallel", 1))
# Words that readers of older YAML take for truth values; quoted for their sake.
_OLD_WORDS = frozenset(("yes", "no", "on", "off", "y", "n"))


def to_yaml(spec: Spec, header: Sequence[str] = (), remarks: Mapping[str, str] | None = None) -> str:
    """The spec as YAML. `header` lines come first, as comments; `remarks` are by `section` or `section.key`."""
    remarks = remarks or {}
    lines = [f"# {line}".rstrip() for line in header]
    lines += [f"format: {spec.format}", f"name: {_text(spec.name)}"]
    for name in SECTIONS:
        section = getattr(spec, name)
        if section is None:
            continue
        lines += ["", _remarked(f"{name}:", remarks.get(name))]
        for key, value in section.model_dump().items():
            if value is None or (f"{name}.{key}", value) in _LEFT_OUT:
                continue
            shown = _ratios(value) if key == "compress_ratios" else _value(value)
            lines += _entry(key, shown, remarks.get(f"{name}.{key}"))
    return "\n".join(lines) + "\n"


def _entry(key: str, words: list[str], remark: str | None) -> list[str]:
    """`  key: value` on as many lines as it takes; `words` are the pieces between which a line may break."""
    lines, line = [], f"  {key}:"
    for word in words:
        if len(line) + 1 + len(word) > WIDTH:
            lines.append(line)
            line = "   "
        line += f" {word}"
    lines.append(line)
    lines[0] = _remarked(lines[0], remark)
    return lines


def _remarked(line: str, remark: str | None) -> str:
    return f"{line.ljust(REMARK_COLUMN - 1)} # {remark}" if remark else line


def _ratios(ratios: Sequence[int]) -> list[str]:
    """The compact map of ratios: a range for each run of equal ones."""
    return _joined("{", "}", _runs(ratios))


def _runs(ratios: Sequence[int]) -> Iterator[str]:
    first = 0
    for ratio, run in groupby(ratios):
        last = first + len(list(run)) - 1
        yield f"{first}: {ratio}" if first == last else f"{first}-{last}: {ratio}"
        first = last + 1


def _value(value: Any) -> list[str]:
    """A value in flow style, in pieces."""
    if isinstance(value, Mapping):
        return _joined("{", "}", (f"{key}: {' '.join(_value(item))}" for key, item in value.items()))
    if isinstance(value, tuple | list):
        return _joined("[", "]", (" ".join(_value(item)) for item in value))
    if isinstance(value, str):
        return [_text(value)]
    return [_number(value)]


def _joined(opening: str, closing: str, items: Iterator[str]) -> list[str]:
    words = list(items)
    if not words:
        return [opening + closing]
    words = [f"{word}," for word in words[:-1]] + words[-1:]
    words[0] = opening + words[0]
    words[-1] += closing
    return words


def _number(value: float) -> str:
    """The shortest text that reads back as the same number. Whole floats are written without a fraction."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return repr(value)


def _text(value: str) -> str:
    plain = _PLAIN.fullmatch(value) and resolve(value) == value and value.lower() not in _OLD_WORDS
    return value if plain else json.dumps(value)
