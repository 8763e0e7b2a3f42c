"""Write a random checkpoint: whole or not at all, the same bytes for the same plan and seed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from dsv41c.diagnostics import Diagnostic, UserFault
from dsv41c.runtime.folder import new_folder
from dsv41c.runtime.manifest import Manifest
from dsv41c.runtime.synth.layout import ShardPlan, Weight, index_text, plan_shards, plan_weights
from dsv41c.runtime.synth.tokenizer import tokenizer_files
from dsv41c.runtime.synth.values import pieces
from dsv41c.runtime.weights.index import INDEX
from dsv41c.words import size

DEFAULT_MAX_BYTES = 8 << 30

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class SynthReport:
    """What was written: tensors, their bytes, and shards."""

    path: Path
    tensors: int
    bytes: int
    shards: int


def synth(
    manifest: Manifest,
    config: Mapping[str, object],
    out_dir: Path | str,
    *,
    seed: int = 0,
    max_bytes: int = DEFAULT_MAX_BYTES,
    progress: Progress | None = None,
    say: Callable[[str], None] | None = None,
) -> SynthReport:
    """Write a random checkpoint in the official layout for a plan: shards, index, config.json and tokenizer.

    `config` is written as config.json; `progress` is told bytes done and in all. `out_dir` must be absent or empty: it
    appears when everything is written, and nothing stays behind on failure; `say` is told what killed runs left there,
    which goes. Raises UserFault: DSV750 (over `max_bytes`), DSV751 (occupied, unwritable or no room), DSV752
    (impossible vocabulary), DSV753 (impossible encoding).
    """
    out = Path(out_dir)
    weights = plan_weights(manifest)
    total = sum(weight.size for weight in weights)
    if total > max_bytes:
        text = f"the checkpoint would have {total:,} bytes ({size(total)}), {max_bytes:,} are allowed"
        facts = (("tensors", f"{_count(weights):,}"),)
        raise UserFault([Diagnostic("DSV750", text, facts=facts, help="cut the spec down, or raise `--max-bytes`")])
    shards = plan_shards(weights)
    files = {
        INDEX: index_text(shards),
        "config.json": json.dumps(config, indent=2, ensure_ascii=False) + "\n",
        **tokenizer_files(manifest),
    }
    with new_folder(out, sum(shard.size for shard in shards), say) as folder:
        _write(folder, shards, files, seed, progress or (lambda done, total: None))
    return SynthReport(out, _count(weights), total, len(shards))


def _count(weights: list[Weight]) -> int:
    """How many tensors the weights are stored in."""
    return sum(2 if weight.scale else 1 for weight in weights)


def _write(folder: Path, shards: list[ShardPlan], files: Mapping[str, str], seed: int, progress: Progress) -> None:
    total = sum(shard.size for shard in shards)
    done = 0
    for shard in shards:
        for written in _write_shard(folder / shard.file, shard, seed):
            done += written
            progress(done, total)
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8", newline="\n")


def _write_shard(path: Path, shard: ShardPlan, seed: int) -> Iterator[int]:
    """Write one file, each tensor at its place, never more than a piece of one in memory; yields bytes written."""
    with open(path, "wb") as file:
        file.write(shard.header)
        file.truncate(shard.size)
        yield len(shard.header)
        for weight in shard.weights:
            at = [shard.offsets[tensor.name] for tensor in (weight.tensor, weight.scale) if tensor]
            for piece in pieces(weight, seed):
                parts = [part.numpy().data for part in piece if part is not None]
                for place, data in enumerate(parts):
                    file.seek(at[place])
                    file.write(data)
                    at[place] += data.nbytes
                yield sum(data.nbytes for data in parts)
