"""Items that are made when they are asked for, every time anew: what is decoded takes several times its bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar, overload

Source = TypeVar("Source")
Item = TypeVar("Item")


class Lazy(Sequence[Item], Generic[Source, Item]):
    """Item i is what `make` gives of the i-th source."""

    def __init__(self, sources: Sequence[Source], make: Callable[[Source], Item]) -> None:
        self._sources = sources
        self._make = make

    def __len__(self) -> int:
        return len(self._sources)

    @overload
    def __getitem__(self, index: int) -> Item: ...
    @overload
    def __getitem__(self, index: slice) -> list[Item]: ...
    def __getitem__(self, index: int | slice) -> Item | list[Item]:
        if isinstance(index, slice):
            return [self._make(source) for source in self._sources[index]]
        return self._make(self._sources[index])
