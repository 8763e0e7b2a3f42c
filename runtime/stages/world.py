"""Several processes on one plan: each runs a place, or one shard of it, and all make the same calls in the same order.

Starting them is `torchrun`'s work (or anybody's who sets RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT).
Rank = place * shards + shard. Numbers on the host go over gloo, tensors of a device over its family's own backend.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from dsv41c.diagnostics import Diagnostic, UserFault
from dsv41c.runtime.manifest import Manifest
from dsv41c.runtime.stages.alive import Watch
from dsv41c.runtime.stages.collectives import GroupCollectives
from dsv41c.runtime.stages.layout import Layout

_BACKENDS = {"cpu": "gloo", "cuda": "cpu:gloo,cuda:nccl", "rocm": "cpu:gloo,cuda:nccl", "hpu": "cpu:gloo,hpu:hccl"}
_PATIENCE = timedelta(days=7)  # a process may wait for a person; one that is gone is noticed otherwise


@dataclass(frozen=True, slots=True)
class World:
    """The processes of a plan, seen from one. `local` is its device's number on its host."""

    rank: int
    size: int
    shards: int
    local: int
    names: tuple[str, ...]
    collectives: GroupCollectives | None
    watch: Watch

    @property
    def place(self) -> int:
        """The place that this process runs."""
        return self.rank // self.shards

    @property
    def shard(self) -> int:
        """Its shard of it."""
        return self.rank % self.shards

    def beside(self, place: int) -> int:
        """The rank of the same shard of another place."""
        return place * self.shards + self.shard

    def agreed(self, number: int) -> int:
        """The first process's number, for all."""
        told = torch.tensor([number], dtype=torch.int64)
        dist.broadcast(told, 0)
        return int(told)


def processes(environment: Mapping[str, str] = os.environ) -> int:
    """How many processes were started together."""
    return int(environment.get("WORLD_SIZE", "1"))


@contextmanager
def joined(manifest: Manifest) -> Iterator[World]:
    """This process among those that were started for a plan; all leave together.

    Raises `UserFault` (DSV890) where their number is not the plan's.
    """
    layout, shards = Layout.of(manifest), manifest.target.tensor_parallel
    size = processes()
    if size != len(layout.devices) * shards:
        raise UserFault([_another_number(manifest, layout, size)])
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")  # the collectives are small; multicast needs rights that few have
    local = int(os.environ.get("LOCAL_RANK", "0"))
    if manifest.target.family in ("cuda", "rocm"):
        torch.cuda.set_device(local)
    dist.init_process_group(_BACKENDS[manifest.target.family], timeout=_PATIENCE)
    rank = dist.get_rank()
    names = tuple(_name(layout, number, shards) for number in range(size))
    groups = [dist.new_group([place * shards + shard for shard in range(shards)]) for place in range(size // shards)]
    shared = GroupCollectives(groups[rank // shards]) if shards > 1 else None
    watch = Watch.start(rank, names)
    try:
        yield World(rank, size, shards, local, names, shared, watch)
        gc.collect()  # graphs with collectives in them have to go before the groups
        dist.barrier()
    finally:
        watch.stop()
    dist.destroy_process_group()


def _name(layout: Layout, rank: int, shards: int) -> str:
    """`process 2 (stages 1, 3 on cpu:1, shard 0 of 2)`."""
    place, shard = divmod(rank, shards)
    stages = [str(stage.index) for stage in layout.stages if stage.place == place]
    what = f"{'stage' if len(stages) == 1 else 'stages'} {', '.join(stages)} on {layout.devices[place]}"
    return f"process {rank} ({what}{f', shard {shard} of {shards}' if shards > 1 else ''})"


def _another_number(manifest: Manifest, layout: Layout, size: int) -> Diagnostic:
    shards, places = manifest.target.tensor_parallel, len(layout.devices)
    wanted = places * shards
    each = f", {shards} for each," if shards > 1 else ""
    return Diagnostic(
        "DSV890",
        f"{size} processes were started for plan `{manifest.name}`, which takes {wanted}: it has {places} devices{each}"
        f" ({', '.join(layout.devices)})",
        facts=(("processes", str(size)), ("devices", str(places)), ("tensor_parallel", str(shards))),
        help=f"start it with `torchrun --nproc-per-node {wanted} -m dsv41c run ...`"
        + ("" if shards > 1 else ", or as one process, which drives all devices"),
    )
