"""Lower: a program to the manifest, for the runtime, and to the plan model, for the templates."""

from __future__ import annotations

from collections.abc import Mapping

from dsv41c import __version__
from dsv41c.compiler.engram_hash import hash_constants
from dsv41c.compiler.ir import Op, Value
from dsv41c.compiler.passes import Program, Region
from dsv41c.compiler.passes.fuse import kernel_name
from dsv41c.compiler.plan.weights import constant_entries, weight_entries
from dsv41c.diagnostics import Diagnostic
from dsv41c.kernels.catalog import OPS, OpKind
from dsv41c.runtime.manifest import (
    FORMAT,
    CallEntry,
    EngramEntry,
    EngramLayerEntry,
    FileEntry,
    KernelEntry,
    Manifest,
    ModelEntry,
    NumericsEntry,
    OpEntry,
    RegionEntry,
    RuntimeEntry,
    StageEntry,
    TargetEntry,
    TokensEntry,
    TransferEntry,
    ValueEntry,
    buffers,
    sha256,
)
from dsv41c.runtime.memory import memory
from dsv41c.words import ranges


def missing_kernels(program: Program, catalogue: Mapping[str, OpKind] = OPS) -> list[Diagnostic]:
    """A finding (DSV601) for each kind of op that no kernel of the plan's device family can run."""
    wanted = program.family
    by_kind: dict[str, list[Op]] = {}
    for op in program.graph.ops:
        if wanted not in catalogue[op.kind].families:
            by_kind.setdefault(op.kind, []).append(op)
    return [_missing(program, kind, ops, catalogue[kind].families) for kind, ops in by_kind.items()]


def _missing(program: Program, kind: str, ops: list[Op], families: tuple[str, ...]) -> Diagnostic:
    more = f" and {len(ops) - 1} more" if len(ops) > 1 else ""
    able = ", ".join(families) or "none"
    inside = ranges(op.layer for op in ops if op.layer is not None)
    target = f"{program.family} ({', '.join(dict.fromkeys(program.devices))})"
    return Diagnostic(
        "DSV601",
        f"no kernel runs `{kind}` on {program.family} devices; `{ops[0].id}`{more} {'need' if more else 'needs'} one",
        ops[0].span,
        facts=(
            ("target", target),
            ("kind of op", kind),
            *((("layers", inside),) if inside else ()),
            ("families with a kernel", able),
        ),
        help=f"place the model on another family (`{kind}` runs on: {able}); `dsv41c targets` lists all",
    )


def lower(program: Program, spec_text: str) -> Manifest:
    """The manifest of a program that went through every pass, without the folder's other files: see `with_files`."""
    spec, graph = program.spec, program.graph
    manifest = Manifest(
        format=FORMAT,
        tool=__version__,
        name=spec.name,
        spec_sha256=sha256(spec_text.encode()),
        graph_sha256=sha256(str(graph).encode()),
        target=TargetEntry(
            family=program.family,  # type: ignore[arg-type]
            devices=list(dict.fromkeys(program.devices)),
            tensor_parallel=spec.placement.tensor_parallel,
        ),
        model=_model(program),
        tokens=TokensEntry(bos=spec.tokens.bos, eos=spec.tokens.eos, pad=spec.tokens.pad),
        numerics=NumericsEntry(
            compute=spec.numerics.compute,
            activation_quant=spec.numerics.activation_quant,
            kv_cache=spec.numerics.kv_cache,
        ),
        runtime=_runtime(program),
        engram=_engram(program),
        stages=_stages(program),
        files=[],
        values=[_value(program, value) for value in graph.values.values()],
        ops=[_op(op) for op in graph.ops],
        regions=[_region(region) for region in program.regions],
        transfers=_transfers(program),
        kernels=_kernels(program),
        weights=weight_entries(spec, graph, native=program.native),
        constants=constant_entries(spec, graph),
    )
    return manifest.model_copy(update={"memory": memory(manifest), "buffers": buffers(manifest)})


def with_files(manifest: Manifest, files: Mapping[str, str]) -> Manifest:
    """The manifest with the folder's other files, given by name."""
    entries = [FileEntry(path=path, sha256=sha256(text.encode())) for path, text in sorted(files.items())]
    return manifest.model_copy(update={"files": entries})


