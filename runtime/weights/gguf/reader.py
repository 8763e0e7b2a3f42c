"""GGUF files as a checkpoint: tensors by official name, of the same shapes and encodings as every other file's.

Experts that lie in one tensor are told one by one. Tables of raw FP8 rows are told as the release stores them: codes,
and scales. Everything that a file is refused for is found here, from its header alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from dsv41c.diagnostics import Diagnostic, Span, has_errors
from dsv41c.runtime.weights.checkpoint import Checkpoint, located
from dsv41c.runtime.weights.gguf import tables
from dsv41c.runtime.weights.gguf.facts import GgufFacts
from dsv41c.runtime.weights.gguf.families import (
    ALL_TABLES,
    ARCHITECTURE,
    FOREIGN,
    GLOBALS,
    K_WEIGHT,
    NEIGHBOURS,
    PREFIX,
    Q_WEIGHT,
    TABLE,
    TABLE_SCALE,
    Family,
    family_of,
)
from dsv41c.runtime.weights.gguf.files import check_set, gguf_files
from dsv41c.runtime.weights.gguf.header import GgufFile, RawTensor, Value, read_file
from dsv41c.runtime.weights.gguf.tensor import ONES, GgufHeader
from dsv41c.runtime.weights.gguf.uniform import not_uniform
from dsv41c.runtime.weights.names import shown
from dsv41c.runtime.weights.shard import LISTED, TensorHeader
from dsv41c.words import counted, shortlist

_BLOCK = re.compile(r"blk\.(0|[1-9]\d{0,8})\.(.+)")
_EXPERT = re.compile(r"(ffn_(?:gate|up|down))\.(0|[1-9]\d{0,8})\.(.+)")
MAX_EXPERTS = 1 << 16
MAX_TENSORS = 1 << 20


class _Place(NamedTuple):
    """Where a tensor's name puts it: its layer (None: the whole model) and what is left of the name."""

    layer: int | None
    rest: str


@dataclass(slots=True)
class _Reading:
    """Tensors found so far, by official name, and findings."""

    family: Family
    tensors: dict[str, TensorHeader] = field(default_factory=dict)
    tables: dict[int, tuple[int, int]] = field(default_factory=dict)
    findings: list[Diagnostic] = field(default_factory=list)
    twice: list[tuple[str, str]] = field(default_factory=list)
    unknown: list[RawTensor] = field(default_factory=list)
    scales: list[RawTensor] = field(default_factory=list)
    refused: set[int] = field(default_factory=set)

    def add(self, header: TensorHeader) -> None:
        """Keep a tensor, unless its place is taken already."""
        other = self.tensors.setdefault(header.name, header)
        if other is not header:
            self.twice.append((other.stored, header.stored))


def read_gguf(path: Path) -> Checkpoint:
    """A GGUF checkpoint as far as it can be read; its `diagnostics` say what is wrong. Raises nothing for bad files."""
    listing = gguf_files(path)
    files = [read_file(listing.folder, name) for name in listing.names]
    findings = [*listing.findings, *(finding for file in files for finding in file.findings)]
    findings += check_set(listing, files) if files else []
    sizes = MappingProxyType({file.name: file.size for file in files})
    whole = bool(files) and not listing.absent and all(file.readable and not file.damaged for file in files)
    first = files[0] if files and files[0].readable and files[0].name not in listing.absent else None
    if first is None or (listing.absent and "general.architecture" not in first.keys):
        return Checkpoint(
            path, listing.folder, {}, sizes, complete=False, diagnostics=located(findings, listing.folder, path)
        )
    raw = [tensor for file in files for tensor in file.tensors]
    refusals = [*_twice_in_parts(raw), *_other_architecture(first, raw)]
    family = family_of(_own_keys(first.keys), (_place(tensor.name).rest for tensor in raw))
    if not refusals and family.refused is not None:
        text = f"`{shown(first.name)}` is of the GGUF family `{family.name}`, which is not read: {family.refused}"
        refusals.append(
            Diagnostic("DSV762", text, Span(first.name), help="use the safetensors release, or another export")
        )
    reading = _Reading(family)
    facts = None
    if not has_errors(refusals):
        facts = _read(reading, raw, first, whole=whole)
    damaged = {name for file in files for stored in file.damaged for name in _names(stored, family)}
    damaged |= {f"layers.{layer}.{TABLE}" for layer in reading.refused}
    findings += refusals + reading.findings
    return Checkpoint(
        path,
        listing.folder,
        MappingProxyType(reading.tensors),
        sizes,
        damaged=frozenset(damaged),
        complete=whole and facts is not None,
        diagnostics=located(findings, listing.folder, path),
        gguf=facts,
    )


