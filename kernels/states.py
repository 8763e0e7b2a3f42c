"""The kinds of state that values are versions of, as plain data. No torch here.

Symbols of shapes are those of `catalog`: B sessions, T tokens of this call, D dim, S streams, C head_dim, W window, r
compress ratio, IC indexer head_dim, K index_topk, N context.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

Scope = Literal["step", "session"]


@dataclass(frozen=True, slots=True)
class StateKind:
    """A kind of value: how long it lives, what it is, which op kinds may write it, how it crosses a device boundary.

    `crosses`: `chunk` travels with the chunk of tokens; `mirror` is session state of which the other device keeps a
    mirror that receives appended rows; `never` stays where it is. `wire`: what it is on the way: the `values` as they
    are, `i32` for integers that fit, `bits`, a bit for each boolean of the last axis. `made_by` and `read_by` say in
    words which layers do.
    """

    name: str
    scope: Scope
    meaning: str
    writers: tuple[str, ...]
    crosses: Literal["chunk", "mirror", "never"]
    wire: Literal["values", "i32", "bits"]
    made_by: str
    read_by: str


def _kind(
    name: str,
    scope: Scope,
    writers: str,
    meaning: str,
    made_by: str,
    read_by: str,
    crosses: Literal["chunk", "mirror", "never"] = "never",
    wire: Literal["values", "i32", "bits"] = "values",
) -> StateKind:
    return StateKind(name, scope, meaning, tuple(writers.split()), crosses, wire, made_by, read_by)


_KINDS = (
    _kind(
        "ids",
        "step",
        "",
        "token ids of this call [B, T]",
        "whoever calls",
        "the embedding and the n-gram hash",
        "chunk",
        "i32",
    ),
    _kind(
        "streams",
        "step",
        "embed engram_gate expand",
        "residual streams [B, T, S, D]",
        "the embedding, then every engram and every sublayer: a new version each",
        "the engram or sublayer that comes next, and the head",
        "chunk",
    ),
    _kind(
        "pre",
        "step",
        "embed mix",
        "pre-mix carried to the next sublayer [B, T, S]",
        "the mix of every sublayer; the embedding makes the first",
        "the collapse of the next sublayer, never of its own; the head reads the last one",
        "chunk",
    ),
    _kind(
        "window_kv",
        "session",
        "window_store",
        "ring of the last W window rows [W, C]",
        "every layer",
        "the same layer, before it writes",
    ),
    _kind(
        "group_tail",
        "session",
        "compress",
        "rows of the open group, KV and score [2, r, C]",
        "layers of `kv_source_layers` with a ratio above 1",
        "the same layer",
    ),
    _kind(
        "compress_kv",
        "session",
        "compress",
        "compressed KV, a row a complete group [N/r, C]",
        "layers of `kv_source_layers`",
        "every layer with a ratio above 0, from there up to the next KV source",
        "mirror",
    ),
    _kind(
        "index_k",
        "session",
        "index_keys",
        "index keys, a row a complete group [N/r, IC]",
        "layers that are in `kv_source_layers` and in `index_source_layers`",
        "index sources, from there up to the next layer that makes keys",
        "mirror",
    ),
    _kind(
        "topk",
        "step",
        "select_topk",
        "selected groups, ascending, -1 = none [B, T, K]",
        "layers of `index_source_layers`",
        "every layer with a ratio above 0, from there up to the next index source",
        "chunk",
        "i32",
    ),
    _kind(
        "candidates",
        "step",
        "select_candidates",
        "candidate blocks [B, T, N/r/block]",
        "the layer `candidate_source_layer`",
        "every later index source",
        "chunk",
        "bits",
    ),
    _kind(
        "token_history",
        "session",
        "engram_ids",
        "last compressed token ids [max_ngram_size - 1]",
        "the n-gram hash",
        "the n-gram hash of the next call",
    ),
    _kind("temporary", "step", "*", "lives inside one layer", "any op", "ops behind it"),
)

STATE_KINDS: Mapping[str, StateKind] = MappingProxyType({kind.name: kind for kind in _KINDS})
