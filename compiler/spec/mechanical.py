"""What mends a key or a value without anybody having to decide: spelling, quotes and brackets.

Edits come from here and from where lists are judged; `dsv41c.compiler.mend` tries them and offers those that help.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from dsv41c.compiler.source import Path, shown
from dsv41c.compiler.source.scalars import resolve
from dsv41c.diagnostics import Edit, Span

_LEAST = 4  # letters of a word that can be recognised
_LONG = 8  # letters from which on two slips of the keyboard leave a word recognisable, not just one


def meant(word: str, known: Iterable[str]) -> str | None:
    """The one known word that a misspelt one stands for, or None where that is not clear.

    Digits are never mended: `fp8` for `fp4` is another decision, not a slip.
    """
    if len(word) < _LEAST:
        return None
    most = 1 if len(word) < _LONG else 2
    slips = {each: _slips(word.lower(), each.lower(), most) for each in known}
    near = [each for each, count in slips.items() if count == min(slips.values(), default=0)]
    if len(near) != 1 or slips[near[0]] > most or _digits(word) != _digits(near[0]):
        return None
    return near[0]


def _slips(word: str, other: str, most: int) -> int:
    """Letters added, lost, changed or swapped with the next between two words; above `most` just more than that."""
    if abs(len(word) - len(other)) > most:
        return most + 1
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, letter in enumerate(word):
        before, last, row = row, before, [i + 1]
        for j, theirs in enumerate(other):
            cost = min(before[j + 1] + 1, row[j] + 1, before[j] + (letter != theirs))
            if i and j and (letter, word[i - 1]) == (other[j - 1], theirs):
                cost = min(cost, last[j - 1] + 1)
            row.append(cost)
    return min(row[-1], most + 1)


def respelled(word: str, known: Iterable[str], span: Span) -> tuple[Edit, ...]:
    """The edit that writes the word that was meant, inside the quotes if there are any."""
    right, place = meant(word, known), inside(word, span)
    return (Edit(place, right),) if right is not None and place is not None else ()


def inside(word: str, span: Span) -> Span | None:
    """The place of a word without its quotes; None where it is written with escapes or over several lines."""
    width = span.end_column - span.column
    if span.end_line != span.line or width not in (len(word), len(word) + 2):
        return None
    quotes = (width - len(word)) // 2
    return replace(span, column=span.column + quotes, end_column=span.end_column - quotes)


def retyped(path: Path, expected: str, value: object, span: Span) -> tuple[str, tuple[Edit, ...]]:
    """How a value becomes one of the type that is expected, in words; and as edits, where that is a matter of form."""
    whole = span.end_line == span.line
    if isinstance(value, str) and expected in ("an integer", "a number"):
        number = resolve(value)
        if isinstance(number, int | float) and not isinstance(number, bool):
            return f"write it without quotes: {value}", (Edit(span, value),) if whole else ()
    if isinstance(value, float) and value.is_integer() and expected == "an integer":
        return f"write {int(value)}", (Edit(span, str(int(value))),)
    if expected == "a list" and value is not None and not isinstance(value, str | Mapping):
        return f"write it in brackets: [{shown(value)}]", _around(span, "[", "]")
    if expected == "a list" and isinstance(value, str):
        return _listed(value, span if whole else None)
    if expected == "a list" and value is None:
        return "write the entries in brackets, or `[]` if there are none", ()
    if expected == "a map" and isinstance(value, str):
        return "write its entries as `key: value`, with a colon and a space", ()
    if expected == "text" and isinstance(value, int | float) and not isinstance(value, bool):
        return f'write it in quotes: "{shown(value)}"', _around(span, '"', '"')
    if isinstance(value, Mapping):
        return f"write {expected} here; keys that belong beside `{path[-1]}` are indented like it", ()
    return f"write {expected} here", ()


def _listed(text: str, span: Span | None) -> tuple[str, tuple[Edit, ...]]:
    """A list that was written as text: numbers without brackets, dashes without spaces, one entry by itself."""
    if re.fullmatch(r"\s*-?[0-9]+(\s*,\s*-?[0-9]+)+\s*", text):
        right = f"[{text.strip()}]"
        return f"write it in brackets, without quotes: {right}", (Edit(span, right),) if span else ()
    if re.fullmatch(r"(-[0-9]+\s*)+", text):
        return "put a space behind each `-` that begins an entry", ()
    return f"write it in brackets: [{shown(text)}]", _around(span, "[", "]") if span else ()


def _around(span: Span, before: str, after: str) -> tuple[Edit, ...]:
    start, end = replace(span, end_column=span.column), replace(span, column=span.end_column)
    return Edit(start, before), Edit(end, after)


def _digits(word: str) -> list[str]:
    return re.findall("[0-9]", word)
