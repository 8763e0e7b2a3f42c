"""Words that several checks share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

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
    parts: list[list[int]] = []
    for layer in sorted(set(layers)):
        if parts and parts[-1][1] == layer - 1:
            parts[-1][1] = layer
        else:
            parts.append([layer, layer])
    words = [str(first) if first == last else f"{first}-{last}" for first, last in parts]
    more = len(words) - _MOST_RUNS
    return ", ".join(words[:_MOST_RUNS] + ([f"and {more} more"] if more > 0 else []))


def listing(numbers: Sequence[int]) -> str:
    """A list as the spec writes it, cut if it is long."""
    shown = ", ".join(map(str, numbers[: 2 * _MOST_RUNS]))
    return f"[{shown}, …]" if len(numbers) > 2 * _MOST_RUNS else f"[{shown}]"


def layers(numbers: Sequence[int]) -> str:
    """`layer 4` or `layers 4-6, 8`."""
    return f"layer{'s' if len(numbers) > 1 else ''} {runs(numbers)}"


def plural(numbers: Sequence[int], one: str, many: str) -> str:
    """The form of a word that agrees with the number of layers."""
    return many if len(numbers) > 1 else one


def either(words: Sequence[str]) -> str:
    """`a`, `a or b`, `a, b or c`."""
    return " or ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))
