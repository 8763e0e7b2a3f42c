"""Tensor names: prefixes that wrappers add, spellings of a scale, families that the text backbone leaves unread."""

from __future__ import annotations

import re
from fnmatch import translate

from dsv41c.kernels.catalog import UNUSED_TENSORS

# In this order: a multimodal wrapper adds the first, a language-model class the second, some dumps both.
PREFIXES = ("language_model.", "model.")
# The release says `.scale`; re-exports spell it the other ways. All of them multiply.
SCALE_SUFFIXES = (".scale", ".weight_scale", ".weight_scale_inv")
MAX_SHOWN = 160

_UNUSED_STARTS = tuple(family for family in UNUSED_TENSORS if "*" not in family)
_UNUSED_PATTERNS = tuple(
    (family, re.compile(translate(family))) for family in UNUSED_TENSORS if family not in _UNUSED_STARTS
)


def split_prefix(name: str) -> tuple[str, str]:
    """A stored name as (prefix, official name). The prefix is one of "", `model.`, `language_model.` and both."""
    rest = name
    for prefix in PREFIXES:
        rest = rest.removeprefix(prefix)
    return name[: len(name) - len(rest)], rest


def spellings(name: str) -> tuple[str, ...]:
    """Every stored name under which an official name is looked for."""
    wrapper, model = PREFIXES
    return (name, model + name, wrapper + name, wrapper + model + name)


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
