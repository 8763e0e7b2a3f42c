"""Session state as a long prompt would have left it, without the prompt: random rows, in the form of the pools."""

from __future__ import annotations

import torch
from torch import Tensor

from dsv41c.kernels.encodings import CACHE_ROWS
from dsv41c.kernels.reference.rows import pack
from dsv41c.runtime.manifest import Manifest
from dsv41c.runtime.state import Pools

_ROWS = 1 << 15  # rows packed at a time


def fill_slot(pools: Pools, manifest: Manifest, slot: int, *generators: torch.Generator) -> None:
    """Write every row of a slot: normal numbers for caches and open groups, ids of tokens for the history.

    `generators`: one of each device that has pools. Kernels look at rows by the positions of a step, so one filling
    serves every length up to the capacity.
    """
    drawing = {generator.device: generator for generator in generators}
    for storage, pool in pools.tensors.items():
        rows, generator = pool[slot], drawing[pool.device]
        if rows.dtype == torch.uint8:
            _fill_packed(rows, pools.kinds[storage], _channels(manifest, storage), generator)
        elif rows.is_floating_point():
            rows.normal_(generator=generator)
        else:
            assert manifest.engram is not None, "a plan with a token history has an engram section"
            rows.random_(0, manifest.engram.compressed_vocab_size, generator=generator)


def _fill_packed(rows: Tensor, kind: str, channels: int, generator: torch.Generator) -> None:
    for part in torch.split(rows, _ROWS):
        values = torch.empty(len(part), channels, device=part.device).normal_(generator=generator)
        part.copy_(pack(kind, values))


def _channels(manifest: Manifest, storage: str) -> int:
    """Channels of the rows of a packed cache."""
    value = next(value for value in manifest.values if value.id == storage)
    channels = CACHE_ROWS[value.kind].columns(int(value.shape[-1]))
    assert channels is not None, f"{value.kind} rows of {value.shape[-1]} bytes"
    return channels
