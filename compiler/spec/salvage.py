"""What can still be judged of a section that is not valid, so that one fault in it does not hide the others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from dsv41c.compiler.source import Node, poisoned
from dsv41c.compiler.spec.models import Layers, Section

# What a field that is wrong is replaced by. Nothing that rests on it may be said.
_STAND_INS: Mapping[str, Any] = {
    "compress_ratios": (),
    "kv_source_layers": (),
    "index_source_layers": (),
    "candidate_source_layer": None,
    "engram_layers": (),
    "reads": {},
}


@dataclass(frozen=True, slots=True)
class Salvaged:
    """A layer map whose wrong fields were replaced: their names, and the layers whose named reads were among them."""

    layers: Layers
    unsound: frozenset[str]
    unsound_reads: frozenset[int]


def known_part(model: type[Section], data: Mapping[str, Any]) -> Section | None:
    """The section without keys it does not know, if that is valid."""
    known = {key: value for key, value in data.items() if key in model.model_fields}
    if len(known) == len(data):
        return None
    try:
        return model.model_validate(known)
    except ValidationError:
        return None


def layers(node: Node, data: Any, wrong: Iterable[tuple[str | int, ...]]) -> Salvaged | None:
    """The layer map in `data` without its wrong fields: those `wrong` names, and those already reported in `node`."""
    if not isinstance(data, dict) or not isinstance(node.value, Mapping):
        return None
    faulty = {path[0] for path in wrong if path} | {key for key, child in node.value.items() if poisoned(child)}
    unsound = frozenset(name for name in _STAND_INS if name in faulty)
    reads = data.get("reads")
    named = [layer for layer in reads if isinstance(layer, int)] if isinstance(reads, dict) else []
    sound = {key: value for key, value in data.items() if key in _STAND_INS and key not in unsound}
    try:
        section = Layers.model_validate(sound | {name: _STAND_INS[name] for name in unsound})
    except ValidationError:
        return None
    return Salvaged(section, unsound, frozenset(named if "reads" in unsound else ()))
