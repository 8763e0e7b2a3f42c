"""What a manifest must agree on with itself before anything is allocated or run. Yields sentences, one a fault.

The types are right already (`manifest_text`). Here: names that are unique and exist, ports and weights as the catalogue
has them, sizes that no spec could exceed, pools of the size that the plan's own numbers give.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator

from dsv41c.kernels.catalog import CARRIERS, COLLECTIVES, DTYPE_BYTES, FAMILIES, OPS, STATE_KINDS, OpKind
from dsv41c.kernels.encodings import CACHE_ROWS, ENCODINGS, PLAIN_ENCODINGS
from dsv41c.runtime.calls import check_calls
from dsv41c.runtime.crossing_checks import check_crossings
from dsv41c.runtime.manifest import (
    ConstantEntry,
    EngramEntry,
    Manifest,
    OpEntry,
    RegionEntry,
    ValueEntry,
    WeightEntry,
    buffers,
)
from dsv41c.runtime.memory import memory
from dsv41c.runtime.stages.layout import plain_id

MAX_SIZE = 1 << 40
_SESSION_KINDS = frozenset(kind.name for kind in STATE_KINDS.values() if kind.scope == "session")
_BY_GROUP = ("compress_kv", "index_k")  # session state with a row for each complete group
MAX_COUNT = 1 << 30
MAX_POOL_BYTES = 1 << 46
TABLE_ENCODINGS = ("fp8_row32", *PLAIN_ENCODINGS)  # what is read row by row holds each row's scales with it
_SYMBOLS = re.compile(r"B|T|T/r|context/[1-9]\d{0,9}(/[1-9]\d{0,9})?")
_ID = re.compile(r"[A-Za-z0-9_@.]{1,200}")
_FUNCTION = re.compile(r"[a-z][a-z0-9_]{0,99}")
_MAX_ITERATIONS = 1000


def check(manifest: Manifest) -> Iterator[str]:
    """Every fault. The later checks look names up, so they only run where the names are sound."""
    names = [*_names(manifest), *_sizes(manifest)]
    yield from names
    if names:
        return
    wiring = [*_stages(manifest), *_ops(manifest), *_values(manifest), *_regions(manifest)]
    wiring = wiring or list(check_crossings(manifest))
    yield from wiring or (*_tails(manifest), *check_calls(manifest))
    sizes = [*_weights(manifest), *(_engram(manifest, manifest.engram) if manifest.engram is not None else ())]
    yield from sizes
    if not wiring and not sizes and manifest.memory and manifest.memory != memory(manifest):
        yield "`memory` is not what weights and pools take"
    if not wiring and not sizes and manifest.buffers and manifest.buffers != buffers(manifest):
        yield "`buffers` are not what captured steps read"


def _names(manifest: Manifest) -> Iterator[str]:
    lists = {
        "values": [value.id for value in manifest.values],
        "ops": [op.id for op in manifest.ops],
        "regions": [region.id for region in manifest.regions],
        "weights": [weight.id for weight in manifest.weights] + [constant.id for constant in manifest.constants],
    }
    for where, ids in lists.items():
        yield from (f"{where}: {name[:200]!a} comes {n} times" for name, n in Counter(ids).items() if n > 1)
        yield from (f"{where}: {name[:200]!a} is no id" for name in ids if not _ID.fullmatch(name))
    functions = Counter((region.stage, region.function) for region in manifest.regions)
    yield from (f"stage {stage} has {n} functions {name[:200]!a}" for (stage, name), n in functions.items() if n > 1)
    for region in manifest.regions:
        if not _FUNCTION.fullmatch(region.function):
            yield f"regions: {region.function[:200]!a} is no name of a function"


def _sizes(manifest: Manifest) -> Iterator[str]:
    """Numbers that size something, within what a spec may say."""
    for section in (manifest.model.model_dump(), manifest.runtime.model_dump()):
        for name, value in section.items():
            if isinstance(value, int) and not 1 <= value <= MAX_COUNT:
                yield f"`{name}` is {value}, expected 1 to {MAX_COUNT}"
    shards = manifest.target.tensor_parallel
    if not 1 <= shards <= MAX_COUNT:
        yield f"`target.tensor_parallel` is {shards}, expected 1 to {MAX_COUNT}"
    buckets = manifest.runtime.decode_buckets
    if not buckets or not all(1 <= size <= MAX_COUNT for size in buckets):
        yield "`runtime.decode_buckets` is empty or holds a size below 1"
    for name, token in manifest.tokens.model_dump().items():
        if not 0 <= token < MAX_COUNT:
            yield f"`tokens.{name}` is {token}, which is no token id"
    for op in manifest.ops:
        for name, value in op.attrs.items():
            limit = _MAX_ITERATIONS if name == "iterations" else MAX_COUNT
            if isinstance(value, int | float) and abs(value) > max(limit, 1e12 if isinstance(value, float) else 0):
                yield f"`{op.id}`: `{name}` is {value}, beyond {limit}"


def _stages(manifest: Manifest) -> Iterator[str]:
    """Stages cover the layers in order; files are plain names that the stages and the format know."""
    family, end = manifest.target.family, 0
    assert family in FAMILIES
    for number, stage in enumerate(manifest.stages):
        if stage.index != number or stage.first_layer != end or stage.end_layer <= end:
            yield f"stage {number} does not follow the one before it"
        if stage.file != f"stage_{number}.py":
            yield f"stage {number}: file {stage.file[:200]!a}, expected `stage_{number}.py`"
        if stage.device not in manifest.target.devices or stage.device.partition(":")[0] != family:
            yield f"stage {number}: device {stage.device[:200]!a} is none of the target's {family} devices"
        end = stage.end_layer
    if end != manifest.model.n_layers:
        yield f"the stages hold {end} layers, the model {manifest.model.n_layers}"
    expected = sorted({"README.md", "spec.yaml", *(f"stage_{n}.py" for n in range(len(manifest.stages)))})
    found = sorted(file.path for file in manifest.files)
    if found != expected:
        yield f"the manifest lists the files {', '.join(found)[:300]}, expected {', '.join(expected)[:300]}"
    count = len(manifest.stages)
    homes = [(value.id, value.stage) for value in manifest.values] + [(op.id, op.stage) for op in manifest.ops]
    homes += [(region.id, region.stage) for region in manifest.regions]
    homes += [(weight.id, weight.stage) for weight in manifest.weights]
    outside = [name for name, stage in homes if not 0 <= stage < count]
    outside += [move.value for move in manifest.transfers if not 0 <= move.from_stage < move.to_stage < count]
    yield from (f"`{name}` names a stage that is not there" for name in outside)


def _ops(manifest: Manifest) -> Iterator[str]:
    """Ops have the ports, weights and attributes of the catalogue, and name values and weights that exist."""
    values = {value.id: value for value in manifest.values}
    weights = {weight.id for weight in manifest.weights} | {constant.id for constant in manifest.constants}
    writers = Counter(value for op in manifest.ops for value in op.writes.values())
    yield from (f"`{value}` is written by {n} ops" for value, n in writers.items() if n > 1)
    for op in manifest.ops:
        kind = OPS.get(op.kind)
        if kind is None:
            yield f"`{op.id}`: {op.kind[:100]!a} is not a kind of op"
            continue
        yield from (f"`{op.id}`: {fault}" for fault in _signature(op, kind, values, weights))
        yield from (f"`{op.id}`: {fault}" for fault in _shards(op, manifest.target.tensor_parallel, values))
        kv_cache = manifest.numerics.kv_cache
        if op.attrs.get("kv_cache", kv_cache) != kv_cache:
            yield f"`{op.id}`: has another `kv_cache` than `numerics`, {kv_cache}"


def _signature(op: OpEntry, kind: OpKind, values: dict[str, ValueEntry], weights: set[str]) -> Iterator[str]:
    for what, ports, named in (("reads", kind.reads, op.reads), ("writes", kind.writes, op.writes)):
        known = {port.name: port for port in ports}
        missing = [port.name for port in ports if not port.optional and port.name not in named]
        if missing or not named.keys() <= known.keys():
            yield f"{what} {', '.join(named)[:200]!a}, expected {', '.join(known)}"
            continue
        for name, value in named.items():
            if value not in values:
                yield f"{what} `{value[:200]}`, which is no value"
            elif known[name].kind not in ("*", values[value].kind):
                yield f"{what} `{value}` of kind {values[value].kind} at `{name}`, expected {known[name].kind}"
    names = {*kind.weights, *kind.optional_weights}
    if not set(kind.weights) <= op.weights.keys() <= names:
        yield f"takes weights {', '.join(op.weights)[:200]!a}, expected {', '.join(kind.weights)}"
    yield from (f"takes `{name[:200]}`, which is no weight" for name in op.weights.values() if name not in weights)
    if not set(kind.attrs) <= op.attrs.keys() <= {*kind.attrs, *kind.optional_attrs}:
        yield f"has attributes {', '.join(op.attrs)[:200]!a}, expected {', '.join(kind.attrs)}"


def _shards(op: OpEntry, count: int, values: dict[str, ValueEntry]) -> Iterator[str]:
    """An op is of as many shards as the plan, and a collective gives what its value takes."""
    if op.attrs.get("shards", count) != count:
        yield f"is of {op.attrs['shards']!a} shards, `target.tensor_parallel` is {count}"
    if op.kind in COLLECTIVES and count == 1:
        yield "brings shards together, and a stage is one process"
    given = [values[value].bytes for value in op.reads.values() if value in values]
    if op.kind in COLLECTIVES and [op.attrs.get("bytes_per_token")] != given:
        yield f"gives {op.attrs.get('bytes_per_token')!a} bytes a token, its value has {', '.join(map(str, given))}"


def _values(manifest: Manifest) -> Iterator[str]:
    values = {value.id: value for value in manifest.values}
    total = 0
    for value in manifest.values:
        faults = list(_value(value, values, manifest))
        yield from (f"`{value.id}`: {fault}" for fault in faults)
        if not faults and value.scope == "session" and value.storage == value.id:
            total += value.bytes * (manifest.runtime.max_sessions + 1)
    if total > MAX_POOL_BYTES:
        yield f"session state would take {total} bytes, more than {MAX_POOL_BYTES}"


def _value(value: ValueEntry, values: dict[str, ValueEntry], manifest: Manifest) -> Iterator[str]:
    kind = STATE_KINDS.get(value.kind)
    if kind is None or value.dtype not in DTYPE_BYTES or value.scope != kind.scope:
        yield f"kind {value.kind[:100]!a}, dtype {value.dtype[:100]!a} and scope {value.scope} do not go together"
        return
    smallest = 0 if value.kind in _BY_GROUP else 1  # a context shorter than the ratio completes no group
    for size in value.shape:
        if isinstance(size, int):
            if not smallest <= size <= MAX_SIZE:
                yield f"size {size} in its shape, expected {smallest} to {MAX_SIZE}"
        elif value.scope == "session" or not _SYMBOLS.fullmatch(size):
            yield f"size {size[:100]!a} in its shape"
    if not 1 <= len(value.shape) <= 8:
        yield f"{len(value.shape)} axes"
    yield from _packed(value, manifest.numerics.kv_cache)
    if value.scope == "session":
        yield from _pool(value, values, manifest)


def _packed(value: ValueEntry, kv_cache: str) -> Iterator[str]:
    """Caches are bytes where the plan packs them and nothing else is, and their rows are whole blocks."""
    encoding = CACHE_ROWS.get(value.kind) if kv_cache == "packed" else None
    if (value.dtype == "u8") != (encoding is not None):
        yield f"dtype {value.dtype} does not go with `numerics.kv_cache` {kv_cache}"
    elif encoding is not None:
        width = value.shape[-1] if len(value.shape) == 2 else 0
        if not isinstance(width, int) or not encoding.columns(width):
            yield f"rows of {str(value.shape)[:100]}, which are no whole blocks of {encoding.name}"


def _pool(value: ValueEntry, values: dict[str, ValueEntry], manifest: Manifest) -> Iterator[str]:
    """Session state has the capacity that context and window ask for, and one storage of its own shape."""
    capacity = {
        "window_kv": manifest.model.window_size,
        "token_history": manifest.engram.max_ngram_size - 1 if manifest.engram else 0,
    }
    first = value.shape[0] if value.shape else 0
    if value.kind in capacity and first != capacity[value.kind]:
        yield f"{first} rows, expected {capacity[value.kind]}"
    if value.kind in _BY_GROUP and isinstance(first, int) and first > manifest.runtime.max_context:
        yield f"{first} rows, more than `runtime.max_context`"
    expected = DTYPE_BYTES[value.dtype]
    for size in value.shape:
        expected *= size if isinstance(size, int) else 1
    if value.bytes != expected:
        yield f"`bytes` is {value.bytes}, its shape gives {expected}"
    storage = values.get(value.storage or "")
    if storage is None or storage.storage != storage.id or storage.scope != "session":
        yield f"storage {value.storage!a} is not the storage of session state"
    elif (storage.shape, storage.dtype, storage.kind, storage.stage) != (
        value.shape,
        value.dtype,
        value.kind,
        value.stage,
    ):
        yield f"its storage `{storage.id}` has another shape, dtype, kind or stage"


def _regions(manifest: Manifest) -> Iterator[str]:
    """Every kernel call is in one region, reads what was written before it, and regions pass on what others read.

    Whether copies of other stages' values arrive is for `check_crossings`.
    """
    ops = {op.id: op for op in manifest.ops}
    listed = Counter(op for region in manifest.regions for op in region.ops)
    yield from (f"region lists {name[:200]!a}, which is no op" for name in listed if name not in ops)
    wanted = [op.id for op in manifest.ops if op.kind not in CARRIERS]
    yield from (f"`{name}` is in {listed[name]} regions, expected one" for name in wanted if listed[name] != 1)
    if not listed.keys() <= ops.keys():
        return
    made = {value for name in wanted for value in ops[name].writes.values()}
    ready = {value.id for value in manifest.values if value.id == "ids" or value.scope == "session"}
    ready |= {value.id for value in manifest.values if value.id != plain_id(value.id)} - made
    for region in manifest.regions:
        inside: set[str] = set()
        outside: dict[str, None] = {}
        for name in region.ops:
            outside |= dict.fromkeys(value for value in ops[name].reads.values() if value not in inside)
            inside |= set(ops[name].writes.values())
            if ops[name].stage != region.stage:
                yield f"region `{region.id}` holds `{name}` of another stage"
        if set(region.reads) != outside.keys() or len(region.reads) != len(outside):
            yield f"region `{region.id}` does not read what its ops read"
        if not region.writes or not set(region.writes) <= inside or len(set(region.writes)) != len(region.writes):
            yield f"region `{region.id}` writes what its ops do not write"
        yield from (
            f"region `{region.id}` reads `{value}` before it is written" for value in region.reads if value not in ready
        )
        ready |= set(region.writes)
    if not manifest.regions or "logits" not in manifest.regions[-1].writes:
        yield "the last region does not write `logits`"


def _tails(manifest: Manifest) -> Iterator[str]:
    """At the end of a prompt a region leaves out no row that its state keeps or that a region behind it needs."""
    values = {value.id: value for value in manifest.values}
    for region in manifest.regions:
        rows, kept = region.tail_rows, {values[value].kind for value in region.writes} & _SESSION_KINDS
        if rows is not None and not 1 <= rows <= MAX_COUNT:
            yield f"region `{region.id}`: `tail_rows` is {rows}, expected 1 to {MAX_COUNT}"
        elif kept and not _covers(rows, manifest.model.window_size if kept == {"window_kv"} else None):
            yield f"region `{region.id}`: the last {rows} rows are fewer than its {', '.join(sorted(kept))} keeps"
    arrived = {move.arrives_as: move.value for move in manifest.transfers}
    makers = {value: region for region in manifest.regions for value in region.writes}
    attending = {op.id for op in manifest.ops if op.kind == "attend"}
    for region in manifest.regions:
        before: dict[str, RegionEntry] = {}
        for value in (value for value in region.reads if values[value].scope == "step"):
            source = value
            for _ in manifest.stages:
                source = arrived.get(source, source)
            if source in makers:
                before[makers[source].id] = makers[source]
            if region.tail_rows is not None and values[value].shape[:2] != ["B", "T"]:
                yield f"region `{region.id}` leaves out rows of `{value}`, which has no row a token"
        for maker in before.values():
            reach = manifest.model.window_size - 1 if attending.intersection(maker.ops) else 0
            if not _covers(maker.tail_rows, None if region.tail_rows is None else region.tail_rows + reach):
                yield f"region `{maker.id}`: the last {maker.tail_rows} rows are too few for `{region.id}`"


def _covers(rows: int | None, least: int | None) -> bool:
    """Whether so many rows at the end are enough; None is every row."""
    return rows is None or (least is not None and rows >= least)


def _weights(manifest: Manifest) -> Iterator[str]:
    for weight in manifest.weights:
        if not weight.shape or not all(1 <= size <= MAX_SIZE for size in weight.shape) or len(weight.shape) > 4:
            yield f"weight `{weight.id}` has the shape {str(weight.shape)[:100]}"
        if not 1 <= weight.count <= MAX_COUNT:
            yield f"weight `{weight.id}` counts {weight.count} tensors"
        yield from (f"weight `{weight.id}` {fault}" for fault in _parts(weight, manifest.target.tensor_parallel))
        known = TABLE_ENCODINGS if weight.role == "engram_table" else tuple(ENCODINGS)
        unknown = [encoding for encoding in (weight.stored, *weight.accepted) if encoding not in known]
        if unknown:
            yield f"weight `{weight.id}` is stored as {unknown[0][:100]!a}, expected {', '.join(known)}"
        if weight.dtype not in ("f32", "bf16", "stored"):
            yield f"weight `{weight.id}` is wanted as {weight.dtype[:100]!a}, expected f32, bf16 or stored"
        packed = weight.count > 1 or weight.role == "engram_table"
        if weight.dtype == "stored" and not packed and manifest.numerics.compute != "bf16":
            yield f"weight `{weight.id}` is wanted as stored, which goes with `numerics.compute` bf16"
    for constant in manifest.constants:
        yield from (f"constant `{constant.id}` {fault}" for fault in _constant(constant, manifest.engram is not None))


def _parts(weight: WeightEntry, shards: int) -> Iterator[str]:
    """A weight that is split has a part for each shard, all alike, and no scale of two of them."""
    shard = weight.shard
    if shard is None or not weight.shape:
        return
    if shard.count != shards or shards == 1:
        yield f"has {shard.count} shards, `target.tensor_parallel` is {shards}"
        return
    axis = 0 if shard.axis == "rows" else -1
    blocks = [ENCODINGS[name].block for name in (weight.stored, *weight.accepted) if name in ENCODINGS]
    width, whole = weight.shape[axis], max((block[axis] for block in blocks if block is not None), default=1)
    if width % (shards * whole):
        yield f"has {width} {shard.axis}, which are no whole blocks of {whole} for each of {shards} shards"


def _constant(constant: ConstantEntry, has_engram: bool) -> Iterator[str]:
    if constant.kind != "rope_frequencies":
        if not has_engram:
            yield "needs an `engram` section"
        return
    plain, yarn = {"rope_dim", "theta"}, {"factor", "original_seq_len", "beta_fast", "beta_slow"}
    if constant.attrs.keys() not in (plain, plain | yarn):
        yield f"has attributes {', '.join(constant.attrs)[:200]!a}, expected {', '.join(sorted(plain | yarn))}"
    elif not all(0 < value <= 1e12 for value in constant.attrs.values()) or constant.attrs["theta"] <= 1:
        yield "has an attribute out of range"
    elif not isinstance(constant.attrs["rope_dim"], int) or constant.attrs["rope_dim"] > 1 << 20:
        yield f"has `rope_dim` {constant.attrs['rope_dim']}"


def _engram(manifest: Manifest, engram: EngramEntry) -> Iterator[str]:
    """Hash constants have a value a position and a column, in the range of int64."""
    if not (2 <= engram.max_ngram_size <= 16 and 1 <= engram.n_heads <= 1024 and 1 <= engram.head_dim <= 1 << 20):
        yield "`engram` has sizes out of range"
        return
    columns = (engram.max_ngram_size - 1) * engram.n_heads
    if not 0 <= engram.pad_id < manifest.model.vocab_size:
        yield f"`engram.pad_id` is {engram.pad_id}, outside the vocabulary of {manifest.model.vocab_size}"
    for layer in engram.layers:
        if (len(layer.multipliers), len(layer.primes), len(layer.offsets)) != (engram.max_ngram_size, columns, columns):
            yield f"`engram`: layer {layer.layer} has another number of constants than n-gram sizes and heads ask for"
        if not _within(layer.multipliers, 0) or not _within(layer.primes, 1) or not _within(layer.offsets, 0):
            yield f"`engram`: layer {layer.layer} has a constant out of range"


def _within(numbers: Iterable[int], least: int) -> bool:
    return all(least <= number < 1 << 63 for number in numbers)
