"""Colour and shape of each kind of state, the same in every format.

The palette is one that the colour-blind can tell apart (Okabe and Ito); a dashed arrow crosses between devices.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

INK = "#333333"

# state kind -> (colour, shape in DOT)
STATES: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "ids": ("#999999", "plaintext"),
        "streams": ("#0072b2", "ellipse"),
        "pre": ("#56b4e9", "ellipse"),
        "window_kv": ("#8c6d31", "cylinder"),
        "group_tail": ("#b8a13a", "cylinder"),
        "compress_kv": ("#d55e00", "cylinder"),
        "index_k": ("#e69f00", "cylinder"),
        "topk": ("#009e73", "diamond"),
        "candidates": ("#cc79a7", "hexagon"),
        "token_history": ("#8c6d31", "cylinder"),
        "temporary": ("#bbbbbb", "ellipse"),
    }
)


def colour(kind: str) -> str:
    """The colour of a state kind; ink for anything else."""
    return STATES.get(kind, (INK, ""))[0]


def shape(kind: str) -> str:
    """The DOT shape of a value of a kind."""
    return STATES.get(kind, ("", "ellipse"))[1]
