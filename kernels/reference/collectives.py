"""The ops in which shards meet, on whatever connects their processes."""

from __future__ import annotations

import torch
from torch import Tensor

from dsv41c.kernels.collectives import Collectives, connected

_DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


class CollectiveKernels:
    """Kernels of `all_reduce` and `all_gather`. Without `collectives` the process is alone, and they refuse to run."""

    def __init__(self, collectives: Collectives | None = None) -> None:
        self._collectives = collectives

    def all_reduce(self, sublayer_out: Tensor, *, shards: int, dtype: str, bytes_per_token: int) -> Tensor:
        """The sum of every shard's part f32 [B, T, D], rounded once, to `dtype`."""
        together = self._together(sublayer_out, shards, bytes_per_token)
        return together.all_reduce(sublayer_out.clone(), _DTYPES[dtype])

    def all_gather(self, logits: Tensor, *, shards: int, bytes_per_token: int) -> Tensor:
        """Logits f32 [B, T, V] from every shard's [B, T, V / shards]."""
        return self._together(logits, shards, bytes_per_token).all_gather(logits, -1)

    def _together(self, x: Tensor, shards: int, bytes_per_token: int) -> Collectives:
        """Raises ValueError where there are other processes than shards, or x [B, T, ...] is not what the plan says."""
        together = connected(self._collectives, shards)
        found = x.shape[2:].numel() * x.element_size()
        if found != bytes_per_token:
            raise ValueError(f"a shard gives {found} bytes a token, and the plan says {bytes_per_token}")
        return together
