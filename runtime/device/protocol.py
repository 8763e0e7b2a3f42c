"""What the runtime asks of a device, and how a captured piece of work is named and described."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from dsv41c.runtime.manifest import OpEntry

OnOp = Callable[[OpEntry], None]


@dataclass(frozen=True, slots=True)
class GraphKey:
    """Which graph: `bucket` rows, a `context` that bounds positions, and the range of regions `first` to `last`.

    Regions are counted as in the manifest, `last` included.
    """

    bucket: int
    context: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Work:
    """A range of regions as a call without arguments. Everything it touches stays where it is from call to call.

    `call(on_op)` runs it and returns what leaves it, by value id; `on_op`, where given, hears of each op before its
    kernel runs. The other three say what it may touch, as that is now: `inputs` are read, static buffers and what
    earlier work left, by name; `state` are whole pools, updated in place, by the id of the value they store;
    `constants` are weights and tables.
    """

    name: str
    span: str
    call: Callable[[OnOp | None], dict[str, Tensor]]
    inputs: Callable[[], Mapping[str, Tensor]]
    state: Callable[[], Mapping[str, Tensor]]
    constants: Callable[[], Iterator[Tensor]]

    def reads(self) -> dict[str, Tensor]:
        """Inputs and state by name."""
        return {**self.inputs(), **self.state()}


class Device(Protocol):
    """A device of one family."""

    @property
    def place(self) -> torch.device:
        """Where tensors of this device are."""
        ...

    @property
    def captures(self) -> bool:
        """Whether decode steps go through `capture` and `replay`, or are called as they are."""
        ...

    def warm_up(self, work: Work) -> None:
        """Run work once, for what is made at a first call and kept."""
        ...

    def capture(self, key: GraphKey, work: Work) -> dict[str, Tensor]:
        """Keep work under a key; its outputs by value id, at the addresses where each replay leaves them."""
        ...

    def replay(self, key: GraphKey) -> None:
        """Run what is kept under a key on what its inputs and state hold now."""
        ...

    def release(self) -> None:
        """Drop everything kept."""
        ...

    def copy(self, source: Tensor, target: Tensor) -> None:
        """Copy values into a tensor, from the host or the device."""
        ...

    def synchronize(self) -> None:
        """Wait until everything asked for is done."""
        ...
