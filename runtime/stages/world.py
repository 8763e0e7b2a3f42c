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
from typing import TypeVar

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store
from torch.distributed.rendezvous import rendezvous

from dsv41c.diagnostics import Diagnostic, UserFault
from dsv41c.runtime.device.families import not_runnable
from dsv41c.runtime.manifest import Manifest
from dsv41c.runtime.refusals import raise_if
from dsv41c.runtime.stages.alive import Watch
from dsv41c.runtime.stages.collectives import GroupCollectives
from dsv41c.runtime.stages.layout import Layout
from dsv41c.words import counted, shortlist

_BACKENDS = {"cpu": "gloo", "cuda": "cpu:gloo,cuda:nccl", "rocm": "cpu:gloo,cuda:nccl", "hpu": "cpu:gloo,hpu:hccl"}
T = TypeVar("T")
_PATIENCE = timedelta(days=7)  # a stage may take long; a process that is gone is noticed otherwise
_MEETING = timedelta(minutes=3)  # to wait for all processes to come


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

    def agreed(self, value: T) -> T:
        """The first process's value, for all; any that can be pickled."""
        told: list[T] = [value]
        with self.watch.over(0):
            dist.broadcast_object_list(told, 0, device=torch.device("cpu"))
        return told[0]


def processes(environment: Mapping[str, str] = os.environ) -> int:
    """How many processes were started together. Raises `UserFault` (DSV152) where the environment says no number."""
    return _number(environment, "WORLD_SIZE", 1)


def _number(environment: Mapping[str, str], name: str, least: int) -> int:
    text = environment.get(name, str(least))
    if text.isascii() and text.isdecimal() and least <= int(text[:9]):
        return int(text[:9])
    raise UserFault([_bad_variable(f"`{name}` is `{text}`, expected a number from {least} up")])


def _check_variables(environment: Mapping[str, str], size: int) -> None:
    """Raise `UserFault` (DSV152) unless all is there that processes need to meet."""
    wanted = ("RANK", "MASTER_ADDR", "MASTER_PORT")
    absent = [f"`{name}`" for name in wanted if not environment.get(name)] if size > 1 else []
    if absent:
        message = f"`WORLD_SIZE` is {size}, which takes {shortlist(absent, 3)} too"
        raise UserFault([_bad_variable(message)])
    for name in ("RANK", "MASTER_PORT"):
        _number(environment, name, 0)


def _bad_variable(message: str) -> Diagnostic:
    return Diagnostic("DSV152", message, help="start with `torchrun`, which sets all of them, or unset `WORLD_SIZE`")


def were_started(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether `torchrun`, or whoever sets its variables, started this process, be it alone."""
    return "WORLD_SIZE" in environment


@contextmanager
def joined(manifest: Manifest, *, strict: bool = False) -> Iterator[World]:
    """This process among those that were started for a plan; all leave together. `strict` as for `Engine`.

    Raises `UserFault`: DSV152 where the environment does not say which process this is, DSV858 where the device of this
    process is not here, DSV890 where the number of processes is not the plan's, DSV892 where one of them does not come,
    DSV893 where they have other plans.
    """
    layout, shards = Layout.of(manifest), manifest.target.tensor_parallel
    size, local = processes(), _number(os.environ, "LOCAL_RANK", 0)
    if size != len(layout.devices) * shards:
        raise UserFault([_another_number(manifest, layout, size)])
    _check_variables(os.environ, size)
    raise_if(not_runnable(manifest, strict=strict, only=local))
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")  # the collectives are small; multicast needs rights that few have
    if shards == 1:  # what waits for a message must not take the processors of the stage's own work
        os.environ.setdefault("NCCL_MAX_CTAS", "4")
    family = "cpu" if strict else manifest.target.family
    if family in ("cuda", "rocm"):
        torch.cuda.set_device(local)
    names = tuple(_name(layout, number, shards) for number in range(size))
    store, rank = _met(size)
    watch = Watch.start(store, rank, names)
    try:
        with watch.over():
            dist.init_process_group(_BACKENDS[family], store=store, rank=rank, world_size=size, timeout=_PATIENCE)
            members = [range(place * shards, (place + 1) * shards) for place in range(size // shards)]
            groups = [dist.new_group(list(ranks)) for ranks in members]
        shared = GroupCollectives(groups[rank // shards], watch) if shards > 1 else None
        world = World(rank, size, shards, local, names, shared, watch)
        if world.agreed(manifest.graph_sha256) != manifest.graph_sha256:
            raise UserFault([_another_plan(world, manifest)])
        yield world
        gc.collect()  # graphs with collectives in them have to go before the groups
        with watch.over():
            dist.barrier()
    finally:
        watch.stop()
    dist.destroy_process_group()


def _met(size: int) -> tuple[Store, int]:
    """The store over which all processes have met, and the rank of this one."""
    try:
        store, rank, _ = next(iter(rendezvous("env://", timeout=_MEETING)))
    except RuntimeError as error:
        message = f"{size} processes were started together, and not all of them have come within {_MEETING}"
        raise UserFault([Diagnostic("DSV892", message, help="look at what the others wrote last")]) from error
    return store, int(rank)


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
        f"{size} processes were started for plan `{manifest.name}`, which takes {wanted}: it has "
        f"{counted(places, 'device')}{each} ({', '.join(layout.devices)})",
        facts=(("processes", str(size)), ("devices", str(places)), ("tensor_parallel", str(shards))),
        help=f"start it with `torchrun --nproc-per-node {wanted} -m dsv41c run|bench PLAN ...`"
        + ("" if shards > 1 else ", or as one process, which drives all devices"),
    )


def _another_plan(world: World, manifest: Manifest) -> Diagnostic:
    return Diagnostic(
        "DSV893",
        f"{world.names[world.rank]} has another plan than {world.names[0]}: the graph of its `{manifest.name}` differs",
        help="give every process the same plan folder",
    )
