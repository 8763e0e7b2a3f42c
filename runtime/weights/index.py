"""Which files make up a checkpoint: one file, a folder of them, or what an index file lists."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from dsv41c.diagnostics import Diagnostic, Span
from dsv41c.runtime.weights.names import shown
from dsv41c.runtime.weights.shard import LISTED, MAX_HEADER_BYTES, Broken, Shard, read_json
from dsv41c.words import counted, shortlist

INDEX = "model.safetensors.index.json"
SUFFIX = ".safetensors"
_HELP_UNSAFE = "put the shards beside the index, and name them plainly in it"


@dataclass(slots=True)
class Listing:
    """The files of a checkpoint, in order of name, and the file each tensor is said to be in (None: no index).

    `metadata` is the object of that name in the index.
    """

    folder: Path
    files: list[str] = field(default_factory=list)
    weight_map: dict[str, str] | None = None
    findings: list[Diagnostic] = field(default_factory=list)
    metadata: dict[str, object] = field(default_factory=dict)


def list_files(path: Path) -> Listing:
    """The files a path stands for. A folder's index decides when there is one; else every safetensors file counts."""
    try:
        if path.is_file() and path.name.endswith(SUFFIX):
            return Listing(path.parent, [path.name])
        if path.is_dir():
            if (path / INDEX).is_file():
                return _from_index(path)
            if os.path.lexists(path / INDEX):
                text = f"`{INDEX}` is no regular file, nor a link to one"
                return Listing(path, findings=[Diagnostic("DSV705", text, Span(INDEX), help="fetch the index again")])
            files = sorted(entry.name for entry in path.iterdir() if entry.name.endswith(SUFFIX))
            return Listing(path, files) if files else _absent(path, "holds no .safetensors or .gguf file")
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        return _absent(path, f"cannot be read: {getattr(error, 'strerror', None) or error}")
    return _absent(path, "is neither a folder nor a .safetensors or .gguf file" if path.exists() else "does not exist")


def _absent(path: Path, text: str) -> Listing:
    help_text = "give the folder that holds model.safetensors.index.json, or one .safetensors or .gguf file"
    return Listing(
        path, findings=[Diagnostic("DSV700", f"checkpoint `{path}` {text}", Span(str(path)), help=help_text)]
    )


def _from_index(folder: Path) -> Listing:
    listing = Listing(folder)
    try:
        document = _read_index(folder / INDEX)
        weight_map = _weight_map(document)
    except Broken as error:
        listing.findings.append(Diagnostic("DSV705", str(error), Span(INDEX), help="fetch the index again"))
        return listing
    files = sorted(set(weight_map.values()))
    unsafe = [name for name in files if not _plain(name)]
    if unsafe:
        listing.findings.append(
            _finding("DSV706", "the index names files that are not plain names in its folder", unsafe, _HELP_UNSAFE)
        )
    present = {name for name in files if name not in unsafe and (folder / name).exists()}
    absent = [name for name in files if name not in present and name not in unsafe]
    if absent:
        total = sum(1 for name in weight_map.values() if name in set(absent))
        text = f"{counted(len(absent), 'shard')} of {len(files)} not there, and {counted(total, 'tensor')} with them"
        listing.findings.append(_finding("DSV707", text, absent, "fetch the named shards"))
    listing.files = sorted(present)
    listing.weight_map = weight_map
    metadata = document.get("metadata")
    listing.metadata = metadata if isinstance(metadata, dict) else {}
    return listing


def _read_index(path: Path) -> dict[str, object]:
    if path.stat().st_size > MAX_HEADER_BYTES:
        raise Broken(f"`{INDEX}` is larger than {MAX_HEADER_BYTES:,} bytes")
    return read_json(path.read_bytes(), f"`{INDEX}`")


def _weight_map(document: dict[str, object]) -> dict[str, str]:
    weight_map = document.get("weight_map")
    if not isinstance(weight_map, dict):
        raise Broken(f"`{INDEX}` has no object `weight_map`")
    for name, file in weight_map.items():
        if not isinstance(file, str) or not name.isprintable():
            raise Broken(f"`{INDEX}`: `weight_map` entry `{shown(name)}` is not a tensor and a file name")
    if not weight_map:
        raise Broken(f"`{INDEX}` has an empty `weight_map`")
    return weight_map


def _plain(name: str) -> bool:
    """Whether a file name stays in its folder. Links may lead out: download caches are made of them."""
    return name.endswith(SUFFIX) and name.isprintable() and not set(name) & set("/\\:") and len(name) <= 255


def _finding(code: str, text: str, names: list[str], help: str) -> Diagnostic:
    listed = shortlist([f"`{shown(name)}`" for name in names], LISTED)
    return Diagnostic(code, f"{text}: {listed}", Span(INDEX), help=help)


def compare(weight_map: dict[str, str], shards: list[Shard]) -> list[Diagnostic]:
    """Findings where the index and the headers of readable shards tell different stories."""
    readable = {shard.name for shard in shards if shard.readable}
    holds = {shard.name: {t.stored for t in shard.tensors} | shard.damaged for shard in shards}
    owners = {name: shard for shard, names in holds.items() for name in names}
    elsewhere: list[str] = []
    nowhere: list[str] = []
    for name, file in weight_map.items():
        if file in readable and name not in holds[file]:
            (elsewhere if name in owners else nowhere).append(name)
    unlisted = [name for names in holds.values() for name in names if name not in weight_map]
    findings = []
    for names, text in (
        (
            [f"{n}` in `{owners[n]}`, not `{weight_map[n]}" for n in elsewhere],
            "headers hold tensors in other shards than the index says",
        ),
        ([f"{n}` in `{weight_map[n]}" for n in nowhere], "the index lists tensors that their shards do not hold"),
        ([f"{n}` in `{owners[n]}" for n in unlisted], "shards hold tensors that the index does not list"),
    ):
        if names:
            message = f"{text}: {shortlist([f'`{name}`' for name in sorted(names)], LISTED)}"
            findings.append(Diagnostic("DSV708", message, Span(INDEX), help="make the index again from the shards"))
    return findings
