"""Memory before anything is loaded: what a plan needs on each device and on the host, and whether that fits.

Everything comes from the manifest. Weights, constants, pools, inputs of captured steps and what graphs keep are counted
to the byte as `torch` is asked for them; what a step takes on top is counted for step values, and for kernels as far as
it is known (`runtime.scratch`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from dsv41c.diagnostics import Diagnostic
from dsv41c.runtime.manifest import Manifest, WeightEntry
from dsv41c.runtime.memory import (
    GLOBAL_KINDS,
    ROW_BOOK_BYTES,
    ROW_WAYS,
    TABLE,
    allocated,
    constant_bytes,
    constants_on,
    kept_bytes,
    kept_tensors,
    pools,
    row_cache_bytes,
    row_cache_sets,
    sized,
    slots,
)
from dsv41c.runtime.work_space import work_space
from dsv41c.words import size

HOST = "host"
EXPERT = "{expert}"  # in the names of weights that each routed expert has
PROCESS_BYTES = 240 << 20  # Python with torch for CPUs and this runtime, as measured; builds for GPUs take more

Axis = Literal["context", "sessions"]


@dataclass(frozen=True, slots=True)
class Item:
    """A part of the memory of a place, with a remark."""

    name: str
    bytes: int
    what: str = ""


@dataclass(frozen=True, slots=True)
class Place:
    """A memory: of a device, of the host, or one that they share. `available` is None where nobody said."""

    name: str
    items: tuple[Item, ...]
    available: int | None = None

    @property
    def needed(self) -> int:
        """Bytes of all items."""
        return sum(item.bytes for item in self.items)

    @property
    def margin(self) -> int | None:
        """Bytes that are left; below 0: that are missing."""
        return None if self.available is None else self.available - self.needed

    @property
    def fits(self) -> bool | None:
        """Whether it fits, None where that is not judged."""
        return None if self.margin is None else self.margin >= 0

    @property
    def largest(self) -> Item:
        """The item that takes most."""
        return max(self.items, key=lambda item: item.bytes)


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much memory there is, in bytes: of each device, of the host. `unified`: they share it, as CPUs always do."""

    device: int | None = None
    host: int | None = None
    unified: bool = False


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a manifest needs. `uncounted`: what is mapped from files, and leaves memory when something else needs it."""

    manifest: Manifest
    places: tuple[Place, ...]
    uncounted: tuple[Item, ...] = field(default=())

    @property
    def fits(self) -> bool | None:
        """Whether everything fits that is judged; None where nothing is."""
        judged = [place.fits for place in self.places if place.fits is not None]
        return all(judged) if judged else None


def estimate(manifest: Manifest, sizes: Sizes | None = None) -> Estimate:
    """What a plan needs on each device and on the host."""
    sizes = sizes or Sizes()
    devices = {device: tuple(item for item in _device(manifest, device) if item.bytes) for device in _devices(manifest)}
    host = tuple(item for item in _host(manifest) if item.bytes)
    if sizes.unified or manifest.target.family == "cpu":
        available = min((known for known in (sizes.device, sizes.host) if known is not None), default=None)
        return Estimate(manifest, (_shared(manifest, devices, host, available),), tuple(_uncounted(manifest)))
    shards = manifest.target.tensor_parallel
    each = f" (each of {shards})" if shards > 1 else ""
    places = [Place(device + each, items, sizes.device) for device, items in devices.items()]
    return Estimate(manifest, (*places, Place(HOST, host, sizes.host)), tuple(_uncounted(manifest)))


def _devices(manifest: Manifest) -> list[str]:
    return list(dict.fromkeys(stage.device for stage in manifest.stages))


def _shared(
    manifest: Manifest, devices: dict[str, tuple[Item, ...]], host: tuple[Item, ...], available: int | None
) -> Place:
    """One memory for all shards of all devices and the host: items of several devices are named with their device."""
    shards, several = manifest.target.tensor_parallel, len(devices) > 1
    items = [
        Item(f"{device} {item.name}" if several else item.name, item.bytes * shards, item.what)
        for device, own in devices.items()
        for item in own
    ]
    return Place(f"{', '.join(devices)} and {HOST}", (*items, *host), available)


# --- devices ----------------------------------------------------------------------------------------------------------


def _device(manifest: Manifest, device: str) -> Iterator[Item]:
    stages = {stage.index for stage in manifest.stages if stage.device == device}
    weights = [weight for weight in manifest.weights if weight.stage in stages]
    kept = [weight for weight in weights if weight.role != TABLE or _storage(manifest) == "device"]
    yield Item("experts", _total(kept, lambda weight: EXPERT in weight.name), "routed experts, as stored")
    yield Item("other weights", _total(kept, lambda weight: EXPERT not in weight.name and weight.role != TABLE))
    yield Item("engram tables", _total(kept, lambda weight: weight.role == TABLE), "rows of all n-grams")
    constants = [constant_bytes(constant, manifest) for place, constant in constants_on(manifest) if place == device]
    yield Item("constants", sum(constants), "rope frequencies, hash constants, token map")
    yield from _state(manifest, stages)
    work = work_space(manifest, device)
    yield Item("step inputs", work.inputs, "buffers that captured steps read")
    yield Item("graphs", work.graphs, "what captured decode steps hand on")
    yield Item("work space", work.steps, "of a prefill chunk and a decode step, at most")
    if manifest.target.family in ("cuda", "rocm"):
        tensors = [count for weight in kept for count in kept_tensors(weight)]
        tensors += [pool.bytes * slots(manifest) for pool in pools(manifest) if pool.stage in stages]
        yield Item("rounding", sum(map(allocated, tensors)) - sum(tensors), "of torch's allocator, at most")


def _total(weights: list[WeightEntry], wanted: Callable[[WeightEntry], bool]) -> int:
    return sum(kept_bytes(weight) for weight in weights if wanted(weight))


def _state(manifest: Manifest, stages: set[int]) -> Iterator[Item]:
    """Pools, those of the sessions and the spare one."""
    copies = {op.writes["value"] for op in manifest.ops if op.kind == "mirror"}
    of = f"of {slots(manifest)} slots"
    found: dict[str, int] = {}
    for pool in pools(manifest):
        if pool.stage in stages:
            name = "mirrored KV" if pool.id in copies else "global KV" if pool.kind in GLOBAL_KINDS else "other state"
            found[name] = found.get(name, 0) + pool.bytes * slots(manifest)
    yield Item("global KV", found.get("global KV", 0), f"compress_kv and index_k, {of}")
    yield Item("mirrored KV", found.get("mirrored KV", 0), f"of other stages, {of}")
    yield Item("other state", found.get("other state", 0), f"windows, open groups, token history, {of}")


# --- host -------------------------------------------------------------------------------------------------------------


def _storage(manifest: Manifest) -> str:
    return manifest.engram.storage if manifest.engram is not None else ""


def tables(manifest: Manifest) -> dict[int, int]:
    """Bytes of the engram table of each layer that has one, as stored."""
    found = [weight for weight in manifest.weights if weight.role == TABLE]
    return {weight.layer: kept_bytes(weight) for weight in found if weight.layer is not None}


def processes(manifest: Manifest) -> int:
    """How many processes run a plan, at most: one for each device, or each of its shards, all on one host.

    Without shards one alone can drive all devices, and takes less.
    """
    return manifest.target.tensor_parallel * len(_devices(manifest))


def _host(manifest: Manifest) -> Iterator[Item]:
    """What the processes of all devices take. Every shard of a device has tables and caches of its own."""
    shards, count = manifest.target.tensor_parallel, processes(manifest)
    each = f", in each of {shards} shards" if shards > 1 else ""
    if _storage(manifest) == "host":
        yield Item("engram tables", sum(tables(manifest).values()) * shards, f"{_listed(manifest)}, pinned{each}")
    cached = f"rows of engram tables that were read before, at most{each}"
    yield Item("row cache", _row_cache(manifest) * shards, cached)
    if manifest.target.family != "cpu":
        decoded = [weight for weight in manifest.weights if weight.dtype not in ("stored", weight.stored)]
        yield Item("decoded weights", sum(map(kept_bytes, decoded)) * shards, "while weights are loaded")
    what = "" if count == 1 else ", one for each device" if shards == 1 else ", one for each shard of a device"
    yield Item("process", PROCESS_BYTES * count, f"{count} x Python with torch for CPUs{what}")


def _row_cache(manifest: Manifest) -> int:
    """Bytes of the row caches of all tables, full."""
    if manifest.engram is None:
        return 0
    budget = row_cache_bytes(manifest.engram) // len(manifest.engram.layers)
    found = [weight for weight in manifest.weights if weight.role == TABLE]
    total = 0
    for weight in found:
        width = kept_bytes(weight) // weight.shape[0]
        total += row_cache_sets(budget, width, weight.shape[0]) * ROW_WAYS * (width + ROW_BOOK_BYTES)
    return total


def _uncounted(manifest: Manifest) -> Iterator[Item]:
    where = {"mapped": "mapped from the checkpoint's files: page cache", "disk": "rows are read from disk, one by one"}
    if _storage(manifest) in where:
        yield Item("engram tables", sum(tables(manifest).values()), f"{_listed(manifest)}, {where[_storage(manifest)]}")


def _listed(manifest: Manifest) -> str:
    return ", ".join(f"layer {layer} {size(count)}" for layer, count in tables(manifest).items())


# --- verdict ----------------------------------------------------------------------------------------------------------


def faults(found: Estimate) -> list[Diagnostic]:
    """A finding (DSV830) for each memory that is too small."""
    return [_too_small(found, place) for place in found.places if place.fits is False]


def _too_small(found: Estimate, place: Place) -> Diagnostic:
    assert place.available is not None and place.margin is not None
    runtime = found.manifest.runtime
    message = (
        f"plan `{found.manifest.name}` does not fit into the memory of {place.name}: {size(-place.margin)} too much"
    )
    return Diagnostic(
        "DSV830",
        message,
        facts=(
            ("needed", f"{size(place.needed)} ({place.needed})"),
            ("available", f"{size(place.available)} ({place.available})"),
            ("largest item", f"{place.largest.name}, {size(place.largest.bytes)}"),
            ("runtime.max_context", str(runtime.max_context)),
            ("runtime.max_sessions", str(runtime.max_sessions)),
        ),
        help="try more stages or larger devices; `--fit context|sessions` finds the largest that fits, if any",
    )


@dataclass(frozen=True, slots=True)
class Fit:
    """The largest context, or number of sessions, that fits: None where not even 1 does; `limit` is the model's own."""

    axis: Axis
    largest: int | None
    limit: int


def fit(manifest: Manifest, axis: Axis, limit: int, sizes: Sizes) -> tuple[Fit, Estimate]:
    """The largest size up to `limit` with which everything judged fits, and what is needed then (with 1 if none does).

    What is needed never shrinks as the size grows, so halving finds it exactly.
    """

    def at(number: int) -> Estimate:
        resized = sized(manifest, context=number) if axis == "context" else sized(manifest, sessions=number)
        return estimate(resized, sizes)

    largest = bisect_left(range(1, limit + 1), True, key=lambda number: at(number).fits is False)
    return Fit(axis, largest or None, limit), at(max(1, largest))
