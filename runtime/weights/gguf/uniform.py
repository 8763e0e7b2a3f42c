"""Keys that may give a number a layer, where the model has one for all."""

from __future__ import annotations

import struct
from array import array

from dsv41c.diagnostics import Diagnostic, Span
from dsv41c.runtime.weights.gguf.facts import GgufFacts
from dsv41c.runtime.weights.gguf.families import PREFIX, SAME
from dsv41c.runtime.weights.gguf.header import Value

Scalar = int | float | bool | str
# Parameters that are lists in the model itself.
LISTS = (
    "compress_ratios",
    "kv_source_layer_ids",
    "index_source_layer_ids",
    "engram_layer_ids",
    "engram_num_embeddings",
)


def scalar(value: Value) -> Scalar | None:
    """The one value of a key, or that all elements of its array have; None where they differ or there are none.

    Numbers of 32 bits are told as the shortest decimals that stand for them, whole ones as integers.
    """
    data = value.data
    if isinstance(data, array):
        items = set(data)
        if len(items) != 1:
            return None
        data = items.pop()
    if isinstance(data, tuple):
        return data[0] if len(set(data)) == 1 else None
    if not isinstance(data, float):
        return data
    if value.kind == "f32":
        data = _shortest(data)
    return int(data) if data.is_integer() and abs(data) < 1 << 53 else data


def _shortest(number: float) -> float:
    """The shortest decimal that is the same number in 32 bits."""
    for digits in range(1, 10):
        near = float(f"{number:.{digits}g}")
        try:
            if struct.pack("<f", near) == struct.pack("<f", number):
                return near
        except OverflowError:  # rounded up beyond the largest
            continue
    return number


def not_uniform(facts: GgufFacts) -> list[Diagnostic]:
    """Findings for arrays whose elements differ, and for keys that have to say the same and do not."""
    wrong = []
    for parameter in facts.family.parameters:
        key = facts.key(parameter)
        if key is None or parameter in LISTS:
            continue
        one = scalar(facts.keys[key])
        if one is None:
            wrong.append(f"`{key}` differs by layer")
            continue
        other = PREFIX + SAME.get(parameter, "")
        if other in facts.keys and scalar(facts.keys[other]) != one:
            given = scalar(facts.keys[other])
            told = "differs by layer" if given is None else f"is {given}"
            wrong.append(f"`{key}` is {one} and `{other}` {told}")
    if not wrong:
        return []
    text = f"{'; '.join(wrong)}; the model has one for all"
    return [Diagnostic("DSV767", text, Span(facts.file), help="use a file in which all layers are alike")]
