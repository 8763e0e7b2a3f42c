"""Words that several checks share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dsv41c import words

# What a person calls a shared kind, and a layer that makes it.
STATE = {
    "compress_kv": "compressed KV",
    "index_k": "index keys",
    "topk": "a selection",
    "candidates": "candidate blocks",
}
SOURCE = {
    "compress_kv": "KV source",
    "index_k": "layer that owns index keys",
    "topk": "index source",
    "candidates": "candidate source",
}
_MOST_RUNS = 12


def runs(layers: Iterable[int]) -> str:
    """Numbers as runs: `2-19, 24`; long lists are cut."""
    return words.ranges(layers, _MOST_RUNS)


def listing(numbers: Sequence[int]) -> str:
    """A list as the spec writes it, cut if it is long."""
    shown = ", ".join(map(str, numbers[: 2 * _MOST_RUNS]))
    return f"[{shown}, …]" if len(numbers) > 2 * _MOST_RUNS else f"[{shown}]"


def layers(numbers: Sequence[int]) -> str:
    """`layer 4` or `layers 4-6, 8`."""
    return words.layers(numbers, _MOST_RUNS)


def plural(numbers: Sequence[int], one: str, many: str) -> str:
    """The form of a word that agrees with the number of layers."""
    return many if len(numbers) > 1 else one
