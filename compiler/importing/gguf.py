"""`dsv41c import FILE.gguf`: what a GGUF file says of its model becomes the spec that its config.json would give."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping

from dsv41c.compiler.engram_hash import derivable, hash_constants
from dsv41c.compiler.importing.importer import HEADER, NAME, REMARKS, Imported, spec_of
from dsv41c.compiler.source import Node
from dsv41c.compiler.source.nodes import shown
from dsv41c.compiler.spec.models import Spec
from dsv41c.compiler.spec.write import to_yaml
from dsv41c.diagnostics import Diagnostic, Sink, Span, has_errors, ordered
from dsv41c.runtime.weights.gguf.config import config_of
from dsv41c.runtime.weights.headers import Checkpoint, read_checkpoint
from dsv41c.words import counted

_LISTED = 8
_SECTIONS = ("model", "layers", "attention", "rope", "indexer", "mhc", "moe", "engram")
# What a spec may choose, what files leave open, and what tables and hash constants tell better.
_NOT_OF_FILES = frozenset(
    {"model.max_seq_len", "model.n_mtp_layers", "layers.reads", "engram.storage", "engram.row_cache_bytes"}
    | {f"engram.{name}" for name in ("vocab_size", "compressed_vocab_size", "pad_id", "num_embeddings", "hash_layers")}
)


def import_gguf(path: str, *, name: str = NAME) -> Imported:
    """Import the model of a GGUF checkpoint. Faults are in the result; nothing is raised.

    A file that is refused as a checkpoint gives no spec, and neither does one whose hash constants are not those that
    the spec would derive.
    """
    checkpoint = read_checkpoint(path)
    if has_errors(checkpoint.diagnostics) or checkpoint.gguf is None:
        return Imported(None, ordered(checkpoint.diagnostics), {})
    sink = Sink()
    sink.extend(checkpoint.diagnostics)
    spec = _told(checkpoint, name, sink)
    if spec is not None and not sink.failed:
        sink.extend(_other_hash(spec, checkpoint))
    text = None if spec is None or sink.failed else to_yaml(spec, HEADER, REMARKS)
    return Imported(text, ordered(sink), {})


def _told(checkpoint: Checkpoint, name: str, sink: Sink) -> Spec | None:
    """The spec that a sound GGUF checkpoint tells; None where it tells none."""
    config, findings = config_of(checkpoint)
    sink.extend(checkpoint.located(findings))
    if sink.failed or checkpoint.gguf is None:
        return None
    return spec_of(_node(config, Span(str(checkpoint.folder / checkpoint.gguf.file))), name, sink)


def other_model(spec: Spec, checkpoint: Checkpoint) -> tuple[Diagnostic, ...]:
    """The finding (DSV771) where a GGUF checkpoint says of its model what a spec does not.

    None for other checkpoints, nor where the file does not tell its whole model: `import` says what it lacks.
    """
    sink = Sink()
    told = None if checkpoint.gguf is None else _told(checkpoint, spec.name, sink)
    if told is None or sink.failed:
        return ()
    differing = list(_differing(spec, told))
    if not differing:
        return ()
    more = len(differing) - _LISTED
    notes = (f"and {counted(more, 'more value')}",) if more > 0 else ()
    facts = tuple((path, f"{here} in the spec, {there} in the file") for path, here, there in differing[:_LISTED])
    message = f"the file tells another model than the spec, by {counted(len(differing), 'value')} of its keys"
    way = "`dsv41c import` of the file gives the spec of its model; or take a file of this one"
    return checkpoint.located([Diagnostic("DSV771", message, facts=facts, help=way, notes=notes)])


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


def _node(value: object, place: Span) -> Node:
    """Plain data as a tree; a GGUF file has no lines, so all of it is at its head."""
    if isinstance(value, Mapping):
        return Node({str(key): _node(item, place) for key, item in value.items()}, place, place)
    if isinstance(value, list):
        return Node(tuple(_node(item, place) for item in value), place, place)
    assert value is None or isinstance(value, bool | int | float | str), value
    return Node(value, place, place)


def _other_hash(spec: Spec, checkpoint: Checkpoint) -> tuple[Diagnostic, ...]:
    engram, layers = spec.engram, spec.layers.engram_layers
    known = all(0 <= layer < spec.model.n_layers for layer in layers)
    if engram is None or checkpoint.gguf is None or not known or not derivable(engram, len(layers)):
        return ()  # the checks of specs tell of the last two
    return checkpoint.located(checkpoint.gguf.contradictions(hash_constants(engram, layers)))
