"""What an engine of a plan holds, from the manifest alone: weights as they are kept, constants, pools of state.

Plain data, no torch. What a step needs while it runs is in `runtime.work_space`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod

from dsv41c.kernels.catalog import DTYPE_BYTES
from dsv41c.kernels.encodings import ENCODINGS
from dsv41c.runtime.manifest import ConstantEntry, EngramEntry, Manifest, MemoryEntry, ValueEntry, WeightEntry
from dsv41c.runtime.shards import of_shard

TABLE = "engram_table"  # the role of tables, of which rows are read one by one
ROW_CACHE_BYTES = 64 << 20  # of `engram.row_cache_bytes`, where the spec does not say
ROW_WAYS = 8  # rows of a set of a row cache
ROW_BOOK_BYTES = 16  # beside each of its rows: the number, and when it was asked for
GLOBAL_KINDS = ("compress_kv", "index_k")  # session state that grows with the context


def memory(manifest: Manifest) -> list[MemoryEntry]:
    """What an engine of a plan will hold, by device: exactly the bytes of its tensors; of shards, of each one."""
    devices = {stage.index: stage.device for stage in manifest.stages}
    weights, state = (dict.fromkeys(devices.values(), 0) for _ in range(2))
    for weight in manifest.weights:
        if weight.role != TABLE:
            weights[devices[weight.stage]] += kept_bytes(weight)
    for device, constant in constants_on(manifest):
        weights[device] += constant_bytes(constant, manifest)
    for pool in pools(manifest):
        state[devices[pool.stage]] += pool.bytes * slots(manifest)
    return [
        MemoryEntry(device=name, weights=weights[name], state=state[name], total=weights[name] + state[name])
        for name in weights
    ]


def kept_bytes(weight: WeightEntry, count: int | None = None) -> int:
    """Bytes of a weight, or of a shard's part, as kernels get it; of a table as stored. `count`: of its tensors."""
    weight = of_shard(weight)
    number = weight.count if count is None else min(weight.count, count)
    if weight.dtype == "stored":
        return weight.bytes // weight.count * number
    return number * prod(weight.shape) * DTYPE_BYTES[weight.dtype]


def kept_tensors(weight: WeightEntry) -> Iterator[int]:
    """Bytes of each tensor that holds a part of a weight: a quantised one has codes and scales, experts are stacked."""
    weight = of_shard(weight)
    total = kept_bytes(weight)
    encoding = ENCODINGS[weight.stored]
    if weight.dtype == "stored" and encoding.block is not None:
        codes = weight.count * prod(weight.shape) * encoding.bits // 8
        yield from (codes, total - codes)
    else:
        yield total


