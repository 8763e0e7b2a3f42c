"""Write a checkpoint anew in another layout: whole or not at all, and compared with the old one before it appears."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from dsv41c.diagnostics import Diagnostic, Span, UserFault
from dsv41c.runtime.folder import expect_free, new_folder
from dsv41c.runtime.manifest import Manifest
from dsv41c.runtime.repack.check import compare
from dsv41c.runtime.repack.copy import Sources, pieces
from dsv41c.runtime.repack.layout import (
    SHARD_BYTES,
    ExpertLayout,
    OutputFile,
    TableLayout,
    declarations,
    files,
    index_text,
    outputs,
)
from dsv41c.runtime.weights.headers import Checkpoint, read_checkpoint
from dsv41c.runtime.weights.index import INDEX
from dsv41c.runtime.weights.match import Matching, match
from dsv41c.runtime.weights.variants import NIBBLES

# What lies beside the tensors and says what they are.
COPIED = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class RepackReport:
    """What was written: tensors, their bytes, and files; `read` is how many tensors the checkpoint had.

    `compared` is how many elements were decoded on both sides and found equal; None without a check.
    """

    path: Path
    tensors: int
    bytes: int
    shards: int
    read: int
    compared: int | None


def repack(
    manifest: Manifest,
    checkpoint: Path | str | Checkpoint,
    out_dir: Path | str,
    *,
    experts: ExpertLayout = "stacked",
    tables: TableLayout = "rows",
    shard_bytes: int = SHARD_BYTES,
    check: bool = True,
    progress: Progress | None = None,
    say: Callable[[str], None] | None = None,
) -> RepackReport:
    """Write every tensor of a checkpoint, which the plan has to fit, with the same values in another layout.

    `out_dir` must be absent or empty: it appears when everything is written, and compared where `check` is set.
    `progress` is told what is done, and bytes done and in all; `say` what killed runs left there, which goes.

    Raises UserFault: what `match` finds, DSV751 (occupied, unwritable or no room), DSV732 (a file changed meanwhile),
    DSV755 (not of safetensors), DSV756 (the result differs).
    """
    out, tell = Path(out_dir), progress or (lambda what, done, total: None)
    expect_free(out)
    found = checkpoint if isinstance(checkpoint, Checkpoint) else read_checkpoint(checkpoint)
    if found.gguf is not None:
        raise UserFault([_no_safetensors(found)])
    matching = _matching(manifest, found)
    declared = declarations(experts)
    listed = files(outputs(matching, found, experts, tables), declared, shard_bytes)
    total = sum(output.size for file in listed for output in file.tensors)
    with new_folder(out, total + sum(len(file.header) for file in listed), say) as folder:
        _write(folder, listed, found, lambda done: tell("writing", done, total))
        (folder / INDEX).write_text(index_text(listed, declared), encoding="utf-8", newline="\n")
        for name in COPIED:
            if (found.folder / name).is_file():
                shutil.copyfile(found.folder / name, folder / name)
        compared = None
        if check:
            swapped = found.declared.get(NIBBLES) == "high_first"
            compared = compare(found, matching, folder, swapped, lambda done: tell("comparing", done, total))
    count = sum(len(file.tensors) for file in listed)
    return RepackReport(out, count, total, len(listed), len(found.tensors), compared)


def _matching(manifest: Manifest, found: Checkpoint) -> Matching:
    """The plan's weights in the checkpoint. Which nibble comes first is no hindrance: it is changed."""
    usual = {key: value for key, value in found.declared.items() if key != NIBBLES}
    matching = match(manifest, replace(found, declared=usual))
    if matching.failed:
        raise UserFault(matching.diagnostics)
    return matching


def _no_safetensors(found: Checkpoint) -> Diagnostic:
    text = f"`{found.path}` is a GGUF file, and only checkpoints of safetensors are repacked"
    return Diagnostic("DSV755", text, Span(str(found.path)), help="run the plan on the file as it is")


def _write(folder: Path, listed: list[OutputFile], found: Checkpoint, tell: Callable[[int], None]) -> None:
    done = 0
    with Sources(found) as sources:
        for file in listed:
            with open(folder / file.name, "wb") as written:
                written.write(file.header)
                for output in file.tensors:
                    for piece in pieces(output, sources):
                        written.write(piece.data)
                        done += piece.nbytes
                        tell(done)
