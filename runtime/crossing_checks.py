"""What a manifest must agree on with itself about stages: what each gets from the one before, and whose state it keeps.

Every read is of a value on the reader's device. It was made there, or a transfer brought it, as a copy under its own
id, by an op that the graph has. Session state is updated in one place; a mirror's storage is its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from dsv41c.kernels.catalog import CARRIERS, STATE_KINDS
from dsv41c.runtime.manifest import Manifest, OpEntry, TransferEntry, ValueEntry
from dsv41c.runtime.stages.layout import plain_id
from dsv41c.words import layers

_MOST_RUNS = 12


def check_crossings(manifest: Manifest) -> Iterator[str]:
    """Every fault, a sentence each. Names and stages of ops, values and regions are sound already."""
    yield from _regions(manifest)
    yield from _devices(manifest)
    yield from _transfers(manifest)
    yield from _carriers(manifest)
    yield from _undeclared(manifest)
    yield from _state(manifest)


def _regions(manifest: Manifest) -> Iterator[str]:
    """Each stage has regions, and they are in the order of stages."""
    stages = [region.stage for region in manifest.regions]
    yield from (f"stage {stage.index} has no region" for stage in manifest.stages if stage.index not in stages)
    if stages != sorted(stages):
        yield "the regions are not in the order of their stages"


def _devices(manifest: Manifest) -> Iterator[str]:
    for value in manifest.values:
        device = manifest.stages[value.stage].device
        if value.device != device:
            yield f"`{value.id}` is on {value.device[:100]!a}, its stage {value.stage} on {device}"


def _transfers(manifest: Manifest) -> Iterator[str]:
    """Each brings a value that the stage before has, whole and under its own id, the way that its kind travels."""
    values = {value.id: value for value in manifest.values}
    arrivals = Counter(move.arrives_as for move in manifest.transfers)
    yield from (f"{n} transfers arrive as `{name[:200]}`" for name, n in arrivals.items() if n > 1)
    makers = {value: op for op in manifest.ops for value in op.writes.values()}
    read = {value for op in manifest.ops for value in op.reads.values()}
    for move in manifest.transfers:
        given, arrived = values.get(move.value), values.get(move.arrives_as)
        if given is None or arrived is None:
            unknown = move.value if given is None else move.arrives_as
            yield f"a transfer to stage {move.to_stage} names `{unknown[:200]}`, which is no value"
            continue
        faults = [*_route(move, given, arrived, manifest), *_copy(move, given, arrived)]
        if move.value != "ids" and move.value not in makers:
            faults.append("sends what no op writes")
        if move.arrives_as not in read:
            faults.append(f"arrives as `{move.arrives_as}`, which nobody reads")
        op = makers.get(move.arrives_as)
        if op is None or (CARRIERS.get(op.kind), op.stage) != (move.how, move.to_stage):
            faults.append(f"has no op that brings `{move.arrives_as}` to stage {move.to_stage} as a {move.how}")
        elif op.reads != {"value": move.value}:
            faults.append(f"is carried by `{op.id}`, which reads `{', '.join(op.reads.values())}`")
        yield from (f"the transfer of `{move.value}` to stage {move.to_stage} {fault}" for fault in faults)


def _route(move: TransferEntry, given: ValueEntry, arrived: ValueEntry, manifest: Manifest) -> Iterator[str]:
    if move.from_stage != move.to_stage - 1:
        yield f"comes from stage {move.from_stage}, and values go from a stage to the next one"
    source, target = manifest.stages[move.from_stage].device, manifest.stages[move.to_stage].device
    if given.stage > move.from_stage or given.device != source:
        yield f"comes from stage {move.from_stage} on {source}, its value is of stage {given.stage} on {given.device}"
    if source == target:
        yield f"stays on {target}"
    if arrived.stage != move.to_stage:
        yield f"arrives as `{arrived.id}`, which is of stage {arrived.stage}"


def _copy(move: TransferEntry, given: ValueEntry, arrived: ValueEntry) -> Iterator[str]:
    name = f"{plain_id(given.id)}.S{move.to_stage}"
    if arrived.id != name:
        yield f"arrives as `{arrived.id}`, and its copy there is `{name}`"
    if not move.kind == given.kind == arrived.kind:
        yield f"is of kinds {move.kind[:100]}, {given.kind} and {arrived.kind}"
    elif move.how != STATE_KINDS[given.kind].crosses:
        yield f"goes as a {move.how}, and {given.kind} crosses as: {STATE_KINDS[given.kind].crosses}"
    if (given.shape, given.dtype) != (arrived.shape, arrived.dtype):
        yield f"is {_form(given)}, and arrives as {_form(arrived)}"
    if move.how == "mirror" and arrived.storage != arrived.id:
        yield f"arrives in the storage of `{str(arrived.storage)[:200]}`, and a mirror has its own"


def _form(value: ValueEntry) -> str:
    return f"{value.dtype}[{', '.join(map(str, value.shape))}]"


def _carriers(manifest: Manifest) -> Iterator[str]:
    """What an op brings to another stage is a transfer of the plan."""
    declared = {move.arrives_as for move in manifest.transfers}
    read = {value for op in manifest.ops for value in op.reads.values()}
    for op in manifest.ops:
        for value in op.writes.values():
            if op.kind in CARRIERS and value not in declared and value not in read:
                yield f"`{op.id}` brings `{value}`, and `transfers` does not have it"


def _undeclared(manifest: Manifest) -> Iterator[str]:
    """Every op reads what was made on its device, or what a transfer brought there."""
    values = {value.id: value for value in manifest.values}
    made = {value for op in manifest.ops if op.kind not in CARRIERS for value in op.writes.values()}
    declared = {move.arrives_as for move in manifest.transfers}
    found: dict[tuple[str, int], list[OpEntry]] = {}
    for op in manifest.ops:
        for value in op.reads.values():
            home, copied = values[value], plain_id(value) != value
            state = home.scope == "session" and home.storage == value and home.kind not in _MIRRORED
            lost = copied and value not in made and value not in declared and not state
            apart = home.device != manifest.stages[op.stage].device and op.kind not in CARRIERS
            if lost or apart:
                found.setdefault((plain_id(value) if lost else value, op.stage), []).append(op)
    for (value, stage), readers in found.items():
        source = values.get(value)
        place = "made nowhere" if source is None else f"stage {source.stage}"
        yield f"{_readers(readers)} (stage {stage}) {_verb(readers)} `{value}` ({place}), no transfer declared"


_MIRRORED = frozenset(kind.name for kind in STATE_KINDS.values() if kind.crosses == "mirror")


def _readers(ops: list[OpEntry]) -> str:
    numbers = {op.layer for op in ops if op.layer is not None}
    return layers(numbers, _MOST_RUNS) if numbers else f"`{ops[0].id}`"


def _verb(ops: list[OpEntry]) -> str:
    return "read" if len({op.layer for op in ops}) > 1 else "reads"


def _state(manifest: Manifest) -> Iterator[str]:
    """Session state is updated where it is, by one op; what nobody updates is nobody's."""
    values = {value.id: value for value in manifest.values}
    owners: dict[str, str] = {}
    for op in manifest.ops:
        for port, written in op.writes.items():
            if values[written].scope != "session":
                continue
            before, storage = op.reads.get(port), str(values[written].storage)
            if op.kind not in CARRIERS and before is not None and values[before].storage != storage:
                yield f"`{op.id}` reads `{before}` and leaves `{written}` in the storage of `{storage[:200]}`"
            if storage in owners:
                yield f"`{op.id}` and `{owners[storage]}` update the storage of `{storage[:200]}`"
            owners[storage] = op.id
    declared = {move.arrives_as for move in manifest.transfers}
    for value in manifest.values:
        mirrored = plain_id(value.id) != value.id and value.kind in _MIRRORED
        if value.scope == "session" and str(value.storage) not in owners and not (mirrored or value.id in declared):
            yield f"`{value.id}` is session state that no op updates"
