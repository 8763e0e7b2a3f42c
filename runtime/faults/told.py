"""From what went wrong inside a step to the finding for it: which op, how it ran, on which stage, for whose tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, NoReturn

from dsv41c.diagnostics import Diagnostic, UserFault
from dsv41c.runtime.device.findings import span
from dsv41c.runtime.faults.errors import DEVICE, code_of, said, said_in_full, way_out
from dsv41c.runtime.manifest import OpEntry, RegionEntry
from dsv41c.runtime.stages.layout import Stage
from dsv41c.words import shortlist

if TYPE_CHECKING:
    from dsv41c.runtime.stages.crossing import Rows

How = Literal["eager", "warm-up", "capture", "replay", "waiting"]
Facts = tuple[tuple[str, str], ...]
_MOST_SESSIONS = 6
_MADE_HERE = "report this: every op was waited for, so this one made it. The process can use its device no more"


@dataclass(frozen=True, slots=True)
class Found:
    """A finding about the ops of a call in a region, before it is known in which step.

    `more`: facts that are worth less than the step's. `exact`: no other op made it.
    """

    code: str
    message: str
    ops: tuple[OpEntry, ...]
    region: RegionEntry
    facts: Facts
    help: str
    notes: tuple[str, ...] = ()
    more: Facts = ()
    exact: bool = True


class StepError(Exception):
    """Carries what was found out of a region; its cause is what a kernel raised, if it raised."""

    def __init__(self, found: Found) -> None:
        self.found = found
        super().__init__(f"{found.code}: {found.message}")

    def made_here(self) -> StepError:
        """The same, where every op before was waited for."""
        late = not self.found.exact
        return StepError(replace(self.found, exact=True, help=_MADE_HERE if late else self.found.help))


@dataclass(frozen=True, slots=True)
class Where:
    """A piece of work of a step: how it ran, on which stage and device, and its regions, in order.

    `rows`: whose tokens, None for padding rows alone. `unknown`: the regions asked for since the device was last known
    to be well, and `begun`, the rows of the steps that they are of.
    """

    how: How
    stage: Stage
    device: str
    regions: Sequence[RegionEntry]
    rows: Rows | None
    unknown: Sequence[RegionEntry] = ()
    begun: tuple[Rows, ...] = ()

    @property
    def facts(self) -> Facts:
        """Step, stage and sessions, to show."""
        kind = "decode" if self.rows is None or self.rows.tokens == 1 else "prefill"
        stage = f"{self.stage.index} on {self.device}"
        return ("step", f"{kind}, {self.how}"), ("stage", stage), ("sessions", sessions(self.rows))


def raise_told(error: Exception, where: Where, *, of_device: bool = False) -> NoReturn:
    """Raise `UserFault` for what went wrong in a piece of work, or the error itself where it is nothing of the kind.

    Leaving a capture may fail because of what failed inside: then that is told. `of_device`: all that was done was to
    ask the device, so what torch raises is the device's.
    """
    inner = next((each for each in _chain(error) if isinstance(each, StepError | UserFault)), None)
    if isinstance(inner, UserFault):
        raise inner
    if inner is not None:
        raise UserFault([_of_op(inner.found, where)]) from inner
    code = code_of(error)
    if code == "DSV840":
        if not of_device or not isinstance(error, RuntimeError):
            raise error
        code = DEVICE
    raise UserFault([_of_work(code, error, where)]) from error


def _chain(error: BaseException | None) -> Iterable[BaseException]:
    """An error, and those that it came from or came on top of."""
    seen: list[BaseException] = []
    while error is not None and error not in seen:
        seen.append(error)
        error = error.__cause__ or error.__context__
    return seen


def _of_op(found: Found, where: Where) -> Diagnostic:
    notes = found.notes if found.exact else (*found.notes, *_since(where, found.region))
    place = found.ops[0].span if found.ops else found.region.span
    facts = (*found.facts, *where.facts, *found.more)
    return Diagnostic(found.code, found.message, span(place), facts=facts, help=found.help, notes=notes)


def _of_work(code: str, error: Exception, where: Where) -> Diagnostic:
    """The finding where no op is known: a device failed at a graph, or was waited for."""
    first, last = where.regions[0], where.regions[-1]
    regions = first.id if first is last else f"{first.id} to {last.id}"
    doing = "while it was waited for" if where.how == "waiting" else f"at the {where.how} of `{regions}`"
    message = f"device {where.device} has no memory left {doing}"
    if code == DEVICE:
        message = f"device {where.device} reported an error {doing}"
    elif code != "DSV841":
        message = f"a kernel cannot be compiled or launched {doing}"
    return Diagnostic(
        code,
        f"{message}: {said(error)}",
        span(first.span),
        facts=(*said_in_full(error), ("region", regions), *where.facts),
        help=way_out(code, error),
        notes=tuple(_since(where, last)) if code == DEVICE else (),
    )


def _since(where: Where, last: RegionEntry) -> Iterable[str]:
    """What a device error may come from: a device tells of it at some later call."""
    first = where.unknown[0] if where.unknown else last
    whose = sessions(where.begun[0] if where.begun else where.rows)
    earlier = whose != sessions(where.rows)
    of = f" of an earlier step ({whose})" if earlier else ""
    one = first.id == last.id and not earlier
    range_ = f"in `{first.id}`" if one else f"somewhere from `{first.id}`{of} to `{last.id}`"
    yield f"devices tell of an error late: it was made {range_}, which is since the device was last known to be well"


def sessions(rows: Rows | None) -> str:
    """Whose tokens a step has: `slot 0 (epoch 1) at positions 5-8`."""
    if rows is None:
        return "none: padding rows alone"
    words = [f"{session(rows, index)} at {_positions(at, rows.tokens)}" for index, at in enumerate(rows.positions)]
    return shortlist(words, _MOST_SESSIONS)


def session(rows: Rows, index: int) -> str:
    """A session of a step, by its place in the batch: `slot 0 (epoch 1)`."""
    epoch = f" (epoch {rows.epochs[index]})" if rows.epochs else ""
    return f"slot {rows.slots[index]}{epoch}"


def _positions(first: int, count: int) -> str:
    return f"position {first}" if count == 1 else f"positions {first}-{first + count - 1}"
