"""Which elements of a value are not finite and should be: not those that nobody wrote, or that stand for nothing.

A score of -inf is a group that is hidden. Padding rows of a batch, groups that a step leaves open, and rows of session
state that an op does not touch may hold anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dsv41c.kernels.reference.encodings import Packed, dense
from dsv41c.kernels.reference.rows import unpack
from dsv41c.runtime.manifest import ValueEntry
from dsv41c.runtime.state import row_axis
from dsv41c.runtime.touches import NOTHING, READS, WRITES, Given, Touch

_HIDDEN = "index_score"  # the op that marks what is hidden with -inf


@dataclass(frozen=True, slots=True)
class Spot:
    """What of a value is not finite: the counts of NaN and infinities, of how many elements, and the first one.

    `index` in the value, for session state in what a slot holds; `number` is its first position.
    """

    nan: int
    infinite: int
    total: int
    index: tuple[int, ...]
    value: float
    row: int
    number: int
    rows: tuple[int, ...]

    @property
    def counts(self) -> str:
        """`3 NaN and 1 infinite of 512 elements`."""
        words = [f"{count:,} {name}" for count, name in ((self.nan, "NaN"), (self.infinite, "infinite")) if count]
        return f"{' and '.join(words)} of {self.total:,} elements"


def of_step_value(
    entry: ValueEntry, tensor: Tensor, count: int, first: Sequence[int], ratio: int = 0, tokens: int = 0
) -> Spot | None:
    """The spot of a step value [B, T, ...], of whose batch the first `count` rows are sessions'.

    `first`: the position of axis 1's first element in each of them. With a `ratio` axis 1 counts groups, from the open
    one on, of which a call of `tokens` completes some.
    """
    if entry.kind == "temporary" and tensor.dtype == torch.uint8:  # window rows, as the ring takes them
        tensor = unpack("window_kv", tensor)
    if not tensor.is_floating_point():
        return None
    own = tensor[:count]
    bad = ~own.isfinite()
    if (entry.producer or "").endswith(_HIDDEN):
        bad &= own != float("-inf")
    if ratio:
        numbers = torch.tensor([[position // ratio] for position in first[:count]], device=own.device)
        numbers = numbers + torch.arange(own.shape[1], device=own.device)
        ended = torch.tensor([[(position + tokens) // ratio] for position in first[:count]], device=own.device)
        bad &= (numbers < ended)[..., None]
    if not bad.any():
        return None
    index = tuple(int(place) for place in bad.nonzero()[0])
    row, place = index[0], index[1]
    number = (first[row] // ratio + place) * ratio if ratio else first[row] + place
    return _spot(own, bad, index, row, number)


def of_state(
    kind: str, pool: Tensor, slots: Tensor, touch: Touch, count: int, ratio: int, ended: Sequence[int] | None = None
) -> Spot | None:
    """The spot of the rows that an op touches of a pool [slots, ...], in the first `count` rows of the batch.

    `ended`: by session, how many groups are complete after the step, where open ones do not count.
    """
    if pool.numel() == 0 or not (pool.is_floating_point() or pool.dtype == torch.uint8):
        return None
    by_row = pool if row_axis(kind) == 1 else pool.transpose(1, row_axis(kind))
    values = unpack(kind, by_row[slots[:count, None], touch.rows[:count]])
    used = touch.used[:count] & (touch.numbers[:count] != NOTHING)
    if ended is not None:
        used = used & (touch.numbers[:count] < torch.tensor(ended[:count], device=pool.device)[:, None])
    bad = ~values.isfinite() & used.view(*used.shape, *[1] * (values.dim() - 2))
    if not bad.any():
        return None
    index = tuple(int(place) for place in bad.nonzero()[0])
    row, column = index[0], index[1]
    inside = (int(touch.rows[row, column]), *index[2:])
    number = int(touch.numbers[row, column])
    shown = (inside[1], inside[0], *inside[2:]) if row_axis(kind) == 2 else inside
    return _spot(values, bad, index, row, number * ratio, shown)


def _spot(
    values: Tensor, bad: Tensor, index: tuple[int, ...], row: int, number: int, shown: tuple[int, ...] | None = None
) -> Spot:
    nan = int((values.isnan() & bad).sum())
    rows = tuple(bad.flatten(1).any(1).nonzero()[:, 0].tolist())
    total = int(bad.sum())
    value = float(values[index])
    return Spot(nan, total - nan, values.numel(), index if shown is None else shown, value, row, number, rows)


def reads_of(kind: str, port: str, given: Given) -> Touch | None:
    """The rows that an op of a kind reads of the state at a port; None where it reads none."""
    touches = READS.get(kind, {}).get(port)
    return None if touches is None else touches(given)


def writes_of(kind: str, port: str, given: Given) -> Touch | None:
    """The rows that an op of a kind writes of the state at a port; None where it writes none."""
    touches = WRITES.get(kind, {}).get(port)
    return None if touches is None else touches(given)


def unfit_elements(weight: object, *, masks: bool = False) -> str | None:
    """What of a weight is not finite, to show; -inf is fine where it `masks`. Lists are not looked at."""
    if isinstance(weight, Packed):
        weight = dense(weight, torch.float32)
    if not isinstance(weight, Tensor) or not weight.is_floating_point():
        return None
    bad = ~weight.isfinite()
    if masks:
        bad &= weight != float("-inf")
    if not bad.any():
        return None
    index = bad.nonzero()[0].tolist()
    return f"{int(bad.sum()):,} of {weight.numel():,} elements, {float(weight[tuple(index)])} first, at {index}"