def _own_keys(keys: Iterable[str]) -> list[str]:
    return [key.removeprefix(PREFIX) for key in keys if key.startswith(PREFIX)]


def _place(name: str) -> _Place:
    found = _BLOCK.fullmatch(name)
    return _Place(int(found[1]), found[2]) if found else _Place(None, name)


def _names(stored: str, family: Family) -> list[str]:
    """The official name of a tensor that could not be described, as far as it has one."""
    layer, rest = _place(stored)
    official = GLOBALS.get(rest) if layer is None else family.official(rest)
    return [] if official is None else [official if layer is None else f"layers.{layer}.{official}"]


def _twice_in_parts(raw: list[RawTensor]) -> list[Diagnostic]:
    first: dict[str, str] = {}
    twice = [tensor for tensor in raw if first.setdefault(tensor.name, tensor.file) != tensor.file]
    if not twice:
        return []
    listed = "; ".join(f"`{shown(t.name)}` in `{shown(first[t.name])}` and `{shown(t.file)}`" for t in twice[:LISTED])
    text = f"{counted(len(twice), 'tensor')} in two parts: {listed}"
    return [Diagnostic("DSV709", text, Span(twice[0].file), help="fetch all parts of one revision")]


def _other_architecture(file: GgufFile, raw: list[RawTensor]) -> list[Diagnostic]:
    """Findings where the file is of another architecture, by its own word, its keys or its tensors."""
    value = file.keys.get("general.architecture")
    named = value.data if value is not None and isinstance(value.data, str) else None
    span = Span(file.name)
    if named != ARCHITECTURE:
        what = "names no `general.architecture`" if named is None else f"is of architecture `{shown(named)}`"
        known = NEIGHBOURS.get(named or "")
        reason = f": `{named}` {known}" if known else ""
        if named == "deepseek4" and any(".engram_" in tensor.name for tensor in raw):
            reason = ": it has engram tensors under the older architecture's name, as a converter wrote them by mistake"
        text = f"`{shown(file.name)}` {what}, expected `{ARCHITECTURE}`{reason}"
        return [Diagnostic("DSV761", text, span, help=f"use a file of architecture `{ARCHITECTURE}`")]
    findings = []
    stray = [key for key in file.keys if key.startswith("deepseek4.")]
    if stray:
        listed = shortlist([f"`{shown(key)}`" for key in stray], LISTED)
        text = f"keys have the prefix `deepseek4.`, expected `{PREFIX}`: {listed}"
        findings.append(Diagnostic("DSV761", text, span, help="export the file again: its keys cannot be found"))
    foreign = [tensor for tensor in raw if any(part in tensor.name for part in FOREIGN)]
    if foreign:
        listed = shortlist([f"`{shown(tensor.name)}`" for tensor in foreign], LISTED)
        text = f"{counted(len(foreign), 'tensor')} of the older architecture: {listed}"
        findings.append(Diagnostic("DSV768", text, Span(foreign[0].file), help=f"use a file of `{ARCHITECTURE}`"))
    present = file.keys.get(PREFIX + "engram.present")
    if present is not None and present.data is False:
        text = f"`{PREFIX}engram.present` is false: the engram tables were left out, and the model is not the same"
        findings.append(Diagnostic("DSV766", text, span, help="use a file with the engram tables"))
    return findings


