"""The words of a plan: what the comment above a function says, and the tables of the README."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import accumulate, groupby

from dsv41c import __version__
from dsv41c.compiler.ir import Op, layer_of, split_stage
from dsv41c.compiler.layer_map import SHARED_KINDS
from dsv41c.compiler.passes import Call, Program, Region
from dsv41c.compiler.passes.fuse import kernel_name
from dsv41c.compiler.plan.code import function, shown
from dsv41c.compiler.plan.model import (
    BoundaryModel,
    BufferModel,
    CollectiveModel,
    KernelModel,
    MemoryModel,
    PlanModel,
    StageModel,
    StateModel,
    TailModel,
)
from dsv41c.kernels.catalog import CARRIERS, COLLECTIVES, STATE_KINDS
from dsv41c.runtime.manifest import BufferEntry, MemoryEntry
from dsv41c.words import counted, joined, layers, ranges, size

_CACHES = {
    "none": "rows as they are computed",
    "reference": "rows of floats, rounded as the release rounds them",
    "packed": "rows packed to the codes that the release rounds to",
}


def plan_model(
    program: Program, spec_sha256: str, memory: Sequence[MemoryEntry] = (), buffers: Sequence[BufferEntry] = ()
) -> PlanModel:
    """Everything the templates see. `memory` and `buffers`: the manifest's."""
    spec = program.spec
    numerics, runtime = spec.numerics, spec.runtime
    buckets = [rows for rows in runtime.decode_buckets if rows <= runtime.max_sessions] or [1]
    return PlanModel(
        name=shown(spec.name),
        tool=__version__,
        numerics=f"Computes in {numerics.compute}; `activation_quant` is {numerics.activation_quant}; `kv_cache` is "
        f"{numerics.kv_cache}: {_CACHES[numerics.kv_cache]}",
        limits=f"Holds {counted(runtime.max_sessions, 'session')} of up to {runtime.max_context:,} tokens. "
        f"Prompts are fed in chunks of up to {runtime.prefill_chunk}; decode steps have "
        f"{joined([str(rows) for rows in buckets], 'or')} rows",
        capture=f"`runtime.capture` is {runtime.capture_text}: {_captured(runtime.capture_text)}",
        stages=tuple(_stages(program, spec_sha256)),
        boundaries=tuple(_boundaries(program)),
        shards=spec.placement.tensor_parallel,
        collectives=tuple(_collectives(program)),
        of_each="in each process" if spec.placement.tensor_parallel > 1 else "on each device",
        states=tuple(_states(program)),
        window=spec.attention.window_size,
        tails=tuple(_tails(program)),
        kernels=tuple(_kernels(program)) if program.native else (),
        memory=tuple(
            MemoryModel(entry.device, size(entry.weights), size(entry.state), size(entry.total)) for entry in memory
        ),
        buffers=tuple(_buffers(buffers)),
        devices=", ".join(dict.fromkeys(program.devices)),
    )


def _captured(capture: str) -> str:
    """What of a decode step is one graph."""
    words = {
        "off": "decode steps are not captured",
        "layer": "each layer of a decode step is a graph, with embedding and head in the first and last",
        "all": "a decode step is one graph, cut where rows of a table come from the host",
    }
    return words.get(capture, f"a decode step is a graph for every {capture.removeprefix('every:')} layers")


# --- functions ------------------------------------------------------------------------------------------------------


def summary(program: Program, region: Region) -> str:
    """What a region is: `layers[24]: ratio 1, index source, reads compress_kv@L20, index_k@L20, candidates@L20`."""
    ops = [program.graph.by_id[op] for op in region.ops]
    if ops[0].layer is not None:
        return f"layers[{ops[0].layer}]: {', '.join(_roles(ops, ops[0].layer))}"
    texts = {"embed": "token embedding", "engram_ids": "n-gram hash ids", "head": "final collapse, norm and logits"}
    said = [texts[op.kind] for op in ops if op.kind in texts]
    return f"{region.function}: {' and '.join(said)}"


