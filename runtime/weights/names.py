"""Tensor names: prefixes that wrappers add, spellings of a scale, families that the text backbone leaves unread."""

from __future__ import annotations

import re
from fnmatch import translate

from dsv41c.kernels.catalog import UNUSED_TENSORS
from dsv41c.runtime.weights.variants import SCALE_SUFFIXES as SCALE_SUFFIXES
from dsv41c.runtime.weights.variants import others

# A multimodal wrapper adds one, a language-model class the other, some dumps both in either order. Longest first.
PREFIXES = ("language_model.model.", "model.language_model.", "language_model.", "model.")
MAX_SHOWN = 160

_UNUSED_STARTS = tuple(family for family in UNUSED_TENSORS if "*" not in family)
_UNUSED_PATTERNS = tuple(
    (family, re.compile(translate(family))) for family in UNUSED_TENSORS if family not in _UNUSED_STARTS
)


def split_prefix(name: str) -> tuple[str, str]:
    """A stored name as (prefix, rest). The prefix is one of `PREFIXES`, or empty."""
    for prefix in PREFIXES:
        if name.startswith(prefix):
            return prefix, name.removeprefix(prefix)
    return "", name


def spellings(name: str) -> tuple[str, ...]:
    """Every stored name under which an official name is looked for. Other layouts' names are listed without prefix."""
    return (name, *(prefix + name for prefix in reversed(PREFIXES)), *others(name))


def scale_names(weight: str) -> tuple[str, ...]:
    """The names a weight's scale may have, the release's first."""
    base = weight.removesuffix(".weight")
    return tuple(base + suffix for suffix in SCALE_SUFFIXES)


def unused_family(name: str) -> str | None:
    """The family of official tensors that the text backbone does not read to which a name belongs, if any."""
    if name.startswith(_UNUSED_STARTS):
        return next(family for family in _UNUSED_STARTS if name.startswith(family))
    return next((family for family, pattern in _UNUSED_PATTERNS if pattern.match(name)), None)


def shown(text: object) -> str:
    """Foreign text fit to be shown: printable, on one line, of bounded length."""
    plain = text if isinstance(text, str) and text.isprintable() else ascii(text)
    return plain if len(plain) <= MAX_SHOWN else plain[: MAX_SHOWN - 1] + "…"
