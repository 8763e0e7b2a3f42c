"""Which regions are captured together, by the plan's `runtime.capture`."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

from dsv41c.runtime.manifest import OpEntry, RegionEntry


def ranges(
    regions: Sequence[RegionEntry],
    ops: Mapping[str, Sequence[OpEntry]],
    capture: str,
    staged: Container[str] | None = None,
) -> list[range]:
    """Ranges of region indices that cover all regions, in order; none for `off`.

    `layer`: each layer alone; `every:N`: N layers together; `all`: everything. Embedding and head go with the layer
    beside them, since every graph more costs the time of its start. A range ends where a stage does, and before a
    region for which the host reads rows of a table at ids that the range itself computes: the ids have to be there
    before the work starts that uses them. `staged`: the regions for which the host reads rows, by id; None for all.
    """
    if capture == "off":
        return []
    size = {"layer": 1, "all": len(regions)}.get(capture) or int(capture.removeprefix("every:"))
    found: list[range] = []
    written: set[str] = set()
    layers = 0
    for index, region in enumerate(regions):
        own = ops[region.id]
        is_layer = all(op.layer is not None for op in own)
        table_ids = {value for op in own if op.kind == "engram_rows" for value in op.reads.values()}
        if staged is not None and region.id not in staged:
            table_ids = set()
        elsewhere = index > 0 and region.stage != regions[index - 1].stage
        if not found or elsewhere or (is_layer and layers == size) or table_ids & written:
            found.append(range(index, index))
            written, layers = set(), 0
        found[-1] = range(found[-1].start, index + 1)
        written |= set(region.writes)
        layers += is_layer
    return found


def buckets_of_context(largest: int) -> tuple[int, ...]:
    """Powers of two below the largest context, and that itself: how far the positions of a captured step may reach."""
    return (*(1 << power for power in range((largest - 1).bit_length())), largest)
