"""Which files make up a GGUF checkpoint: one file, or a split set of them, `NAME-00001-of-00012.gguf` and so on."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dsv41c.diagnostics import Diagnostic, Span
from dsv41c.runtime.weights.gguf.header import MAGIC, GgufFile
from dsv41c.runtime.weights.names import shown
from dsv41c.runtime.weights.shard import LISTED
from dsv41c.words import counted, shortlist

SUFFIX = ".gguf"
MAX_SPLIT = 99_999
_PART = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf", re.DOTALL)


@dataclass(frozen=True, slots=True)
class GgufFiles:
    """The files of a checkpoint, the one with the keys first; of a split set, `absent` are those that are not there."""

    folder: Path
    names: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    findings: tuple[Diagnostic, ...] = field(default=())


def is_gguf(path: Path) -> bool:
    """Whether a path is for this reader: a file named or beginning so, or a folder of such and of no other kind."""
    try:
        if path.is_dir():
            names = [entry.name for entry in path.iterdir()]
            others = any(name.endswith((".safetensors", ".safetensors.index.json")) for name in names)
            return not others and any(name.endswith(SUFFIX) for name in names)
        if not path.is_file():
            return False
        if path.name.endswith(SUFFIX):
            return True
        if path.suffix == ".safetensors":
            return False
        with open(path, "rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except (OSError, ValueError):  # whoever reads it next says why
        return False


def gguf_files(path: Path) -> GgufFiles:
    """The files that a path stands for: a file, any part of a split set, or a folder that holds one checkpoint."""
    try:
        if not path.is_dir():
            return _set_of(path.parent, path.name)
        names = sorted(entry.name for entry in path.iterdir() if entry.name.endswith(SUFFIX))
    except OSError as error:
        text = f"checkpoint `{path}` cannot be read: {error.strerror}"
        return GgufFiles(path, findings=(Diagnostic("DSV700", text, Span(str(path)), help="let this user read it"),))
    sets = {_set_of(path, name).names: _set_of(path, name) for name in names}
    if len(sets) > 1:
        listed = shortlist([f"`{shown(first)}`" for first, *_ in sets], LISTED)
        text = f"checkpoint `{path}` holds {len(sets)} GGUF models: {listed}"
        return GgufFiles(path, findings=(Diagnostic("DSV700", text, Span(str(path)), help="give one of the files"),))
    return next(iter(sets.values()))


def _set_of(folder: Path, name: str) -> GgufFiles:
    part = _PART.fullmatch(name)
    if part is None or not 1 <= int(part[3]) <= MAX_SPLIT or not 1 <= int(part[2]) <= int(part[3]):
        return GgufFiles(folder, (name,))
    prefix, width = part[1], int(part[3])
    present = {entry.name for entry in folder.iterdir()}  # asked once, however many parts the name claims
    there = [name for name in present if (other := _PART.fullmatch(name)) and (other[1], other[3]) == (prefix, part[3])]
    numbers = {int(name[-len("00001-of-00001.gguf") :][:5]) for name in there}
    missing = (number for number in range(1, width + 1) if number not in numbers)
    absent = tuple(f"{prefix}-{number:05}-of-{part[3]}.gguf" for number in missing)
    return GgufFiles(folder, tuple(sorted(there)), absent)


def check_set(listing: GgufFiles, files: Sequence[GgufFile]) -> list[Diagnostic]:
    """Findings where the parts of a split set are not all there, or do not belong together by their own keys."""
    findings = []
    if listing.absent:
        count = len(listing.absent) + len(listing.names)
        listed = shortlist([f"`{shown(name)}`" for name in listing.absent], LISTED)
        text = f"{counted(len(listing.absent), 'part')} of {count} of a split checkpoint not there: {listed}"
        findings.append(Diagnostic("DSV707", text, Span(listing.names[0]), help="fetch the named files"))
    whole = len(listing.absent) + len(files)
    readable = [file for file in files if file.readable]
    wrong = [text for file in readable for text in _split_faults(file, whole)]
    claimed = {number for file in readable if (number := _number(file, "split.tensors.count")) is not None}
    held = sum(len(file.tensors) + len(file.damaged) for file in readable)
    if len(readable) == whole and claimed and claimed != {held}:
        told = " and ".join(f"{number:,}" for number in sorted(claimed))
        wrong.append(f"`split.tensors.count` is {told}, and the files hold {held:,}")
    if wrong:
        more = f" (and {len(wrong) - 1:,} more)" if len(wrong) > 1 else ""
        text = f"the parts of the split checkpoint disagree: {wrong[0]}{more}"
        findings.append(Diagnostic("DSV770", text, Span(listing.names[0]), help="fetch all parts of one revision"))
    return findings


def _split_faults(file: GgufFile, whole: int) -> list[str]:
    part = _PART.fullmatch(file.name)
    number = int(part[2]) - 1 if part else 0
    # A file that is whole may say nothing, or 0 parts.
    right = {"split.count": (whole,) if whole > 1 else (1, 0, None), "split.no": (number,) if whole > 1 else (0, None)}
    faults = []
    for key, allowed in right.items():
        given = _number(file, key)
        if given not in allowed:
            told = "nothing" if given is None else f"{given:,}"
            faults.append(f"`{key}` of `{shown(file.name)}` says {told}, expected {allowed[0]:,}")
    return faults


def _number(file: GgufFile, key: str) -> int | None:
    value = file.keys.get(key)
    return value.data if value is not None and type(value.data) is int else None
