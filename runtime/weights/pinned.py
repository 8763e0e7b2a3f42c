"""Memory of the host that GPUs read by themselves, to the byte: torch's own allocator takes the next power of two."""

from __future__ import annotations

import mmap
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

_EVERY_DEVICE = 1 | 2  # cudaHostRegisterPortable and cudaHostRegisterMapped, in HIP too


class _Registered(mmap.mmap):
    """Private memory that a GPU's driver knows of, from `register` until it goes."""

    address = 0

    def register(self, address: int) -> None:
        """Pin it. Raises `torch.cuda.CudaError` where the driver will not."""
        failed = int(_driver().cudaHostRegister(address, len(self), _EVERY_DEVICE))
        if failed:
            raise torch.cuda.CudaError(failed)
        self.address = address

    def __del__(self) -> None:
        if self.address:
            with suppress(Exception):  # the driver may be gone before the memory, at the end of a process
                _driver().cudaHostUnregister(self.address)


def _driver() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]


def host_rows(count: int, width: int) -> Tensor:
    """Memory uint8 [count, width] of the host, pinned where there is a GPU. Raises RuntimeError where it cannot be."""
    if not torch.cuda.is_available() or not count * width:
        return torch.empty(count, width, dtype=torch.uint8)
    memory = _Registered(-1, count * width, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    rows = torch.frombuffer(memory, dtype=torch.uint8).view(count, width)
    memory.register(rows.data_ptr())
    return rows