def _model(program: Program) -> ModelEntry:
    spec = program.spec
    return ModelEntry(
        n_layers=spec.model.n_layers,
        dim=spec.model.dim,
        vocab_size=spec.model.vocab_size,
        streams=spec.mhc.streams,
        max_seq_len=spec.model.max_seq_len,
        window_size=spec.attention.window_size,
        index_topk=spec.indexer.topk,
        candidate_block_size=spec.indexer.candidate_block_size,
    )


def _runtime(program: Program) -> RuntimeEntry:
    runtime = program.spec.runtime
    return RuntimeEntry(
        max_context=runtime.max_context,
        max_sessions=runtime.max_sessions,
        prefill_chunk=runtime.prefill_chunk,
        decode_buckets=list(runtime.decode_buckets),
        capture=runtime.capture_text,
    )


def _engram(program: Program) -> EngramEntry | None:
    engram, layers = program.spec.engram, program.layer_map.engrams
    if engram is None or not layers:
        return None
    constants = hash_constants(engram, layers, engram.hash_layers, engram.num_embeddings)
    return EngramEntry(
        max_ngram_size=engram.max_ngram_size,
        n_heads=engram.n_heads,
        head_dim=engram.head_dim,
        pad_id=engram.pad_id,
        compressed_vocab_size=engram.compressed_vocab_size,
        storage=engram.storage,
        row_cache_bytes=engram.row_cache_bytes,
        layers=[
            EngramLayerEntry(
                layer=entry.layer,
                multipliers=list(entry.multipliers),
                primes=list(entry.primes),
                offsets=list(entry.offsets),
            )
            for entry in constants
        ],
    )


def _stages(program: Program) -> list[StageEntry]:
    ends = tuple(program.spec.placement.layer_ends)
    begins = (0, *ends[:-1])
    return [
        StageEntry(index=index, device=device, first_layer=begin, end_layer=end, file=f"stage_{index}.py")
        for index, (device, begin, end) in enumerate(zip(program.devices, begins, ends, strict=True))
    ]


def _value(program: Program, value: Value) -> ValueEntry:
    graph = program.graph
    producer = graph.producer(value.id)
    return ValueEntry(
        id=value.id,
        kind=value.kind,
        layer=value.layer,
        scope=value.scope,
        shape=list(value.shape),
        dtype=value.dtype,
        bytes=program.lifetimes[value.id].bytes,
        stage=value.stage,
        device=program.devices[value.stage],
        producer=producer.id if producer else None,
        readers=[op.id for op in graph.readers(value.id)],
        storage=graph.storage(value.id) if value.scope == "session" else None,
        span=str(value.span),
    )


def _op(op: Op) -> OpEntry:
    return OpEntry(
        id=op.id,
        kind=op.kind,
        layer=op.layer,
        stage=op.stage,
        reads=dict(op.reads),
        writes=dict(op.writes),
        weights=dict(op.weights),
        attrs=dict(op.attrs),
        span=str(op.span),
    )


def _region(region: Region) -> RegionEntry:
    return RegionEntry(
        id=region.id,
        function=region.function,
        stage=region.stage,
        ops=list(region.ops),
        reads=list(region.reads),
        writes=list(region.writes),
        span=str(region.span),
        tail_rows=region.tail_rows,
        calls=_calls(region),
    )


def _calls(region: Region) -> list[CallEntry]:
    if not any(call.fused for call in region.calls):
        return []
    return [CallEntry(kind=call.op.kind, ops=list(call.covers)) for call in region.calls]


def _transfers(program: Program) -> list[TransferEntry]:
    return [
        TransferEntry(
            value=transfer.value,
            arrives_as=transfer.arrives_as,
            kind=transfer.kind,
            how=transfer.how,
            from_stage=transfer.from_stage,
            to_stage=transfer.to_stage,
            readers=[op.id for op in program.graph.readers(transfer.arrives_as)],
            bytes_per_token=transfer.bytes_per_token,
        )
        for transfer in program.transfers
    ]


def _kernels(program: Program) -> list[KernelEntry]:
    """What serves which ops: native kernels where the plan has them, reference kernels for the rest."""
    served: dict[str, list[str]] = {}
    for call in (call for region in program.regions for call in region.calls):
        served.setdefault(kernel_name(program, call), []).extend(call.covers)
    return [KernelEntry(kernel=kernel, ops=ids) for kernel, ids in sorted(served.items())]
