"""The values of arguments: parsers that argparse calls, each raising `ArgumentTypeError` with what is wrong.

Part of what `--help` pays for, so nothing outside the standard library is imported.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from fractions import Fraction

_AMBIGUOUS = ("K", "M", "G", "T", "P")
_UNITS = (
    {"": 1, "B": 1}
    | {f"{letter}B": 1000**power for power, letter in enumerate(("k", "M", "G", "T", "P"), 1)}
    | {f"{letter}iB": 1024**power for power, letter in enumerate(("K", "M", "G", "T", "P"), 1)}
)


def nearest(message: str, word: str, known: Sequence[str]) -> str:
    """A message, with the known word that is nearest to the one that was found."""
    near = get_close_matches(word, known, n=1)
    return f"{message}; did you mean `{near[0]}`?" if near else message


def assignment(text: str) -> str:
    """`PATH=VALUE`, unchanged."""
    path, equals, _ = text.partition("=")
    if not equals or not path.strip():
        raise argparse.ArgumentTypeError(f"`{text}` is not PATH=VALUE")
    return text


def path(text: str) -> str:
    """A path that is not empty."""
    if not text:
        raise argparse.ArgumentTypeError("the path is empty")
    return text


def layer_numbers(text: str) -> tuple[int, ...]:
    """Layers as `0,1,20-23`, ascending, each once."""
    found: set[int] = set()
    for item in text.split(","):
        first, dash, last = item.strip().partition("-")
        if not all(re.fullmatch(r"[0-9]{1,6}", number) for number in (first, last if dash else first)):
            raise argparse.ArgumentTypeError(f"`{text}` is not a list of layers such as 0,1,20-23")
        if dash and int(last) < int(first):
            raise argparse.ArgumentTypeError(f"`{item.strip()}` ends before it begins")
        found.update(range(int(first), int(last if dash else first) + 1))
    return tuple(sorted(found))


def count(text: str) -> int:
    """A number of 0 or more."""
    if not text.isascii() or not text.isdecimal() or len(text) > 18:
        raise argparse.ArgumentTypeError(f"`{text}` is not a number of 0 or more")
    return int(text)


def positive(text: str) -> int:
    """A number of 1 or more."""
    if not text.isascii() or not text.isdecimal() or len(text) > 18 or int(text) < 1:
        raise argparse.ArgumentTypeError(f"`{text}` is not a number of 1 or more")
    return int(text)


def fraction(highest: float) -> Callable[[str], float]:
    """A parser of numbers from 0 to `highest`."""

    def parse_fraction(text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = -1.0
        if not 0.0 <= number <= highest:
            raise argparse.ArgumentTypeError(f"`{text}` is not a number from 0 to {highest:g}")
        return number

    return parse_fraction


def kinds(text: str) -> tuple[str, ...]:
    """Kinds of state, with commas."""
    # The catalogue is plain data, but only `--hide` needs it.
    from dsv41c.kernels.catalog import STATE_KINDS

    kinds = tuple(word.strip() for word in text.split(","))
    for kind in kinds:
        if kind not in STATE_KINDS:
            message = nearest(f"`{kind}` is not a kind of state", kind, list(STATE_KINDS))
            raise argparse.ArgumentTypeError(message)
    return kinds


def words(text: str) -> tuple[str, ...]:
    """Words with commas, each once."""
    return tuple(dict.fromkeys(word.strip() for word in text.split(",")))


def cell(text: str) -> tuple[int | None, int | None]:
    """Batch and context; None for what is not named."""
    found: dict[str, int] = {}
    for word in words(text):
        name, equals, number = word.partition("=")
        if name not in ("batch", "context") or not equals or name in found:
            raise argparse.ArgumentTypeError(f"`{text}` is not batch=B,context=N")
        found[name] = positive(number)
    return found.get("batch"), found.get("context")


def prefill(text: str) -> tuple[int, tuple[str, ...]]:
    """The tokens of a prompt, and the kinds to measure it in."""
    tokens, colon, kind = text.partition(":")
    if colon and kind not in ("tail", "every", "bounded"):
        raise argparse.ArgumentTypeError(f"`{text}` is not N, N:tail, N:every or N:bounded")
    return positive(tokens), (kind,) if colon else ("tail", "every")


def memory(text: str) -> int:
    """Bytes of a size with its unit, `96GB` or `587 GiB`; a bare number is bytes."""
    found = re.fullmatch(r"(\d{1,18}(?:\.\d{1,6})?)\s*([A-Za-z]*)", text.strip(), re.ASCII)
    number, unit = found.groups() if found is not None else ("", "")
    if unit.upper() in _AMBIGUOUS:
        raise argparse.ArgumentTypeError(f"`{text}` may be {unit.upper()}B or {unit.upper()}iB; say which")
    if not number or unit not in _UNITS or ("." in number and _UNITS[unit] == 1):
        raise argparse.ArgumentTypeError(f"`{text}` is not a size such as 96GB, 587GiB or a number of bytes")
    count = int(Fraction(number) * _UNITS[unit])
    if not 1 <= count < 1 << 63:
        raise argparse.ArgumentTypeError(f"`{text}` is not a size from 1 byte to 8 EiB")
    return count
