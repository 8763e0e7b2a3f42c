"""The contract between compiler and runtime: what `manifest.json` of a plan folder says. Plain data, no torch.

Sorted keys, two spaces, an entry of a list a line, a newline at the end; nothing in it depends on time, host, directory
or hash seed. Version rule: `dsv41c.plan/MAJOR.MINOR`; a reader takes its own major version, and keys may be added in a
minor one. `manifest_text` reads it back, as something that anybody may have written.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, FailFast

from dsv41c.kernels.catalog import OPS, Split

FORMAT = "dsv41c.plan/1.2"
MANIFEST = "manifest.json"
MAX_MANIFEST_BYTES = 1 << 28


# A wrong list is wrong once: its first wrong item is the finding.
Strings = Annotated[list[str], FailFast()]
Integers = Annotated[list[int], FailFast()]


class Entry(BaseModel):
    """Base of every part of a manifest: frozen, strict, no unknown keys."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)


class TargetEntry(Entry):
    """Where the plan runs. `family` is that of every device.

    `tensor_parallel`: the processes that share each stage, a device of the family each, all with the same code and
    each with its shard of the weights.
    """

    family: Literal["cpu", "cuda", "rocm", "hpu"]
    devices: Strings
    tensor_parallel: int = 1


class ModelEntry(Entry):
    """The widths a runtime needs to size its inputs, outputs and pools."""

    n_layers: int
    dim: int
    vocab_size: int
    streams: int
    max_seq_len: int
    window_size: int
    index_topk: int
    candidate_block_size: int


class TokensEntry(Entry):
    """Ids of the special tokens the runtime itself uses."""

    bos: int
    eos: int
    pad: int


class NumericsEntry(Entry):
    """The numerics options the plan was compiled with."""

    compute: Literal["f32", "bf16"]
    activation_quant: Literal["none", "fp8"]
    kv_cache: Literal["none", "reference", "packed"]


class RuntimeEntry(Entry):
    """Sizes of pools and chunks. `capture` is off, layer, all, or every:N."""

    max_context: int
    max_sessions: int
    prefill_chunk: int
    decode_buckets: Integers
    capture: str


class EngramLayerEntry(Entry):
    """Hash constants of one engram layer: odd multipliers [max_ngram_size]; primes and offsets [columns]."""

    layer: int
    multipliers: Integers
    primes: Integers
    offsets: Integers


class EngramEntry(Entry):
    """The n-gram hash. `pad_id` is a raw token id; the token map turns it into a compressed one.

    `row_cache_bytes`: of rows that are kept in memory, where tables are mapped or read from disk; None: as the runtime
    sees fit.
    """

    max_ngram_size: int
    n_heads: int
    head_dim: int
    pad_id: int
    compressed_vocab_size: int
    storage: Literal["device", "host", "mapped", "disk"]
    row_cache_bytes: int | None = None
    layers: list[EngramLayerEntry]


class StageEntry(Entry):
    """Consecutive layers on one device: `first_layer` to `end_layer` (exclusive), in the generated file `file`."""

    index: int
    device: str
    first_layer: int
    end_layer: int
    file: str


class FileEntry(Entry):
    """A file of the plan folder and its SHA-256."""

    path: str
    sha256: str


class ValueEntry(Entry):
    """A value: one version of a state, written once.

    `bytes` are per token for `scope` step and per session for `scope` session. `storage` names the value whose memory
    it shares (`compress_kv@L20` is `compress_kv@L20.before` with this step's rows appended). `dtype` u8: packed rows.
    """

    id: str
    kind: str
    layer: int | None
    scope: Literal["step", "session"]
    shape: Annotated[list[int | str], FailFast()]
    dtype: str
    bytes: int
    stage: int
    device: str
    producer: str | None
    readers: Strings
    storage: str | None
    span: str


class OpEntry(Entry):
    """An op, unfused. `reads` and `writes` map the catalogue's port names to value ids."""

    id: str
    kind: str
    layer: int | None
    stage: int
    reads: dict[str, str]
    writes: dict[str, str]
    weights: dict[str, str]
    attrs: dict[str, int | float | str]
    span: str


