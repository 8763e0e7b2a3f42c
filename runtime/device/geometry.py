"""Where a tensor is and how it lies there: what a graph takes for granted about its inputs and state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor


class Geometry(NamedTuple):
    """Address of the first element, shape, strides and storage offset in elements, and dtype."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    dtype: str

    @property
    def view(self) -> tuple[object, ...]:
        """Everything but the address: how the tensor lies in its storage, wherever that is."""
        return self[1:]

    def __str__(self) -> str:
        return f"{self.dtype} {list(self.shape)} strides {list(self.strides)} offset {self.offset} at {self.address:#x}"


def geometry(tensor: Tensor) -> Geometry:
    """The geometry of a tensor; on the meta device the address is 0."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    return Geometry(tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()), dtype)


def geometries(tensors: Mapping[str, Tensor]) -> dict[str, Geometry]:
    """The geometry of each tensor by name."""
    return {name: geometry(tensor) for name, tensor in tensors.items()}