def _read(reading: _Reading, raw: list[RawTensor], first: GgufFile, *, whole: bool) -> GgufFacts:
    """Tensors by official name, then what the keys say of them, which nothing is told of where not all are known."""
    by_layer: dict[int, list[tuple[str, RawTensor]]] = {}
    for tensor in raw:
        layer, rest = _place(tensor.name)
        if layer is not None:
            by_layer.setdefault(layer, []).append((rest, tensor))
        elif rest in GLOBALS:
            reading.add(_header(tensor, GLOBALS[rest], tuple(reversed(tensor.dims))))
        elif rest != ALL_TABLES:
            (reading.scales if tables.is_scale(rest) else reading.unknown).append(tensor)
    for layer, tensors in sorted(by_layer.items()):
        _read_layer(reading, layer, tensors, first.keys)
    facts = _facts(reading, first, by_layer)
    of_all = [tensor for tensor in raw if tensor.name == ALL_TABLES]
    if of_all:
        split, wrong = tables.sliced(of_all[0], facts)
        reading.findings += wrong
        reading.refused |= set(facts.engram_layers) if wrong else set()
        for header in split:
            _add_table(reading, header)
        facts = _facts(reading, first, by_layer)
    reading.findings += [
        *_unread(reading),
        *(facts.own_findings(reading.refused) if whole else ()),
        *not_uniform(facts),
    ]
    return facts


def _facts(reading: _Reading, first: GgufFile, by_layer: dict[int, list[tuple[str, RawTensor]]]) -> GgufFacts:
    found: dict[str, list[int]] = {}
    for layer, tensors in sorted(by_layer.items()):
        for rest, _ in tensors:
            found.setdefault(rest, []).append(layer)
    layers_with = MappingProxyType({rest: tuple(layers) for rest, layers in found.items()})
    return GgufFacts(first.name, reading.family, first.keys, MappingProxyType(dict(reading.tables)), layers_with)


def _add_table(reading: _Reading, header: TensorHeader) -> None:
    reading.add(header)
    if header.name.endswith(TABLE):
        rows, width = header.shape
        reading.tables[int(header.name.split(".")[1])] = (rows, width)


def _read_layer(reading: _Reading, layer: int, tensors: list[tuple[str, RawTensor]], keys: dict[str, Value]) -> None:
    front, family = f"layers.{layer}.", reading.family
    scales = [tensor for rest, tensor in tensors if tables.is_scale(rest)]
    left: list[RawTensor] = []
    for rest, tensor in tensors:
        official = family.official(rest) if "{" not in rest else None  # which stands for a number in ours
        expert = _EXPERT.fullmatch(rest)
        if official == TABLE:
            found, wrong = tables.table(tensor, front, scales, keys)
            reading.findings += wrong
            reading.refused |= {layer} if wrong else set()
            for header in found:
                _add_table(reading, header)
        elif official is not None and "{expert}" in official:
            _add_experts(reading, tensor, front + official)
        elif expert and (single := family.official(f"{expert[1]}.{{expert}}.{expert[3]}")):
            name = front + single.replace("{expert}", str(int(expert[2])))
            reading.add(_header(tensor, name, tuple(reversed(tensor.dims))))
        elif official is not None:
            rows = tuple(reversed(tensor.dims))
            # Groups of an output projection may be a dimension of their own.
            flat = (rows[0] * rows[1], rows[2]) if official == "attn.wo_a.weight" and len(rows) == 3 else rows
            reading.add(_header(tensor, front + official, flat))
        elif not tables.is_scale(rest):
            left.append(tensor)
    if family.product:
        _add_product(reading, front, [tensor for tensor in left if ".engram_" in tensor.name])
        left = [tensor for tensor in left if ".engram_" not in tensor.name]
    reading.unknown += left
    applied = reading.tensors.get(front + TABLE_SCALE)
    reading.scales += [scale for scale in scales if applied is None or scale.name != applied.stored]


