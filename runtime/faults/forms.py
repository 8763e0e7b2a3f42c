"""Shapes and dtypes of values, as they are and as the manifest says that they should be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from dsv41c.runtime.manifest import Manifest, ValueEntry
from dsv41c.runtime.stages.layout import ratios
from dsv41c.runtime.state import DTYPES

_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_WIDE = ".engram_rows"  # the op whose rows may come as f32 as well: their reader rounds them


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of a region's call that symbols stand for: B rows of the batch, T tokens of each, the context."""

    batch: int
    tokens: int
    context: int

    @staticmethod
    def of(given: Iterable[Tensor], batch: int, context: int) -> Sizes:
        """Those of step values [B, T, ...] that a region reads: T as most of them have it."""
        counts = Counter(tensor.shape[1] for tensor in given if tensor.dim() > 1)
        return Sizes(batch, counts.most_common(1)[0][0] if counts else 0, context)


class Forms:
    """The forms of a plan's values, by id. `slots`: the rows of a pool."""

    def __init__(self, manifest: Manifest, slots: int) -> None:
        self.entries: Mapping[str, ValueEntry] = {value.id: value for value in manifest.values}
        self._slots = slots
        self._ratios = ratios(manifest)

    def ratio(self, value: str) -> int:
        """The compress ratio of the op that makes a value, 1 where it has none."""
        return self._ratios.get(value, 1)

    def expected(self, value: str, sizes: Sizes) -> tuple[int, ...]:
        """The shape that a value should have; selections, which may be narrower, at their widest."""
        entry = self.entries[value]
        if entry.scope == "session":
            return (self._slots, *(int(size) for size in entry.shape))
        return tuple(self._size(size, value, sizes) for size in entry.shape)

    def _size(self, size: int | str, value: str, sizes: Sizes) -> int:
        if isinstance(size, int):
            return size
        symbol, *parts = size.split("/")
        if size == "T/r":  # groups that the call may complete
            ratio = self.ratio(value)
            return (ratio - 1 + sizes.tokens) // ratio
        count = {"B": sizes.batch, "T": sizes.tokens, "context": sizes.context}[symbol]
        for index, part in enumerate(parts):
            count = -(-count // int(part)) if index else count // int(part)
        return count

    def said(self, value: str, sizes: Sizes) -> str:
        """The form that a value should have, to show: `bf16 [1, 5, 4, 128]`."""
        return f"{self.entries[value].dtype} {list(self.expected(value, sizes))}"

    def fits(self, value: str, tensor: object, sizes: Sizes) -> bool:
        """Whether a tensor has the form that a value should have. Of a selection the last axis may be shorter."""
        entry, wanted = self.entries[value], self.expected(value, sizes)
        dtypes = [DTYPES[entry.dtype], *[torch.float32] * (entry.producer or "").endswith(_WIDE)]
        if not isinstance(tensor, Tensor) or tensor.dtype not in dtypes or tensor.dim() != len(wanted):
            return False
        if entry.kind == "topk":
            return tuple(tensor.shape[:-1]) == wanted[:-1] and tensor.shape[-1] <= wanted[-1]
        return tuple(tensor.shape) == wanted

    def unfit(self, values: Mapping[str, object], sizes: Sizes) -> Iterator[str]:
        """The ids of values that have another form than they should; those that the manifest lacks are left out."""
        for value, tensor in values.items():
            if value in self.entries and not self.fits(value, tensor, sizes):
                yield value


def form(tensor: object) -> str:
    """The form of a tensor, to show; of anything else what it is."""
    if not isinstance(tensor, Tensor):
        return f"a {type(tensor).__name__}, no tensor"
    return f"{_name(tensor.dtype)} {list(tensor.shape)}"


def _name(dtype: torch.dtype) -> str:
    return _NAMES.get(dtype, str(dtype).removeprefix("torch."))
