"""Cuts a model down to some of its layers, and to the first of its experts: every list of the spec renumbered.

What a kept layer reads must be kept too. Layers keep their order, so the latest source at or before a layer is the same
one after the cut, by its new number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dsv41c.compiler.checks.view import View
from dsv41c.compiler.checks.words import layers as layers_text
from dsv41c.compiler.layer_map import SHARED_KINDS
from dsv41c.diagnostics import Diagnostic, Label, UserFault
from dsv41c.words import counted, ranges

if TYPE_CHECKING:
    from dsv41c.compiler.checks.flow import Flow
    from dsv41c.compiler.spec import Loaded
    from dsv41c.compiler.spec.models import Engram, Layers, Placement, Spec

_MOST_FACTS = 16


@dataclass(frozen=True, slots=True)
class Cut:
    """A spec that was cut, the layers of the whole one that it has, ascending, and how many experts each keeps."""

    spec: Spec
    layers: tuple[int, ...]
    experts: int

    def header(self, whole: Spec) -> tuple[str, ...]:
        """What the text of the spec begins with."""
        kept = f"{layers_text(self.layers)} of {whole.model.n_layers}"
        if self.experts < whole.moe.n_routed_experts:
            kept += f", the first {self.experts} of {whole.moe.n_routed_experts} routed experts"
        return (f"Cut from {whole.name}: {kept}.",)


def cut(loaded: Loaded, layers: Sequence[int], experts: int | None = None) -> Cut:
    """A sound spec with some of its layers, and the first `experts` routed experts of each; None keeps all.

    Draft layers are left out. Raises `UserFault` with every finding: DSV240 (a layer loses a source), DSV241 (a layer
    that is not there), DSV242 (a number of experts that cannot be), DSV243 (nobody is left who reads a layer's state).
    """
    whole, flow = loaded.spec, View.of(loaded).flow
    assert whole is not None and flow is not None, "only a sound spec is cut"
    kept = tuple(sorted(set(layers)))
    findings = [*_no_such_layers(loaded, whole, kept), *_experts(loaded, whole, experts)]
    if not any(finding.code == "DSV241" for finding in findings):
        findings += _lost_sources(flow, kept) or _lost_readers(flow, kept)
    if findings:
        raise UserFault(findings)
    count = whole.moe.n_routed_experts if experts is None else experts
    return Cut(_renumbered(whole, kept, count), kept, count)


# --- what cannot be cut -----------------------------------------------------------------------------------------------


def _no_such_layers(loaded: Loaded, whole: Spec, kept: Sequence[int]) -> list[Diagnostic]:
    last = whole.model.n_layers - 1
    there = [layer for layer in kept if 0 <= layer <= last]
    if kept and len(there) == len(kept):
        return []
    place = loaded.spans.value(("model", "n_layers"))
    help_text = f"name layers from 0 to {last}" + ("; layers are zero-based" if kept[-1:] == (last + 1,) else "")
    beyond = [layer for layer in kept if layer not in there]
    message = f"the cut names {layers_text(beyond)}" if beyond else "the cut keeps no layer"
    facts = (("model.n_layers", str(whole.model.n_layers)),)
    return [Diagnostic("DSV241", f"{message}, the spec has layers 0 to {last}", place, facts=facts, help=help_text)]


def _experts(loaded: Loaded, whole: Spec, experts: int | None) -> list[Diagnostic]:
    least, most = whole.moe.n_activated_experts, whole.moe.n_routed_experts
    if experts is None or least <= experts <= most:
        return []
    message = f"the cut keeps {counted(experts, 'expert')}"
    message += f", a token uses {least}" if experts < least else f", a layer has {most}"
    facts = (("moe.n_activated_experts", str(least)), ("moe.n_routed_experts", str(most)))
    place = loaded.spans.value(("moe", "n_activated_experts" if experts < least else "n_routed_experts"))
    return [Diagnostic("DSV242", message, place, facts=facts, help=f"keep {least} to {most} experts")]


def lost(flow: Flow, kept: Sequence[int]) -> dict[int, tuple[tuple[str, int], ...]]:
    """By kept layer, the (kind, source) of each state that it reads of a layer which is not kept."""
    there = set(kept)
    found: dict[int, tuple[tuple[str, int], ...]] = {}
    for layer in kept:
        reads = [(kind, flow.reads[kind].get(layer)) for kind in SHARED_KINDS]
        missing = tuple((kind, source) for kind, source in reads if source is not None and source not in there)
        if missing:
            found[layer] = missing
    return found


def _lost_sources(flow: Flow, kept: Sequence[int]) -> list[Diagnostic]:
    """One finding with each layer and what it would lose, and the smallest cut that keeps it all."""
    missing = lost(flow, kept)
    if not missing:
        return []
    groups: dict[tuple[tuple[str, int], ...], list[int]] = {}
    for layer, states in missing.items():
        groups.setdefault(states, []).append(layer)
    facts = [
        (f"{layers_text(readers)} {'reads' if len(readers) == 1 else 'read'}", _values(states))
        for states, readers in groups.items()
    ]
    if len(facts) > _MOST_FACTS:
        facts = [*facts[:_MOST_FACTS], ("and", f"{len(facts) - _MOST_FACTS} more groups of layers")]
    whole = _with_sources(flow, kept)
    added = sorted(set(whole) - set(kept))
    reader, ((kind, source), *_) = next(iter(missing.items()))
    message = (
        f"the cut keeps {layers_text(list(missing))} and leaves out "
        f"{layers_text(sorted({lost_one for states in missing.values() for _, lost_one in states}))}, "
        f"which {'it reads' if len(missing) == 1 else 'they read'} from"
    )
    labels = (Label(flow.read_place(kind, reader), f"layer {reader} reads `{kind}@L{source}`"),)
    help_text = f"keep {layers_text(added)} too: --layers {ranges(whole).replace(' ', '')}"
    return [Diagnostic("DSV240", message, flow.made_place(kind, source), labels, tuple(facts), help_text)]


def _lost_readers(flow: Flow, kept: Sequence[int]) -> list[Diagnostic]:
    """A finding for each state that is made and that only layers read which are not kept; candidates may be unread."""
    there = set(kept)
    findings = []
    for kind in SHARED_KINDS:
        readers: dict[int, list[int]] = {}
        for layer, source in flow.reads[kind].items():
            readers.setdefault(-1 if source is None else source, []).append(layer)
        for source in sorted(there & set(flow.producers[kind])):
            if kind == "candidates" or there & set(readers.get(source, ())):
                continue
            message = f"the cut keeps layer {source}, and no layer that reads its `{kind}@L{source}`"
            facts = ((f"readers of {kind}@L{source}", layers_text(readers[source])),)
            help_text = f"keep {layers_text(readers[source][:1])} too, or leave out layer {source}"
            findings.append(Diagnostic("DSV243", message, flow.made_place(kind, source), facts=facts, help=help_text))
    return findings


def _values(states: Sequence[tuple[str, int]]) -> str:
    return ", ".join(f"{kind}@L{source}" for kind, source in states)


def _with_sources(flow: Flow, kept: Sequence[int]) -> list[int]:
    """The layers, their sources, and the sources of those: the smallest set that has all it reads."""
    whole = set(kept)
    while missing := lost(flow, sorted(whole)):
        whole |= {source for states in missing.values() for _, source in states}
    return sorted(whole)


# --- the spec that is left --------------------------------------------------------------------------------------------


def _renumbered(whole: Spec, kept: Sequence[int], experts: int) -> Spec:
    number = {layer: index for index, layer in enumerate(kept)}
    layers = _layers(whole.layers, number)
    return whole.model_copy(
        update={
            "name": f"{whole.name[:96]}-cut",
            "model": whole.model.model_copy(update={"n_layers": len(kept), "n_mtp_layers": 0}),
            "layers": layers,
            "moe": whole.moe.model_copy(update={"n_routed_experts": experts}),
            "engram": _engram(whole.engram, whole.layers.engram_layers, number) if layers.engram_layers else None,
            "placement": _placement(whole.placement, kept),
        }
    )


def _layers(whole: Layers, number: Mapping[int, int]) -> Layers:
    candidate = whole.candidate_source_layer

    def kept(layers: Sequence[int]) -> tuple[int, ...]:
        return tuple(number[layer] for layer in layers if layer in number)

    return whole.model_copy(
        update={
            "compress_ratios": tuple(whole.compress_ratios[layer] for layer in number),
            "kv_source_layers": kept(whole.kv_source_layers),
            "index_source_layers": kept(whole.index_source_layers),
            "candidate_source_layer": None if candidate is None else number.get(candidate),
            "engram_layers": kept(whole.engram_layers),
            "reads": {
                number[layer]: {kind: number[source] for kind, source in named.items()}
                for layer, named in whole.reads.items()
                if layer in number
            },
        }
    )


def _engram(engram: Engram | None, engram_layers: Sequence[int], number: Mapping[int, int]) -> Engram | None:
    """The tables of the kept layers. Their hash stays that of the layers they were in the first model of all."""
    if engram is None:
        return None
    first = engram.hash_layers or engram_layers
    kept = [index for index, layer in enumerate(engram_layers) if layer in number]
    return engram.model_copy(
        update={
            "num_embeddings": tuple(engram.num_embeddings[index] for index in kept),
            "hash_layers": tuple(first[index] for index in kept),
        }
    )


def _placement(placement: Placement, kept: Sequence[int]) -> Placement:
    """The stages that still have layers, on their devices."""
    stages: dict[int, str] = {}
    for device, end in zip(placement.devices, placement.layer_ends, strict=True):
        before = sum(layer < end for layer in kept)
        if before > max(stages, default=0):
            stages[before] = device
    return placement.model_copy(update={"devices": tuple(stages.values()), "layer_ends": tuple(stages)})