def allocated(count: int) -> int:
    """What torch's allocator for GPUs takes for a tensor of so many bytes, at most.

    It gives whole multiples of 512; from 10 MiB on what remains of a multiple of 2 MiB comes with it, up to 1 MiB.
    """
    rounded = -(-count // 512) * 512
    segment = -(-rounded // (2 << 20)) * (2 << 20)
    return segment if rounded >= 10 << 20 and segment - rounded <= 1 << 20 else rounded


def constants_on(manifest: Manifest) -> list[tuple[str, ConstantEntry]]:
    """Every constant with each device that has ops which use it."""
    devices = {stage.index: stage.device for stage in manifest.stages}
    by_id = {constant.id: constant for constant in manifest.constants}
    used = {(devices[op.stage], weight): None for op in manifest.ops for weight in op.weights.values()}
    return [(device, by_id[weight]) for device, weight in used if weight in by_id]


def constant_bytes(constant: ConstantEntry, manifest: Manifest) -> int:
    """Bytes of a tensor that the runtime makes."""
    if constant.kind == "rope_frequencies":
        return int(constant.attrs["rope_dim"]) // 2 * DTYPE_BYTES["f32"]
    if constant.kind == "token_map":
        return manifest.model.vocab_size * DTYPE_BYTES["i64"]
    part = constant.kind.removeprefix("engram_")
    layers = manifest.engram.layers if manifest.engram is not None else []
    return sum(len(getattr(layer, part)) for layer in layers) * DTYPE_BYTES["i64"]


def row_cache_bytes(engram: EngramEntry) -> int:
    """Bytes of rows that are kept in memory, of all tables together; none where all rows are."""
    if engram.storage in ("device", "host"):
        return 0
    return ROW_CACHE_BYTES if engram.row_cache_bytes is None else engram.row_cache_bytes


def row_cache_sets(budget: int, width: int, rows: int) -> int:
    """How many sets of rows of so many bytes a budget has room for: no more than a table of so many rows fills."""
    return min(budget // (ROW_WAYS * (width + ROW_BOOK_BYTES)), -(-rows // ROW_WAYS))


# --- session state ----------------------------------------------------------------------------------------------------


def slots(manifest: Manifest) -> int:
    """Sessions that pools have room for, the spare one among them."""
    return manifest.runtime.max_sessions + 1


def pools(manifest: Manifest) -> list[ValueEntry]:
    """The session values that have memory of their own; `bytes` of each are those of one session."""
    return [value for value in manifest.values if value.scope == "session" and value.storage in (None, value.id)]


def pool_bytes(manifest: Manifest) -> int:
    """Bytes of the pools of all devices."""
    return slots(manifest) * sum(pool.bytes for pool in pools(manifest))


def ratios(manifest: Manifest) -> dict[str, int]:
    """Tokens that a row of each global session value stands for, copies on other stages included."""
    found: dict[str, int] = {}
    for op in manifest.ops:
        for port, value in op.writes.items():
            if "ratio" in op.attrs and port in GLOBAL_KINDS:
                found |= dict.fromkeys((value, op.reads[port]), int(op.attrs["ratio"]))
            elif op.kind == "mirror" and op.reads["value"] in found:
                found[value] = found[op.reads["value"]]
    return found


def global_kv_bytes(manifest: Manifest) -> float:
    """Bytes that a token of one session takes in compressed KV and index keys, copies on other stages left out."""
    groups = ratios(manifest)
    copies = {op.writes["value"] for op in manifest.ops if op.kind == "mirror"}
    rows = [pool for pool in pools(manifest) if pool.kind in GLOBAL_KINDS and pool.id not in copies]
    return sum(value_bytes([1, *pool.shape[1:]], pool.dtype) / groups[pool.id] for pool in rows)


# --- other sizes ------------------------------------------------------------------------------------------------------


def value_bytes(
    shape: list[int | str], dtype: str, *, batch: int = 1, tokens: int = 1, context: int = 0, ratio: int = 1
) -> int:
    """Bytes of a value of a symbolic shape, for so many sessions and tokens of a step; `ratio` is that of `T/r`."""
    known = {"B": batch, "T": tokens, "T/r": -(-tokens // ratio)}
    total = DTYPE_BYTES[dtype]
    for size in shape:
        total *= size if isinstance(size, int) else known[size] if size in known else group_count(size, context)
    return total


def group_count(size: str, context: int) -> int:
    """Of `context/r` or `context/r/block`: whole groups of r tokens, or the blocks that hold them."""
    ratio, _, block = size.removeprefix("context/").partition("/")
    return -(-(context // int(ratio)) // int(block or 1))


def sized(manifest: Manifest, *, context: int | None = None, sessions: int | None = None) -> Manifest:
    """The manifest of the same spec with another `max_context` or fewer `max_sessions`: all its sizes.

    Chunks and decode buckets are cut to it. Hashes and files stay those of the manifest that is there.
    """
    runtime = manifest.runtime
    length, number = context or runtime.max_context, sessions or runtime.max_sessions
    groups = ratios(manifest)
    update = {
        "max_context": length,
        "max_sessions": number,
        "prefill_chunk": min(runtime.prefill_chunk, length),
        "decode_buckets": sorted({min(bucket, number) for bucket in runtime.decode_buckets}),
    }
    resized = manifest.model_copy(
        update={
            "runtime": runtime.model_copy(update=update),
            "values": [_sized(value, length, groups) for value in manifest.values],
        }
    )
    return resized.model_copy(update={"memory": memory(resized)})


def _sized(value: ValueEntry, context: int, groups: Mapping[str, int]) -> ValueEntry:
    shape = value.shape
    if value.id in groups:
        shape = [context // groups[value.id], *shape[1:]]
    return value.model_copy(update={"shape": shape, "bytes": value_bytes(shape, value.dtype, context=context)})