def _add_product(reading: _Reading, front: str, tensors: list[RawTensor]) -> None:
    """The product of two weights as the first of them, and ones as the second."""
    if len(tensors) != 1:
        reading.unknown += tensors
        return
    header = _header(tensors[0], front + Q_WEIGHT, tuple(reversed(tensors[0].dims)))
    reading.add(header)
    reading.add(GgufHeader(front + K_WEIGHT, header.stored, ONES, header.shape, header.file, header.offset, 0))


def _add_experts(reading: _Reading, tensor: RawTensor, name: str) -> None:
    if len(tensor.dims) != 3 or tensor.dims[2] > MAX_EXPERTS:
        text = (
            f"tensor `{shown(tensor.name)}` has dimensions {list(tensor.dims)}, expected those of a matrix and experts"
        )
        reading.findings.append(Diagnostic("DSV722", text, Span(tensor.file), help="export the tensor again"))
        return
    columns, rows, count = tensor.dims
    if len(reading.tensors) + count > MAX_TENSORS:
        text = f"tensor `{shown(tensor.name)}` and those before it have more than {MAX_TENSORS:,} matrices of experts"
        reading.findings.append(Diagnostic("DSV760", text, Span(tensor.file), help="export the file again"))
        return
    size = tensor.size // count
    for expert in range(count):
        part = tensor._replace(name=f"{tensor.name}[{expert}]", offset=tensor.offset + expert * size, size=size)
        reading.add(_header(part, name.replace("{expert}", str(expert)), (rows, columns)))


def _header(tensor: RawTensor, name: str, shape: tuple[int, ...]) -> TensorHeader:
    plain = tensor.type.name in ("F32", "BF16")
    kind = TensorHeader if plain else GgufHeader
    return kind(name, tensor.name, tensor.type.name, shape, tensor.file, tensor.offset, tensor.size)


def _unread(reading: _Reading) -> list[Diagnostic]:
    """Findings for tensors of types or names that are not read, and for those in two spellings."""
    findings = []
    kinds: dict[str, list[TensorHeader]] = {}
    for header in reading.tensors.values():
        if header.dtype in tables.UNREAD:
            kinds.setdefault(header.dtype, []).append(header)
    for kind, headers in kinds.items():
        listed = shortlist([f"`{shown(header.stored)}`" for header in headers], LISTED)
        text = f"{counted(len(headers), 'tensor')} of type {kind}, which is not read: {listed}"
        help_text = "export the tensor as F32, F16, BF16, Q8_0 or MXFP4"
        findings.append(Diagnostic("DSV763", text, Span(headers[0].file), help=help_text))
    if reading.scales:
        listed = shortlist([f"`{shown(tensor.name)}`" for tensor in reading.scales], LISTED)
        text = f"{counted(len(reading.scales), 'scale')} beside other tensors, which would not be applied: "
        help_text = "remove the scale if the tensor has been scaled already; else export the tensor again"
        findings.append(Diagnostic("DSV727", text + listed, Span(reading.scales[0].file), help=help_text))
    if reading.unknown:
        listed = shortlist([f"`{shown(tensor.name)}`" for tensor in reading.unknown], LISTED)
        text = f"{counted(len(reading.unknown), 'tensor')} unknown to GGUF family `{reading.family.name}`: {listed}"
        help_text = "use a file whose names are all of one family; other parts of the model belong in other files"
        findings.append(Diagnostic("DSV721", text, Span(reading.unknown[0].file), help=help_text))
    if reading.twice:
        listed = "; ".join(f"`{shown(one)}` and `{shown(two)}`" for one, two in reading.twice[:LISTED])
        text = f"{counted(len(reading.twice), 'tensor')} in two spellings: {listed}"
        findings.append(Diagnostic("DSV710", text, help="keep the tensors of one spelling"))
    return findings