def headline(program: Program, region: Region) -> str:
    """What a region does, in order: `Layer 4: engram, selection by the keys of layer 2, attention, experts.`"""
    ops = [program.graph.by_id[op] for op in region.ops]
    if ops[0].layer is None:
        doing = {
            "embed": "Embed the tokens",
            "engram_ids": "Hash the n-grams",
            "head": "Turn the streams into logits",
        }
        said = [doing[op.kind] for op in ops if op.kind in doing]
        return " and ".join([said[0], *(words[0].lower() + words[1:] for words in said[1:])]) + "."
    return f"Layer {ops[0].layer}: {', '.join(_parts(ops, ops[0].layer))}."


def _parts(ops: Sequence[Op], layer: int) -> Iterable[str]:
    kinds = {op.kind: op for op in ops}
    if "engram_rows" in kinds:
        yield "engram"
    if "compress" in kinds:
        yield "KV and keys" if "index_keys" in kinds else "KV"
    if "index_score" in kinds:
        keys = layer_of(kinds["index_score"].read("index_k") or "")
        inside = " in the candidate blocks" if kinds["index_score"].read("candidates") else ""
        whose = "own" if keys == layer else f"layer {keys}'s"
        yield f"selection by {whose} keys{inside}"
    if "select_candidates" in kinds:
        yield "candidate blocks"
    topk = kinds["attend"].read("topk")
    if topk is None:
        yield "attention to the window"
    else:
        whose = "" if layer_of(topk) == layer else f"layer {layer_of(topk)}'s "
        yield f"attention to window and {whose}selection"
    yield "experts"


def _roles(ops: Sequence[Op], layer: int) -> Iterable[str]:
    kinds = {op.kind for op in ops}
    ratio = next(op.attr("ratio") for op in ops if op.kind == "attend")
    yield f"ratio {ratio}" if ratio else "window only"
    words = {
        "compress": "KV source",
        "select_topk": "index source",
        "select_candidates": "candidate source",
        "engram_rows": "engram",
    }
    yield from (word for kind, word in words.items() if kind in kinds)
    others = sorted({layer_of(value) or 0 for op in ops for value in op.read_ids if _from_afar(value, layer)})
    if others:
        yield f"reads layer{'s' if len(others) > 1 else ''} {' and '.join(map(str, others))}"


def _from_afar(value: str, layer: int) -> bool:
    return value.partition("@")[0] in SHARED_KINDS and layer_of(value) != layer


# --- stages ---------------------------------------------------------------------------------------------------------


def _stages(program: Program, spec_sha256: str) -> Iterable[StageModel]:
    begin, name = 0, shown(program.spec.name)
    live, state = _live_bytes(program), _state_bytes(program)
    for index, (device, end) in enumerate(zip(program.devices, program.spec.placement.layer_ends, strict=True)):
        yield StageModel(
            file=f"stage_{index}.py",
            title=f"Stage {index} of plan {name}: {layers(range(begin, end))} on {device}.",
            generated=(f"Generated by dsv41c {__version__} from spec.yaml (sha256 {spec_sha256[:16]}).",),
            functions=tuple(
                function(region, summary(program, region), headline(program, region))
                for region in program.regions
                if region.stage == index
            ),
            index=index,
            device=device,
            layers=ranges(range(begin, end)),
            state_bytes=size(state.get(index, 0)),
            live_bytes=size(live.get(index, 0)),
        )
        begin = end


def _state_bytes(program: Program) -> dict[int, int]:
    """Bytes of session state a session, by stage: each storage once, where it lies."""
    graph = program.graph
    storages = dict.fromkeys(graph.storage(value.id) for value in graph.values.values() if value.scope == "session")
    total: dict[int, int] = {}
    for storage in storages:
        stage = graph.values[storage].stage
        total[stage] = total.get(stage, 0) + program.lifetimes[storage].bytes
    return total


def _live_bytes(program: Program) -> dict[int, int]:
    """By stage, the most bytes of step values that are alive at one time, for one token."""
    changes: dict[int, dict[int, int]] = {}
    for value in program.graph.values.values():
        if value.scope == "step":
            life = program.lifetimes[value.id]
            at = changes.setdefault(value.stage, {})
            at[life.first] = at.get(life.first, 0) + life.bytes
            at[life.last + 1] = at.get(life.last + 1, 0) - life.bytes
    return {stage: max(accumulate(at[position] for position in sorted(at))) for stage, at in changes.items()}


# --- tables ---------------------------------------------------------------------------------------------------------


