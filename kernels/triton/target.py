"""What host functions have to know of the device that they launch on: sizes of tiles go by its shared memory."""

from __future__ import annotations

from functools import cache

import torch

HOPPER_SHARED = 227 * 1024
ADA_SHARED = 99 * 1024
AMD_SHARED = 64 * 1024


@cache
def shared_memory(device: torch.device) -> int:
    """Bytes of shared memory that a program may take, by compute capability; every AMD GPU counts as the smallest.

    Tensors of the CPU are Triton's interpreter's, which has no such limit.
    """
    if device.type != "cuda":
        return HOPPER_SHARED
    if torch.version.hip is not None:
        return AMD_SHARED
    major, _ = torch.cuda.get_device_capability(device)
    return HOPPER_SHARED if major >= 9 else ADA_SHARED
