"""Mailboxes for the shards of a stage: memory of each GPU that the others of its host write into."""

from __future__ import annotations

import socket
from typing import Any

import torch
import torch.distributed as dist

from dsv41c.kernels.collectives import Mailboxes


def open_mailboxes(group: dist.ProcessGroup | None, values: int) -> Mailboxes | None:
    """Mailboxes for so many values on the current device of each process of a group; all of them call it.

    None, for all, where they are not on NVIDIA GPUs of one host that reach each other's memory.
    """
    if not _agreed(group, _reachable(group)):
        return None
    import torch.distributed._symmetric_memory as symmetric  # no public name yet

    size, device = dist.get_world_size(group), torch.device("cuda", torch.cuda.current_device())
    area: Any = None
    try:
        area = symmetric.empty(2 * size * values, dtype=torch.int64, device=device)
        area.zero_()
        torch.cuda.synchronize(device)
    except RuntimeError:
        area = None
    if not _agreed(group, area is not None):
        return None
    members = group if group is not None else dist.group.WORLD
    assert members is not None, "there are processes"
    handle = symmetric.rendezvous(area, members)
    addresses = torch.tensor(list(handle.buffer_ptrs), dtype=torch.int64, device=device)
    sequence = torch.zeros(1, dtype=torch.int32, device=device)
    torch.cuda.synchronize(device)
    return Mailboxes(dist.get_rank(group), size, values, addresses, sequence, (area, handle))


def _reachable(group: dist.ProcessGroup | None) -> bool:
    """Whether this process' GPU reaches those of all others of its group."""
    here = torch.cuda.current_device() if torch.cuda.is_available() and torch.version.cuda is not None else None
    told: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(told, (socket.gethostname(), here), group=group)
    hosts, devices = {host for host, _ in told}, [device for _, device in told]
    if here is None or None in devices or len(hosts) != 1 or len(set(devices)) != len(devices):
        return False
    return all(other == here or torch.cuda.can_device_access_peer(here, other) for other in devices)


def _agreed(group: dist.ProcessGroup | None, well: bool) -> bool:
    """Whether all processes of a group say so."""
    told: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(told, well, group=group)
    return all(told)
