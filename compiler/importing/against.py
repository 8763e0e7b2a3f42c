"""Whether a checkpoint tells the model that a spec tells: by the keys of a GGUF file, or config.json beside weights."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping

from dsv41c.compiler.importing import gguf, importer
from dsv41c.compiler.source.nodes import shown
from dsv41c.compiler.spec.models import Spec
from dsv41c.diagnostics import Diagnostic, Sink, Span
from dsv41c.runtime.weights.headers import Checkpoint
from dsv41c.words import counted

_LISTED = 8
_SECTIONS = ("model", "layers", "attention", "rope", "indexer", "mhc", "moe", "engram")
# What a spec may choose, what files leave open, and what tables and hash constants tell better.
_NOT_OF_FILES = frozenset(
    {"model.max_seq_len", "model.n_mtp_layers", "layers.reads", "engram.storage", "engram.row_cache_bytes"}
    | {f"engram.{name}" for name in ("vocab_size", "compressed_vocab_size", "pad_id", "num_embeddings", "hash_layers")}
)


def other_model(spec: Spec, checkpoint: Checkpoint) -> tuple[Diagnostic, ...]:
    """The finding where a checkpoint says of its model what a spec does not: DSV771 of a GGUF file, DSV734 of a config.

    None where it does not tell its whole model: `import` says what it lacks.
    """
    sink = Sink()
    if checkpoint.gguf is not None:
        found = gguf.told(checkpoint, spec.name, sink)
        return () if found is None or sink.failed else checkpoint.located(_finding("DSV771", "the file", spec, found))
    file = checkpoint.folder / "config.json"
    if not file.is_file():
        return ()
    found = importer.told(str(file), spec.name, sink)
    if found is None or sink.failed:
        return ()
    return tuple(_finding("DSV734", "the checkpoint's config.json", spec, found, Span(str(file))))


def _finding(code: str, what: str, spec: Spec, told: Spec, span: Span | None = None) -> list[Diagnostic]:
    differing = list(_differing(spec, told))
    if not differing:
        return []
    more = len(differing) - _LISTED
    notes = (f"and {counted(more, 'more value')}",) if more > 0 else ()
    facts = tuple((path, f"{here} in the spec, {there} there") for path, here, there in differing[:_LISTED])
    message = f"{what} tells another model than the spec, by {counted(len(differing), 'value')}"
    way = "`dsv41c import` of it gives the spec of its model; or take a checkpoint of this one"
    return [Diagnostic(code, message, span, facts=facts, help=way, notes=notes)]


def _differing(spec: Spec, told: Spec) -> Iterator[tuple[str, str, str]]:
    """Paths of what decides numbers, with what a spec and a file say, as text."""
    for section in _SECTIONS:
        here, there = getattr(spec, section), getattr(told, section)
        if here is None or there is None:
            if here is not there:
                yield section, "a part" if here else "no such part", "a part" if there else "no such part"
            continue
        others = there.model_dump()
        for key, own in here.model_dump().items():
            if f"{section}.{key}" not in _NOT_OF_FILES and _as_stored(own) != _as_stored(others[key]):
                yield f"{section}.{key}", shown(own), shown(others[key])


def _as_stored(value: object) -> object:
    """A value with its floats as files have them, in f32."""
    if isinstance(value, Mapping):
        return {key: _as_stored(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_as_stored(item) for item in value]
    return struct.pack("f", value) if isinstance(value, float) else value