class CallEntry(Entry):
    """A kernel call of an op kind or a fused kind, and the ops that it covers, in the order the kind lists theirs."""

    kind: str
    ops: Strings


class RegionEntry(Entry):
    """A function of a stage file, and the unit of capture: `function(kernels, weights, step, *reads) -> writes`.

    `tail_rows`: the rows at the end of a prompt that it has to compute where only the last logits are wanted, None for
    every row. Where it attends, what it writes of the first window_size - 1 of them is of no use, and nobody reads it.
    `calls`: what the function calls, in order; empty where that is each of `ops` by itself.
    """

    id: str
    function: str
    stage: int
    ops: Strings
    reads: Strings
    writes: Strings
    span: str
    tail_rows: int | None = None
    calls: list[CallEntry] = []


class TransferEntry(Entry):
    """A value that crosses from one stage to another. `bytes_per_token` is a fraction for state with r > 1."""

    value: str
    arrives_as: str
    kind: str
    how: Literal["chunk", "mirror"]
    from_stage: int
    to_stage: int
    readers: Strings
    bytes_per_token: float


class KernelEntry(Entry):
    """The kernel that serves ops, `VARIANT.KIND`: `reference.route`, `triton.attention_input`.

    Where a fused kind serves them, these are all ops that its calls cover.
    """

    kernel: str
    ops: Strings


class ShardEntry(Entry):
    """What of a weight one of `count` shards has: equal parts, in order, of rows or columns of each tensor."""

    axis: Split
    count: int


class WeightEntry(Entry):
    """A weight by role. `name` is the official tensor name; with `count` > 1 it holds `{expert}`.

    `stored` is the encoding of the official layout, `bytes` what that takes for all `count` tensors, scales included;
    `accepted` are all encodings that bind without loss; `dtype` is what kernels get: `f32`, `bf16`, or `stored`:
    quantised as it is, decoded at use, and plain floats as bf16 (f32 too where kernels take either). All these are of
    the whole weight; with `shard`, a process has a part.
    """

    id: str
    role: str
    layer: int | None
    stage: int
    name: str
    shape: Integers
    count: int
    stored: str
    bytes: int
    accepted: Strings
    dtype: str
    ops: Strings
    shard: ShardEntry | None = None


class ConstantEntry(Entry):
    """A tensor the runtime makes itself: rope frequencies, hash constants, the token map."""

    id: str
    kind: Literal["rope_frequencies", "token_map", "engram_multipliers", "engram_primes", "engram_offsets"]
    attrs: dict[str, int | float]


class MemoryEntry(Entry):
    """Bytes that an engine holds on a device, all sessions open or none: `weights` and pools of `state`, in `total`.

    Of a stage that several processes share, it is what each of them holds.

    Weights are counted as kernels get them and as the official checkpoint stores them, constants too; engram tables are
    where `engram.storage` has them and are not counted. Pools have a row more than `max_sessions`. What a step needs
    while it runs comes on top.
    """

    device: str
    weights: int
    state: int
    total: int


class BufferEntry(Entry):
    """Memory that stays where it is, from which captured steps read what comes from outside; `readers` are regions.

    `B` is the rows of a step, at most the largest of `decode_buckets`; a smaller step uses the first rows. `rows of R`
    are of the table of region R, fetched before R runs. They are made only where the host reads that table: kernels
    read one on the device, and native ones one in pinned memory where the checkpoint has it as codes and scales.
    """

    name: str
    shape: Annotated[list[int | str], FailFast()]
    dtype: str
    readers: Strings


class Manifest(Entry):
    """A plan, whole. `memory` is by device, in the order of stages.

    Plans before minor version 1 have no `memory` and no `calls` of regions, before 2 no `buffers`.
    """

    format: str
    tool: str
    name: str
    spec_sha256: str
    graph_sha256: str
    target: TargetEntry
    model: ModelEntry
    tokens: TokensEntry
    numerics: NumericsEntry
    runtime: RuntimeEntry
    engram: EngramEntry | None
    stages: list[StageEntry]
    files: list[FileEntry]
    values: list[ValueEntry]
    ops: list[OpEntry]
    regions: list[RegionEntry]
    transfers: list[TransferEntry]
    kernels: list[KernelEntry]
    weights: list[WeightEntry]
    constants: list[ConstantEntry]
    memory: list[MemoryEntry] = []
    buffers: list[BufferEntry] = []


