"""What torch allocates while something runs: bytes of all storages made in it that are alive at once."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Allocations(TorchDispatchMode):
    """`peak`: the most bytes at once of storages that were made inside and let go of by nobody yet."""

    def __init__(self) -> None:
        super().__init__()
        self.peak = 0
        self._alive: dict[int, int] = {}

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = {storage._cdata for storage in _storages((args, kwargs))}
        result = func(*args, **(kwargs or {}))
        for storage in _storages(result):
            if storage._cdata not in given and storage._cdata not in self._alive:
                self._alive[storage._cdata] = storage.nbytes()
                weakref.finalize(storage, self._alive.pop, storage._cdata)
        self.peak = max(self.peak, sum(self._alive.values()))
        return result


def _storages(tree: object) -> Iterator[torch.UntypedStorage]:
    yield from (leaf.untyped_storage() for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor))
