"""What a checkpoint holds, from its headers alone: the contract between checkpoints and everything that looks at one.

Reads a folder (index and shards), a single safetensors file, or GGUF files. No torch, no tensor data, no allocation
that a lying header could steer: a header may be 100 MB at most and is compared with the file's own size.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

from dsv41c.diagnostics import Diagnostic, Span, UserFault, has_errors
from dsv41c.runtime.weights.checkpoint import Checkpoint, located
from dsv41c.runtime.weights.declared import declarations
from dsv41c.runtime.weights.gguf.files import is_gguf
from dsv41c.runtime.weights.gguf.reader import read_gguf
from dsv41c.runtime.weights.index import INDEX, compare, list_files
from dsv41c.runtime.weights.official import official
from dsv41c.runtime.weights.shard import LISTED, TensorHeader, read_shard
from dsv41c.words import counted

__all__ = ["Checkpoint", "TensorHeader", "open_checkpoint", "read_checkpoint"]


def open_checkpoint(path: Path | str) -> Checkpoint:
    """A sound checkpoint. Raises UserFault with every finding of every shard otherwise."""
    checkpoint = read_checkpoint(path)
    if has_errors(checkpoint.diagnostics):
        raise UserFault(checkpoint.diagnostics)
    return checkpoint


def read_checkpoint(path: Path | str) -> Checkpoint:
    """A checkpoint as far as it can be read; its `diagnostics` say what is wrong. Raises nothing for a bad file."""
    path = Path(path)
    if is_gguf(path):
        return read_gguf(path)
    listing = list_files(path)
    shards = [read_shard(listing.folder, name) for name in listing.files]
    findings = [*listing.findings, *(finding for shard in shards for finding in shard.findings)]
    if listing.weight_map is not None:
        findings += compare(listing.weight_map, shards)
    found = [tensor for shard in shards for tensor in shard.tensors]
    findings += _twice_in_shards(found)
    declared, declared_findings = declarations(
        [(INDEX, listing.metadata), *((shard.name, shard.metadata) for shard in shards)]
    )
    broken = {shard.name for shard in shards if not shard.readable} | _not_read(listing.weight_map, listing.files)
    damaged = {name for shard in shards for name in shard.damaged}
    damaged |= {name for name, file in (listing.weight_map or {}).items() if file in broken}
    result = official(found, declared, damaged)
    findings += declared_findings + result.findings
    known = listing.weight_map is not None or not broken
    return Checkpoint(
        path,
        listing.folder,
        MappingProxyType(result.tensors),
        MappingProxyType({shard.name: shard.size for shard in shards}),
        result.prefix,
        frozenset(result.damaged),
        result.complete and known and bool(listing.files),
        located(findings, listing.folder, path),
        declared=declared,
    )


def _not_read(weight_map: Mapping[str, str] | None, files: Iterable[str]) -> set[str]:
    return set(weight_map.values()) - set(files) if weight_map is not None else set()


def _twice_in_shards(found: list[TensorHeader]) -> list[Diagnostic]:
    """Tensors that two shards hold under the same name."""
    first: dict[str, str] = {}
    twice = [t for t in found if first.setdefault(t.stored, t.file) != t.file]
    if not twice:
        return []
    listed = "; ".join(f"`{t.stored}` in `{first[t.stored]}` and `{t.file}`" for t in twice[:LISTED])
    text = f"{counted(len(twice), 'tensor')} in two shards: {listed}"
    return [Diagnostic("DSV709", text, Span(twice[0].file), help="keep one of the files out of the folder")]
