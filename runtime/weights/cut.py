"""Writes what is left of a checkpoint that is cut down to some layers and experts: bytes as they are, names renumbered.

Tensors are streamed, so a checkpoint of any size takes little memory. They get official names; how each is stored
stays. Of a gate and its biases the first rows are kept, those of the experts that stay. What the text backbone does not
read is left out, but for the gates' biases for images.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from dsv41c.diagnostics import Diagnostic, Span, UserFault
from dsv41c.runtime.folder import new_folder
from dsv41c.runtime.manifest import Manifest
from dsv41c.runtime.synth.layout import Planned, ShardPlan, Weight, index_text, plan_shards
from dsv41c.runtime.weights.checkpoint import Checkpoint
from dsv41c.runtime.weights.headers import read_checkpoint
from dsv41c.runtime.weights.index import INDEX, SUFFIX
from dsv41c.runtime.weights.match import match
from dsv41c.runtime.weights.names import unused_family
from dsv41c.runtime.weights.shard import TensorHeader

COPIED = ("tokenizer.json", "tokenizer_config.json")
PIECE = 1 << 24  # bytes in memory at a time
_LAYER = re.compile(r"layers\.(0|[1-9]\d{0,8})\.(.+)")
_EXPERT = re.compile(r"ffn\.experts\.(0|[1-9]\d{0,8})\..+")
_BY_EXPERT = ("ffn.gate.weight", "ffn.gate.bias", "ffn.gate.bias_vl")

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class CutReport:
    """What was written: tensors, their bytes, and shards."""

    path: Path
    tensors: int
    bytes: int
    shards: int


def cut_checkpoint(
    manifest: Manifest,
    checkpoint: Path | str | Checkpoint,
    out_dir: Path | str,
    *,
    layers: Sequence[int],
    experts: int,
    files: Mapping[str, str],
    progress: Progress | None = None,
    say: Callable[[str], None] | None = None,
) -> CutReport:
    """Write the tensors of `layers`, in this order, and of the first `experts` experts of each, as a checkpoint.

    `manifest` is the whole model's, which the checkpoint has to fit. `files` are written beside it, by name; the
    tokenizer is copied where there is one. `out_dir` must be absent or empty: it appears when everything is written.
    `say` is told what killed runs left there, which goes.

    Raises UserFault: what `match` finds, DSV751 (occupied, unwritable or no room), DSV732 (a file changed meanwhile),
    DSV754 (not of safetensors).
    """
    found = checkpoint if isinstance(checkpoint, Checkpoint) else read_checkpoint(checkpoint)
    matching = match(manifest, found)
    if matching.failed:
        raise UserFault(matching.diagnostics)
    if not all(name.endswith(SUFFIX) for name in found.files):
        raise UserFault([_no_safetensors(found)])
    kept = _kept(found, {layer: index for index, layer in enumerate(layers)}, experts)
    shards = plan_shards([Weight("", each.shape, "", _planned(name, each), None) for name, each in kept.items()])
    total = sum(each.size for each in kept.values())
    tell, done = progress or (lambda done, total: None), 0
    with new_folder(Path(out_dir), sum(shard.size for shard in shards), say) as folder:
        for shard in shards:
            for written in _write_shard(folder / shard.file, shard, kept, found):
                done += written
                tell(done, total)
        for name, text in {INDEX: index_text(shards), **files}.items():
            (folder / name).write_text(text, encoding="utf-8", newline="\n")
        for name in COPIED:
            if (found.folder / name).is_file():
                shutil.copyfile(found.folder / name, folder / name)
    return CutReport(Path(out_dir), len(kept), total, len(shards))


def _no_safetensors(checkpoint: Checkpoint) -> Diagnostic:
    text = f"`{checkpoint.path}` is a GGUF file, and only checkpoints of safetensors are cut"
    help_text = "cut the checkpoint that the file was made of"
    return Diagnostic("DSV754", text, Span(str(checkpoint.path)), help=help_text)


def _kept(checkpoint: Checkpoint, number: Mapping[int, int], experts: int) -> dict[str, TensorHeader]:
    """The tensors that stay by their new names, in the order in which they lie in their files."""
    found: dict[str, TensorHeader] = {}
    for header in sorted(checkpoint.tensors.values(), key=lambda each: (each.file, each.offset)):
        name = _renamed(header.name, number, experts)
        if name is not None:
            found[name] = _first_experts(header, experts) if header.name.endswith(_BY_EXPERT) else header
    return found


def _renamed(name: str, number: Mapping[int, int], experts: int) -> str | None:
    """The name of a tensor after the cut; None if it is left out."""
    in_layer = _LAYER.fullmatch(name)
    if in_layer is None:
        return name if unused_family(name) is None else None
    layer, rest = int(in_layer[1]), in_layer[2]
    expert = _EXPERT.fullmatch(rest)
    if layer not in number or (expert is not None and int(expert[1]) >= experts):
        return None
    return f"layers.{number[layer]}.{rest}"


def _first_experts(header: TensorHeader, experts: int) -> TensorHeader:
    """The first rows of a gate, or entries of a bias: plain floats, so their bytes come first."""
    if header.shape[0] <= experts:
        return header
    return header._replace(shape=(experts, *header.shape[1:]), size=header.size // header.shape[0] * experts)


def _planned(name: str, header: TensorHeader) -> Planned:
    return Planned(name, header.dtype, header.shape, header.size)


def _write_shard(
    path: Path, shard: ShardPlan, kept: Mapping[str, TensorHeader], checkpoint: Checkpoint
) -> Iterator[int]:
    """Write one file, each tensor at its place; yields bytes written."""
    with open(path, "wb") as out:
        out.write(shard.header)
        out.truncate(shard.size)
        for weight in shard.weights:
            header = kept[weight.tensor.name]
            out.seek(shard.offsets[weight.tensor.name])
            with open(checkpoint.folder / header.file, "rb") as source:
                for piece in _pieces(source, header, checkpoint):
                    out.write(piece)
                    yield len(piece)


def _pieces(source: IO[bytes], header: TensorHeader, checkpoint: Checkpoint) -> Iterator[bytes]:
    """The bytes of a tensor in order, row by row where others' lie between. Raises UserFault (DSV732)."""
    rows = header.shape[0] if header.pitch else 1
    for row in range(rows):
        source.seek(header.offset + row * header.pitch)
        for begin in range(0, header.row, PIECE):
            wanted = min(PIECE, header.row - begin)
            piece = source.read(wanted)
            if len(piece) < wanted:
                text = f"`{header.file}` ended inside `{header.stored}`, and did not when it was checked"
                help_text = "wait until the download or export is finished, and run again"
                raise UserFault(checkpoint.located([Diagnostic("DSV732", text, Span(header.file), help=help_text)]))
            yield piece
