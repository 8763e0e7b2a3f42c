"""Scalars by the YAML 1.2 core schema, which is also JSON's: `1e-6` is a number, `on` and `12:30` are text.

PyYAML resolves scalars by YAML 1.1, where each of these three is something else; so it is asked for events only.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

MAX_INTEGER = 2**63 - 1
_INTEGER = re.compile(r"[-+]?[0-9]+", re.ASCII)
_BASED = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+", re.ASCII)
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", re.ASCII)
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)|NaN|-?Infinity")
_WORDS: dict[str, bool | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}


@dataclass(frozen=True, slots=True)
class ScalarFault:
    """A scalar that is no value: the code and the sentence."""

    code: str
    message: str


def resolve(text: str) -> bool | int | float | str | ScalarFault | None:
    """The value of a plain (unquoted) scalar."""
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.fullmatch(text):
        return _integer(text, 10)
    if _BASED.fullmatch(text):
        return _integer(text, 8 if text[1] == "o" else 16)
    if _NOT_FINITE.fullmatch(text):
        return ScalarFault("DSV115", f"`{text}` is not a finite number")
    if _FLOAT.fullmatch(text):
        value = float(text)
        return value if math.isfinite(value) else ScalarFault("DSV115", f"`{_short(text)}` is not a finite number")
    return text


def _integer(text: str, base: int) -> int | ScalarFault:
    digits = text.lstrip("+-").removeprefix("0o").removeprefix("0x").lstrip("0") or "0"
    # The length first: converting very long digit strings is slow, and Python refuses it.
    if len(digits) > 22 or abs(value := int(digits, base)) > MAX_INTEGER:
        return ScalarFault("DSV114", f"integer `{_short(text)}` is out of range, at most {MAX_INTEGER} is read")
    return -value if text.startswith("-") else value


def _short(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:24]}… ({len(text)} characters)"
