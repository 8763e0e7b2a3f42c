"""Makes untrusted text safe to print."""

from __future__ import annotations

import unicodedata

# Controls, bidirectional and other format marks, surrogates, unassigned, line and paragraph separators.
_UNSAFE = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
LONGEST = 600


def escape(text: str) -> str:
    """The text with every character that could move the cursor or hide text written as `\\x1b` or `\\u202e`."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(char if unicodedata.category(char) not in _UNSAFE else _code(char) for char in text)


def short(text: str) -> str:
    """The same, cut to what a person would read."""
    safe = escape(text[: LONGEST + 1])
    return safe if len(text) <= LONGEST else safe[:LONGEST] + "…"


def cells(text: str) -> int:
    """Terminal columns of an escaped text: wide characters take two, combining ones none."""
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(char) in "WF" for char in text)
    return len(text) + wide - sum(unicodedata.combining(char) > 0 for char in text)


def _code(char: str) -> str:
    number = ord(char)
    if number < 0x100:
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"