def _boundaries(program: Program) -> Iterable[BoundaryModel]:
    for transfer in program.transfers:
        readers = [op for op in program.graph.readers(transfer.arrives_as)]
        yield BoundaryModel(
            stages=f"{transfer.from_stage} -> {transfer.to_stage}",
            value=split_stage(transfer.value)[0],
            how=transfer.how,
            bytes_per_token=f"{transfer.bytes_per_token:,g}",
            readers=_readers(readers),
        )


def _readers(readers: Sequence[Op]) -> str:
    """`layers 30-39; passed on`: who reads what arrived."""
    inside = {op.layer for op in readers if op.layer is not None}
    words = [layers(inside)] if inside else []
    words += dict.fromkeys(
        "passed on" if op.kind in CARRIERS else op.kind.replace("_", " ") for op in readers if op.layer is None
    )
    return "; ".join(words)


def _collectives(program: Program) -> Iterable[CollectiveModel]:
    """By kind and what is brought together: the output of attention, of the experts, the logits."""
    found: dict[tuple[str, str], list[Op]] = {}
    for op in program.graph.ops:
        if op.kind in COLLECTIVES:
            found.setdefault((op.kind, re.sub(r"@L\d+", "", op.write_ids[0])), []).append(op)
    for (kind, value), ops in found.items():
        inside = {op.layer for op in ops if op.layer is not None}
        bytes_per_token = f"{int(ops[0].attr('bytes_per_token')):,}"
        yield CollectiveModel(kind, value, layers(inside) if inside else "head", bytes_per_token)


def _states(program: Program) -> Iterable[StateModel]:
    graph = program.graph
    kept: dict[str, list[str]] = {}
    for value in dict.fromkeys(graph.storage(value.id) for value in graph.values.values() if value.scope == "session"):
        kept.setdefault(graph.values[value].kind, []).append(value)
    for kind, values in kept.items():
        inside = {layer for value in values if (layer := layer_of(value)) is not None}
        total = sum(program.lifetimes[value].bytes for value in values)
        yield StateModel(kind, STATE_KINDS[kind].meaning, ranges(inside) or "the whole model", size(total))


def _tails(program: Program) -> Iterable[TailModel]:
    """Neighbouring layers share a row: `layers 21-39`, `the last 2,414, then fewer, down to 128 in layer 39`."""

    def key(region: Region) -> tuple[bool, bool]:
        return region.id.startswith("layers."), region.tail_rows is None

    for (inside, every), regions in groupby(program.regions, key):
        names, counts = zip(*((region.id.rpartition(".")[2], region.tail_rows) for region in regions), strict=True)
        rows = "every row" if every else "the last one" if counts[0] == 1 else f"the last {counts[0]:,}"
        if not every and counts[-1] != counts[0]:
            rows += f", then fewer, down to {counts[-1]:,} in layer {names[-1]}"
        yield TailModel(layers(map(int, names)) if inside else ", ".join(names), rows)


def _buffers(buffers: Sequence[BufferEntry]) -> Iterable[BufferModel]:
    meanings = {
        "ids": "token ids",
        "slots": "the pool row of each session",
        "positions": "the position of each token",
    }
    for entry in buffers:
        outside = [region for region in entry.readers if not region.startswith("layers.")]
        inside = [int(region.removeprefix("layers.")) for region in entry.readers if region.startswith("layers.")]
        readers = outside + ([layers(inside)] if inside else [])
        meaning = meanings.get(entry.name, "Engram rows, where the host reads the table")
        shape = ", ".join(map(str, entry.shape))
        yield BufferModel(entry.name, f"[{shape}]", entry.dtype, meaning, ", ".join(readers))


def _kernels(program: Program) -> Iterable[KernelModel]:
    """Each kernel with what it computes and where, by the first call of it."""
    called: dict[str, list[Call]] = {}
    for call in (call for region in program.regions for call in region.calls):
        called.setdefault(kernel_name(program, call), []).append(call)
    for kernel, calls in called.items():
        inside = {call.op.layer for call in calls if call.op.layer is not None}
        covers = ", ".join(program.graph.by_id[op].kind for op in calls[0].covers)
        yield KernelModel(kernel, covers, layers(inside) if inside else "outside the layers")