def buffers(manifest: Manifest) -> list[BufferEntry]:
    """The static buffers of a plan's decode steps, where they are captured."""
    by_id = {op.id: op for op in manifest.ops}
    regions = [(region, [by_id[op] for op in region.ops]) for region in manifest.regions]
    readers = [region.id for region, ops in regions if any(OPS[op.kind].uses_step for op in ops)]
    ids = [region.id for region, _ in regions if "ids" in region.reads]
    made = [BufferEntry(name="ids", shape=["B", 1], dtype="i64", readers=ids)]
    made += [BufferEntry(name=name, shape=["B"], dtype="i64", readers=readers) for name in ("slots", "positions")]
    engram = manifest.engram
    columns = {entry.layer: len(entry.primes) for entry in engram.layers} if engram is not None else {}
    for region, ops in regions:
        for op in ops:
            if op.kind == "engram_rows" and engram is not None and op.layer in columns:
                shape: list[int | str] = ["B", 1, columns[op.layer], engram.head_dim]
                made.append(BufferEntry(name=f"rows of {region.id}", shape=shape, dtype="f32", readers=[region.id]))
    return made


def identifier(value: str, layer: int | None) -> str:
    """The name of a value in the function of a layer: its own values drop the layer, other ones keep it.

    `topk@L4` is `topk` in layer 4 and `topk_L4` elsewhere. A copy on another stage goes by the name of the value, so
    the code of a layer does not depend on where it runs.
    """
    base = re.sub(r"\.S\d+$", "", value)
    if layer is not None:
        base = re.sub(rf"@L{layer}(?=\.|$)", "", base)
    name = re.sub(r"[@.]", "_", base)
    if not (name.isascii() and name.isidentifier()):
        raise ValueError(f"value {value!a} has no identifier")
    return name


def weight_identifier(weight: str) -> str:
    """The attribute under which code finds a weight: `wq_a`, `rope_compress`, `engram_token_map`."""
    return weight.rpartition(".")[2] if weight.startswith("layers.") else weight.replace(".", "_")


def to_text(manifest: Manifest) -> str:
    """The bytes of `manifest.json`, as text: a key a line, and below a key that holds a list, an entry a line.

    What speaks of shards is left out where a stage is one process, and the size of a cache where nobody gave it.
    """
    data = manifest.model_dump()
    for entry in data["weights"]:
        if entry["shard"] is None:
            del entry["shard"]
    if data["target"]["tensor_parallel"] == 1:
        del data["target"]["tensor_parallel"]
    if data["engram"] is not None and data["engram"]["row_cache_bytes"] is None:
        del data["engram"]["row_cache_bytes"]
    return "{\n" + ",\n".join(f"  {_line(key)}: {_block(data[key])}" for key in sorted(data)) + "\n}\n"


def _block(value: object) -> str:
    if not isinstance(value, list) or not value:
        return _line(value)
    return "[\n" + ",\n".join(f"    {_line(entry)}" for entry in value) + "\n  ]"


def _line(value: object) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, allow_nan=False)


def sha256(data: bytes) -> str:
    """Hex SHA-256 of some bytes."""
    return hashlib.sha256(data).hexdigest()


def read(folder: Path) -> Manifest:
    """The manifest of a plan folder, checked. Raises `UserFault`: DSV801 to DSV804."""
    from dsv41c.runtime import manifest_text

    return manifest_text.read(folder)


def listed_files(folder: Path) -> frozenset[str] | None:
    """The files that the plan in a folder says are its own, of any version; None where the folder holds no plan."""
    from dsv41c.runtime import manifest_text

    return manifest_text.listed_files(folder)
