"""`dsv41c import FILE.gguf`: what a GGUF file says of its model becomes the spec that its config.json would give."""

from __future__ import annotations

from collections.abc import Mapping

from dsv41c.compiler.engram_hash import derivable, hash_constants
from dsv41c.compiler.importing.importer import HEADER, NAME, REMARKS, Imported, spec_of
from dsv41c.compiler.source import Node
from dsv41c.compiler.spec.models import Spec
from dsv41c.compiler.spec.write import to_yaml
from dsv41c.diagnostics import Diagnostic, Sink, Span, has_errors, ordered
from dsv41c.runtime.weights.gguf.config import config_of
from dsv41c.runtime.weights.headers import Checkpoint, read_checkpoint


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
    spec = told(checkpoint, name, sink)
    if spec is not None and not sink.failed:
        sink.extend(_other_hash(spec, checkpoint))
    text = None if spec is None or sink.failed else to_yaml(spec, HEADER, REMARKS)
    return Imported(text, ordered(sink), {})


def told(checkpoint: Checkpoint, name: str, sink: Sink) -> Spec | None:
    """The spec that a sound GGUF checkpoint tells; None where it tells none."""
    config, findings = config_of(checkpoint)
    sink.extend(checkpoint.located(findings))
    if sink.failed or checkpoint.gguf is None:
        return None
    return spec_of(_node(config, Span(str(checkpoint.folder / checkpoint.gguf.file))), name, sink)


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
