"""Brings a section as it was written to the form the models hold: defaults, absent parts, ratios, keys of `reads`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from dsv41c.compiler.source import POISON, Node, Poison, shown, shown_key, to_data
from dsv41c.compiler.spec import ratios
from dsv41c.compiler.spec.models import MAX_LAYERS, MAX_LENGTH
from dsv41c.diagnostics import Diagnostic, Sink

# State that a layer hands to the next, or keeps for itself: who reads it is fixed by the model.
CARRIED = {
    "pre": "the pre-mix is carried from each sublayer to the next: a pre-mix taken from the sublayer itself cannot be "
    "written",
    "post": "`post` is used by the sublayer that computed it",
    "comb": "`comb` is used by the sublayer that computed it",
    "streams": "the streams are carried from each sublayer to the next",
    "window_kv": "each layer keeps its own window",
    "group_tail": "each KV source keeps its own open group",
    "token_history": "the token history is the session's, one for all layers",
}
_NUMBER = re.compile(r"[0-9]{1,9}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Counts:
    """What other sections need of `model`, each None where it is not a valid number."""

    n_layers: int | None
    n_mtp_layers: int | None
    max_seq_len: int | None

    @staticmethod
    def of(root: Node) -> Counts:
        """Read the counts from a tree, whatever else is wrong with its `model`."""
        data = to_data(root)
        model = data.get("model") if isinstance(data, dict) else None
        values = model if isinstance(model, dict) else {}
        return Counts(
            _within(values.get("n_layers"), 1, MAX_LAYERS),
            _within(values.get("n_mtp_layers"), 0, 1000),
            _within(values.get("max_seq_len"), 1, MAX_LENGTH),
        )


def layers(node: Node, counts: Counts, sink: Sink) -> Node:
    """The `layers` section. Without the number of layers, ratios cannot be judged and are left poisoned."""
    if not isinstance(node.value, Mapping):
        return node
    entries = dict(node.value)
    for optional in ("candidate_source_layer", "engram_layers", "reads"):
        if optional in entries and entries[optional].value is None:
            del entries[optional]
    candidate = entries.get("candidate_source_layer")
    if candidate is not None and _is_int(candidate.value) and candidate.value < 0:  # type: ignore[operator]
        del entries["candidate_source_layer"]
    if "compress_ratios" in entries:
        given = entries["compress_ratios"]
        if counts.n_layers is not None and counts.n_mtp_layers is not None:
            entries["compress_ratios"] = ratios.normalise(given, counts.n_layers, counts.n_mtp_layers, sink)
        elif isinstance(given.value, Mapping | tuple):
            entries["compress_ratios"] = replace(given, value=POISON)
    if "reads" in entries:
        entries["reads"] = _reads(entries["reads"], sink)
    return replace(node, value=entries)


def layers_data(node: Node) -> Any:
    """The data of a normalised `layers` section: layer numbers of `reads` as ints."""
    data = to_data(node)
    if isinstance(data, dict) and isinstance(data.get("reads"), dict):
        data["reads"] = {int(layer): kinds for layer, kinds in data["reads"].items()}
    return data


def placement(data: dict[str, Any], counts: Counts) -> dict[str, Any]:
    """Defaults of `placement`: one CPU; one stage holds all layers."""
    filled = {"devices": ("cpu:0",), **data}
    if filled.get("layer_ends") is None:
        filled.pop("layer_ends", None)
        if not isinstance(filled["devices"], tuple):
            filled["layer_ends"] = POISON  # how many stages there are, nobody can say
        elif len(filled["devices"]) == 1:
            filled["layer_ends"] = POISON if counts.n_layers is None else (counts.n_layers,)
    return filled


def runtime(data: dict[str, Any], counts: Counts) -> dict[str, Any]:
    """Defaults of `runtime`; decode buckets are cut at max_sessions."""
    context = min(4096, counts.max_seq_len or 4096)
    filled: dict[str, Any] = {"max_context": context, "max_sessions": 4, "decode_buckets": (1, 2, 4)}
    filled |= data
    context, sessions, buckets = filled["max_context"], filled["max_sessions"], filled["decode_buckets"]
    filled.setdefault("prefill_chunk", min(512, context) if _is_int(context) and context > 0 else 512)
    whole = isinstance(buckets, tuple) and all(_is_int(bucket) and bucket > 0 for bucket in buckets)
    if whole and _is_int(sessions) and sessions > 0:
        filled["decode_buckets"] = tuple(sorted({min(bucket, sessions) for bucket in buckets}))
    return filled


def _reads(node: Node, sink: Sink) -> Node:
    """`layers.reads` without what has no choice of source and without keys that are no layer."""
    if not isinstance(node.value, Mapping):
        return node
    entries: dict[str, Node] = {}
    for key, child in node.value.items():
        if not _NUMBER.fullmatch(key):
            message = f"key `layers.reads.{shown_key(key)}` is no layer number"
            facts = (("expected", "a layer number, zero-based"),)
            help_text = "write `reads: {LAYER: {KIND: PRODUCER}}`"
            sink.add(Diagnostic("DSV203", message, child.key, facts=facts, help=help_text))
            continue
        name = str(int(key))
        kinds = _kinds(name, child, sink) if isinstance(child.value, Mapping) else child
        if name in entries:
            message = f"layer {name} is given twice in `layers.reads`"
            sink.add(Diagnostic("DSV106", message, child.key, help="keep one of the two"))
        else:
            entries[name] = kinds
    return replace(node, value=entries)


def _kinds(layer: str, node: Node, sink: Sink) -> Node:
    assert isinstance(node.value, Mapping)
    kept: dict[str, Node] = {}
    for kind, child in node.value.items():
        if kind not in CARRIED:
            kept[kind] = child
            continue
        message = f"`layers.reads.{layer}` names a source for `{kind}`, which has no choice of source"
        facts = (("why", CARRIED[kind]), ("given", f"{kind}: {shown(to_data(child))}"))
        help_text = "remove it; of compress_kv, index_k, topk and candidates a source can be named"
        sink.add(Diagnostic("DSV211", message, child.key, facts=facts, help=help_text))
    return replace(node, value=kept)


def _within(value: object, low: int, high: int) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and low <= value <= high else None


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool | Poison)
