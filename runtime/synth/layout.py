"""Which tensors a random checkpoint has, in which shards, at which offsets: all known before anything is written."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from dsv41c.diagnostics import Diagnostic, UserFault
from dsv41c.runtime.manifest import Manifest, WeightEntry
from dsv41c.runtime.weights.encoding import BLOCK, is_plain, scale_shape, weight_shape
from dsv41c.runtime.weights.names import scale_names
from dsv41c.runtime.weights.shard import DTYPE_BITS

_HELP = "change the width in the spec, or declare another encoding in its `weights` section"
SHARD_BYTES = 4 << 30
# How the release stores each encoding.
_DTYPES = {"f32": "F32", "bf16": "BF16", "fp8_32x32": "F8_E4M3", "fp8_row32": "F8_E4M3", "fp4_32": "I8"}
_SCALE_DTYPE = "F8_E8M0"


class Planned(NamedTuple):
    """A tensor to be written: stored shape, size in bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    size: int


class Weight(NamedTuple):
    """A weight to be written: its role, logical shape and encoding, and the tensors that store it."""

    role: str
    shape: tuple[int, ...]
    encoding: str
    tensor: Planned
    scale: Planned | None

    @property
    def size(self) -> int:
        """Bytes of tensor and scale."""
        return self.tensor.size + (self.scale.size if self.scale else 0)


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """A file to be written: its header as bytes, and where each tensor starts in it."""

    file: str
    weights: tuple[Weight, ...]
    header: bytes
    offsets: dict[str, int]
    size: int


def plan_weights(manifest: Manifest) -> list[Weight]:
    """Every tensor of the official layout that the plan's backbone has, in the plan's order.

    `ffn.gate.bias_vl`, which official files hold beside every gate bias, is among them. Raises UserFault for shapes
    that their encoding cannot store.
    """
    weights: list[Weight] = []
    findings: dict[tuple[str, str], Diagnostic] = {}
    for entry in manifest.weights:
        text = _impossible(entry)
        if text:
            findings.setdefault((entry.role, text), Diagnostic("DSV753", f"`{entry.id}` {text}", help=_HELP))
            continue
        for expert in range(entry.count):
            weights.append(_weight(entry.role, entry.name.replace("{expert}", str(expert)), entry))
        if entry.role == "gate_bias":
            weights.append(_weight("gate_bias_vl", entry.name + "_vl", entry))
    if findings:
        raise UserFault(findings.values())
    return weights


def _impossible(entry: WeightEntry) -> str:
    if entry.stored not in _DTYPES:
        return f"is declared `{entry.stored}`, which no random weight can be written in"
    if is_plain(entry.stored):
        return ""
    if len(entry.shape) != 2:
        return f"has shape {entry.shape}, and `{entry.stored}` stores matrices"
    if entry.stored != "fp8_32x32" and entry.shape[-1] % BLOCK:
        return f"has rows of {entry.shape[-1]} elements, and `{entry.stored}` scales {BLOCK} at a time"
    return ""


def _planned(name: str, dtype: str, shape: tuple[int, ...]) -> Planned:
    return Planned(name, dtype, shape, math.prod(shape) * DTYPE_BITS[dtype] // 8)


def _weight(role: str, name: str, entry: WeightEntry) -> Weight:
    dtype = _DTYPES[entry.stored]
    shape = weight_shape(entry.stored, dtype, entry.shape)
    assert shape is not None, "odd rows are refused before"
    scale = None
    if not is_plain(entry.stored):
        scale = _planned(scale_names(name)[0], _SCALE_DTYPE, scale_shape(entry.stored, entry.shape))
    return Weight(role, tuple(entry.shape), entry.stored, _planned(name, dtype, shape), scale)


def plan_shards(weights: list[Weight]) -> list[ShardPlan]:
    """Cut the weights into files of about equal size: at least two (where there are two weights), 4 GiB at the most.

    A weight and its scale stay together; a single table may make a file larger.
    """
    total = sum(weight.size for weight in weights)
    count = max(1, min(len(weights), max(2, -(-total // SHARD_BYTES))))
    groups: list[list[Weight]] = [[] for _ in range(count)]
    before = 0
    for weight in weights:
        middle = 2 * before + weight.size
        groups[min(count - 1, middle * count // max(1, 2 * total))].append(weight)
        before += weight.size
    filled = [group for group in groups if group]
    if len(filled) == 1 and len(weights) > 1:  # one giant among dwarfs
        filled = [filled[0][:-1], filled[0][-1:]]
    return [
        _shard(f"model-{number:05d}-of-{len(filled):05d}.safetensors", group)
        for number, group in enumerate(filled, start=1)
    ]


def _shard(file: str, weights: list[Weight]) -> ShardPlan:
    tensors = [tensor for weight in weights for tensor in (weight.tensor, weight.scale) if tensor]
    # Widest elements first, as the format's own writer does: so every tensor is aligned.
    tensors.sort(key=lambda tensor: (-DTYPE_BITS[tensor.dtype], tensor.name))
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offsets, end = {}, 0
    for tensor in tensors:
        span = [end, end + tensor.size]
        entries[tensor.name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": span}
        offsets[tensor.name], end = end, span[1]
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    header = len(text).to_bytes(8, "little") + text
    placed = {name: len(header) + offset for name, offset in offsets.items()}
    return ShardPlan(file, tuple(weights), header, placed, len(header) + end)


def index_text(shards: Iterable[ShardPlan]) -> str:
    """The index file: every tensor's shard, sorted by name."""
    shards = list(shards)
    weight_map = {name: shard.file for shard in shards for name in shard.offsets}
    size = sum(weight.size for shard in shards for weight in shard.weights)
    document = {"metadata": {"total_size": size}, "weight_map": weight_map}
    return json.dumps(document, indent=2, sort_keys=True) + "\n"
