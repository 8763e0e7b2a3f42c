"""How much work something is, counted and not timed: the same on any machine, however busy."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any, NamedTuple


def calls(work: Callable[[], object]) -> int:
    """Function calls, of Python and of C, that `work` makes."""
    count = 0

    def see(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(see)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


class Growth(NamedTuple):
    """How work grows. `ratio`: 2 where it grows with size, 4 with its square; `each`: calls for one more."""

    ratio: float
    each: float


def growth(work: Callable[[int], object], size: int) -> Growth:
    """How much more work is added from twice a size to four times than from the size to twice.

    What does not grow cancels out. Work at the size is done once before, so that what is kept from it counts nowhere.
    """
    work(size)
    one, two, four = (calls(partial(work, times * size)) for times in (1, 2, 4))
    return Growth((four - two) / (two - one), (four - two) / (2 * size))
