"""The kernel calls of a region, as its manifest says: each of an op, or of a fused kind that covers several."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from dsv41c.kernels.fusion import CALLS, FUSED, Wired, part_name
from dsv41c.runtime.manifest import Manifest, OpEntry, RegionEntry


@dataclass(frozen=True, slots=True)
class RegionCall:
    """A kernel call of a region: an op kind or fused kind, and the ops that it covers, in the order of the kind."""

    kind: str
    ops: tuple[OpEntry, ...]

    @property
    def fused(self) -> bool:
        """Whether it is of a fused kind."""
        return self.kind in FUSED

    @property
    def attributes(self) -> dict[str, int | float | str]:
        """The attributes that it is made with."""
        if not self.fused:
            return self.ops[0].attrs
        return {part_name(op.kind, name): value for op in self.ops for name, value in op.attrs.items()}

    @property
    def reads(self) -> dict[str, str]:
        """The values that it is given, by read of its kind."""
        if not self.fused:
            return self.ops[0].reads
        return FUSED[self.kind].bound({op.kind: Wired(op.reads, op.writes) for op in self.ops}) or {}

    @property
    def writes(self) -> dict[str, str]:
        """The values that it gives, by write of its kind."""
        if not self.fused:
            return self.ops[0].writes
        ops = {op.kind: op for op in self.ops}
        return {write: ops[kind].writes[port] for write, (kind, port) in FUSED[self.kind].leaves.items()}


def calls_of(region: RegionEntry, ops: Mapping[str, OpEntry]) -> list[RegionCall]:
    """The calls of a region's function, in order. `ops`: those of the manifest, by id."""
    if region.calls:
        return [RegionCall(call.kind, tuple(ops[op] for op in call.ops)) for call in region.calls]
    return [RegionCall(ops[op].kind, (ops[op],)) for op in region.ops]


def check_calls(manifest: Manifest) -> Iterator[str]:
    """Sentences: where a region's calls are not calls of its ops, or hide what somebody needs. Names are sound here."""
    ops = {op.id: op for op in manifest.ops}
    readers = {value.id: value.readers for value in manifest.values}
    for region in manifest.regions:
        listed = [op for call in region.calls for op in call.ops]
        if region.calls and sorted(listed) != sorted(region.ops):
            yield f"region `{region.id}` has calls that are not those of its ops, each once"
            continue
        for call in calls_of(region, ops) if region.calls else ():
            fault = _fault(call, readers)
            if fault is not None:
                yield f"region `{region.id}`: the call of {call.kind[:100]!a} {fault}"


def _fault(call: RegionCall, readers: Mapping[str, list[str]]) -> str | None:
    kinds = tuple(op.kind for op in call.ops)
    if not call.fused:
        known = call.kind in CALLS and kinds == (call.kind,)
        return None if known else f"covers ops of the kinds {', '.join(kinds)[:200]}"
    kind = FUSED[call.kind]
    if kinds != kind.covers:
        return f"covers ops of the kinds {', '.join(kinds)[:200]}, expected {', '.join(kind.covers)}"
    if kind.bound({op.kind: Wired(op.reads, op.writes) for op in call.ops}) is None:
        return "covers ops that are not wired to each other so"
    inside, left = {op.id for op in call.ops}, set(kind.leaves.values())
    hidden = [value for op in call.ops for port, value in op.writes.items() if (op.kind, port) not in left]
    needed = [value for value in hidden if not inside.issuperset(readers[value])]
    return f"hides `{needed[0]}`, which others read" if needed else None
