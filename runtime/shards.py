"""What of a plan's weights one shard has. Plain data, no torch."""

from __future__ import annotations

from dsv41c.runtime.manifest import WeightEntry


def of_shard(weight: WeightEntry) -> WeightEntry:
    """A weight as a shard has it: its own shape and bytes. A weight that is not split is the same."""
    shard = weight.shard
    if shard is None:
        return weight
    shape = list(weight.shape)
    shape[0 if shard.axis == "rows" else -1] //= shard.count
    return weight.model_copy(update={"shape": shape, "bytes": weight.bytes // shard.count, "shard": None})
