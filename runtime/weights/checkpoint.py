"""What a checkpoint holds, whatever its files are: tensors by official name, and where their bytes lie."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from dsv41c.diagnostics import Diagnostic
from dsv41c.runtime.weights.gguf.facts import GgufFacts
from dsv41c.runtime.weights.shard import TensorHeader


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Tensors by official name, and what is wrong with the files.

    `path` is what the user gave, `folder` where the files are, `files` their sizes in bytes when read. `damaged` are
    names that cannot be judged because their shard is broken or absent; `complete` is false when there may be more such
    names than are known (a broken shard and no index), so that a missing tensor proves nothing. `gguf` is what a GGUF
    file says beside its tensors; None of other files. `declared` is what a safetensors one says of its
    layout (`variants.DECLARATIONS`).
    """

    path: Path
    folder: Path
    tensors: Mapping[str, TensorHeader]
    files: Mapping[str, int]
    prefix: str = ""
    damaged: frozenset[str] = frozenset()
    complete: bool = True
    diagnostics: tuple[Diagnostic, ...] = field(default=())
    gguf: GgufFacts | None = None
    declared: Mapping[str, str] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.size for tensor in self.tensors.values())

    def located(self, findings: Iterable[Diagnostic]) -> tuple[Diagnostic, ...]:
        """Findings about its files, which are placed by plain names, with the folder in front as the user gave it."""
        return located(findings, self.folder, self.path)


def located(findings: Iterable[Diagnostic], folder: Path, path: Path) -> tuple[Diagnostic, ...]:
    """Findings placed by plain names of files, placed by paths."""

    def placed(finding: Diagnostic) -> Diagnostic:
        span = finding.span
        if span is None or span.file == str(path):  # what is said of the checkpoint as a whole has its path already
            return finding
        return replace(finding, span=replace(span, file=str(folder / span.file)))

    return tuple(map(placed, findings))
