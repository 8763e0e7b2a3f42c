"""The collectives of a stage's shards, on `torch.distributed`: any backend, gloo on CPUs and NCCL on GPUs.

What is whole in every process (state of sessions, selections, routing) is computed by each from the same sums, and has
to come out the same on each: processes are on devices of one kind, with as many threads.
"""

from __future__ import annotations

from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import Tensor

from dsv41c.diagnostics import Diagnostic
from dsv41c.kernels.collectives import Collectives, Mailboxes
from dsv41c.runtime.manifest import Manifest
from dsv41c.runtime.stages.alive import Watch
from dsv41c.runtime.stages.mailboxes import open_mailboxes

__all__ = ["Collectives", "GroupCollectives", "other_shards"]

# Bytes above which parts are rounded before they are gathered: 84 MB of two H200s took 300 us so, and 377 with a copy,
# one exchange and rounding. An exchange of little takes 16; where it begins to pay was not measured.
_MUCH = 1 << 20


class GroupCollectives:
    """The processes of a group, in its order; of all processes without one. `watch` tells who has gone."""

    def __init__(self, group: dist.ProcessGroup | None = None, watch: Watch | None = None) -> None:
        self._group = group
        self._over = nullcontext if watch is None else watch.over
        self._boxes: Mailboxes | None = None
        self._boxed = 0  # values that mailboxes were asked for, 0 before that
        self.size = dist.get_world_size(group)
        self.rank = dist.get_rank(group)

    def all_reduce(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """The sum of every process's `x`, rounded once, to `dtype`; the same bits on each. `x` may be written over.

        Of much on GPUs each sums a part and rounds it, and all gather those, which moves fewer bytes.
        """
        total = x.contiguous()
        much = total.nbytes > _MUCH and total.numel() % self.size == 0 and dtype.itemsize < x.dtype.itemsize
        if x.device.type != "cuda" or not much:
            with self._over():
                dist.all_reduce(total, group=self._group)
            return total.to(dtype)
        part = total.new_empty(total.numel() // self.size)
        rounded = torch.empty(total.shape, dtype=dtype, device=total.device)
        with self._over():
            dist.reduce_scatter_tensor(part, total.flatten(), group=self._group)
            dist.all_gather_into_tensor(rounded.flatten(), part.to(dtype), group=self._group)
        return rounded

    def all_gather(self, x: Tensor, axis: int) -> Tensor:
        """Every process's `x`, in the order of ranks along an axis; a new tensor."""
        x = x.contiguous()
        parts = [torch.empty_like(x) for _ in range(self.size)]
        with self._over():
            dist.all_gather(parts, x, group=self._group)
        return torch.cat(parts, dim=axis)

    def mailboxes(self, values: int) -> Mailboxes | None:
        """Mailboxes for so many values, made at the first call; None where devices do not reach each other's memory.

        Raises ValueError where a later call wants more.
        """
        if not self._boxed:
            with self._over():
                self._boxes = open_mailboxes(self._group, values)
            self._boxed = values
        if values > self._boxed:
            raise ValueError(f"mailboxes hold {self._boxed} values, and {values} are to be sent")
        return self._boxes


def other_shards(manifest: Manifest, collectives: Collectives | None) -> list[Diagnostic]:
    """The finding (DSV858) where a plan's stages have another number of shards than there are processes for them."""
    shards, processes = manifest.target.tensor_parallel, collectives.size if collectives is not None else 1
    if shards == processes:
        return []
    return [
        Diagnostic(
            "DSV858",
            f"plan `{manifest.name}` compiles but does not run here: its `tensor_parallel` is {shards}, and the number "
            f"of processes that share a stage here is {processes}",
            facts=(("target.tensor_parallel", str(shards)), ("processes for a stage", str(processes))),
            help="start as many processes for each stage, or compile it for these: `--set placement.tensor_parallel=N`",
        )
    ]
