"""The engine: a plan with its weights and state pools, and the sessions that share them.

Every input is checked before any state is touched, so a refused call leaves all sessions as they were. A step that
fails half-way for another reason (out of memory, an interrupt, a bug) marks its sessions broken. Not for several
threads.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor

from dsv41c.diagnostics import Diagnostic
from dsv41c.kernels.collectives import Collectives
from dsv41c.runtime import refusals
from dsv41c.runtime.device.families import not_runnable
from dsv41c.runtime.executor import LoadedPlan
from dsv41c.runtime.recording import Trace
from dsv41c.runtime.session import Session
from dsv41c.runtime.stages.collectives import other_shards
from dsv41c.runtime.stages.crossing import Rows
from dsv41c.runtime.stages.transport import Ended
from dsv41c.runtime.stages.world import World
from dsv41c.runtime.steps import Steps
from dsv41c.runtime.tail import TAILS, Tail, TailKind, TailRows

Batch = Mapping[Session, int] | Iterable[tuple[Session, int]]


class Started:
    """Steps that are under way, each of several sessions: `logits()` waits for them."""

    def __init__(self, parts: Sequence[tuple[Sequence[Session], Ended]]) -> None:
        self._parts = parts

    def logits(self) -> dict[Session, Tensor]:
        """f32 [V] by session. Raises what ended a step, whose sessions are broken then."""
        found: dict[Session, Tensor] = {}
        for sessions, ended in self._parts:
            with _breaking(sessions):
                rows = ended.logits()
            alone = len(sessions) == 1  # of several, a row that is kept would keep all
            own = (row[-1] if alone else row[-1].clone() for row in rows)
            found.update(zip(sessions, own, strict=True))
        return found


class Engine:
    """Runs sessions of one plan, on devices of the plan's family. What goes in and comes out is on the host.

    `weights` may be given where another engine of the same plan has loaded them already. `debug` (DSV41C_DEBUG): 1
    keeps the seconds of each step in `timings`; 2 also fills empty slots with NaN, so that a read of what another
    session left shows, checks after each region that state was updated in place and that no NaN came out, and keeps a
    ledger of who wrote each row (`foreign_reads`). Fused calls then run op by op where steps are eager; a captured step
    that would read a foreign row ends with DSV848 instead.

    With `check_finite` every value is looked at when it is made, and the first that is not finite ends the step with
    DSV845, or DSV844 where it has another form than the plan says; a weight that is not finite is DSV846. Nothing is
    captured then, and each op is waited for, which names the op of a device's error too.

    Steps of one token are captured as the plan says, on devices that capture. `strict` (DSV41C_STRICT) runs a plan of
    any family on the CPU instead, and holds those steps to the rules of the family's graphs (DSV870 to DSV877); where
    the plan has native kernels, plain torch stands in for them there.

    Where only the last logits of a feed are wanted, `tail` says which rows regions compute. `exact`: those at its end
    that these and the state after it need, as the plan says; the result is that of every row, for less. `every`: all,
    and the last one's logits.
    `bounded`: in regions that may leave rows out, no more than a window of them (bounded replay). That is less again,
    but an approximation: of a feed longer than the window, logits and window state are close to the exact ones.

    Of a plan that several processes run (`joined`), each has an engine with its `world`, and calls it as the others do:
    the same methods in the same order with the same arguments. All get the same results. `collectives` alone are for
    processes that share the stages of a plan on one device.
    """

    def __init__(
        self,
        plan: LoadedPlan,
        checkpoint: Path | str,
        *,
        weights: Mapping[str, object] | None = None,
        kernels: object | None = None,
        debug: int = 0,
        check_finite: bool = False,
        strict: bool = False,
        tail: TailKind = "exact",
        collectives: Collectives | None = None,
        world: World | None = None,
    ) -> None:
        collectives = world.collectives if world is not None else collectives
        here = None if world is None else world.local
        unfit = [*not_runnable(plan.manifest, strict=strict, only=here), *other_shards(plan.manifest, collectives)]
        refusals.raise_if([*unfit, *refusals.unknown_tail(tail)])
        self.manifest = plan.manifest
        self.debug = debug
        self.tail: TailKind = tail
        self._tail_rows = {kind: TailRows.of(plan.manifest, kind) for kind in TAILS}
        self.steps = Steps(
            plan,
            checkpoint,
            weights=weights,
            kernels=kernels,
            checks=debug >= 2,
            check_finite=check_finite,
            strict=strict,
            collectives=collectives,
            world=world,
        )
        self.layout, self.devices = self.steps.layout, self.steps.devices
        self.device = self.devices[min(self.devices)]
        self.weights, self.pools = self.steps.weights, self.steps.pools
        self.executor, self.captured = self.steps.executor, self.steps.captured
        self.buckets = self.steps.buckets
        self.epochs = [0] * self.pools.slots
        self.timings: list[tuple[int, int, float]] = []  # sessions, tokens and seconds of each step, with debug >= 1
        self._free = list(range(self.pools.spare))

    @property
    def foreign_reads(self) -> dict[tuple[str, str], int]:
        """How many rows were read, and masked, that were not the reader's own, by state kind and op kind.

        Empty where there was none. Counted with debug 2 only. Where this process runs some of the stages, theirs.
        """
        return {} if self.pools.ledger is None else dict(self.pools.ledger.foreign)

    # --- sessions ---------------------------------------------------------------------------------------------------

    @property
    def free_sessions(self) -> int:
        """How many sessions can still be opened."""
        return len(self._free)

    def open(self) -> Session:
        """An empty session. Raises `UserFault` (DSV852) where every slot is taken."""
        refusals.raise_if(refusals.no_slot(self.manifest, len(self._free)))
        slot = self._free.pop(0)
        self._start(slot)
        return Session(self, slot, self.epochs[slot])

    def fork(self, session: Session) -> Session:
        """A new session with the same tokens and state. Raises `UserFault` as `open` and `feed` do."""
        refusals.raise_if(self._unusable(session))
        copy = self.open()
        self.pools.copy(session.slot, copy.slot)
        copy.length = session.length
        return copy

    def reset(self, session: Session) -> None:
        """Make a session empty again, broken or not. Raises `UserFault` where it is closed or not of this engine."""
        refusals.raise_if(refusals.not_of(self, session))
        self._start(session.slot)
        session.epoch, session.length, session.broken = self.epochs[session.slot], 0, False

    def close(self, session: Session) -> None:
        """Give a session's slot back. Closing a closed session does nothing."""
        refusals.raise_if(refusals.foreign(self, session))
        if not session.closed:
            self.epochs[session.slot] += 1
            if self.pools.ledger is not None:
                self.pools.ledger.close(session.slot)
            self._free = sorted([*self._free, session.slot])

    def _start(self, slot: int) -> None:
        self.epochs[slot] += 1
        if self.debug >= 2:
            self.pools.poison(slot)
        if self.pools.ledger is not None:
            self.pools.ledger.start(slot, self.epochs[slot])
        self.pools.reset(slot)

    def _unusable(self, session: Session) -> list[Diagnostic]:
        return refusals.not_of(self, session) or refusals.broken(session)

    # --- steps ------------------------------------------------------------------------------------------------------

    def feed(
        self,
        session: Session,
        ids: Iterable[int],
        *,
        all_logits: bool = False,
        chunk: int | None = None,
        trace: Trace | None = None,
    ) -> Tensor:
        """Append tokens to a session; f32 logits [V] of the last token, or [T, V] of all with `all_logits`.

        They are taken in chunks of `chunk`, at most and by default the plan's `prefill_chunk`. `trace` records the step
        values. Raises `UserFault` before anything is touched: an id that is no token, more tokens than the session has
        room for, no tokens at all, a chunk below 1, a session that is closed, broken or not of this engine.
        """
        tokens = refusals.token_list(ids)
        faults = self._unusable(session)
        if not faults:
            faults = [
                *refusals.not_tokens(tokens, self.manifest, session.length),
                *refusals.too_long(session, len(tokens)),
                *refusals.bad_chunk(chunk),
            ]
        refusals.raise_if(faults)
        size = min(chunk or self.manifest.runtime.prefill_chunk, self.manifest.runtime.prefill_chunk)
        rows = None if all_logits or trace is not None else self._tail_rows[self.tail]
        kept: list[Tensor] = []
        under_way: deque[Ended] = deque()

        def wait() -> None:
            with _breaking([session]):
                logits = under_way.popleft().logits()[0]
            if not all_logits:  # a chunk's logits are large; let them go
                kept.clear()
            kept.append(logits if all_logits else logits[-1:].clone())

        for start in range(0, len(tokens), size):
            part = tokens[start : start + size]
            after = len(tokens) - start - len(part)
            tail = None if rows is None else Tail(rows, len(part), start, after)
            under_way.append(self._begin([session], [part], trace, tail=tail))
            if len(under_way) == self.steps.in_flight:
                wait()
        while under_way:
            wait()
        return torch.cat(kept) if all_logits else kept[0][0]

    def decode(self, batch: Batch, *, trace: Trace | None = None) -> dict[Session, Tensor]:
        """Append one token to each of several sessions; f32 logits [V] by session.

        The batch is padded to the next decode bucket with rows of the spare slot; a batch above the largest bucket
        takes several steps. Raises `UserFault` as `feed` does, with the findings of every session, before anything is
        touched.
        """
        return self.start(batch, trace=trace).logits()

    def start(self, batch: Batch, *, trace: Trace | None = None) -> Started:
        """`decode` without waiting: while one batch is in a later stage, another can be in an earlier one.

        The sessions count as fed. Results come in the order of starts, and have to be waited for in that order.
        """
        pairs = [(session, refusals.token(token)) for session, token in _pairs(batch)]
        refusals.raise_if(self._batch_faults(pairs))
        parts = []
        for part in _parts(pairs, self.buckets[-1]):
            sessions = [session for session, _ in part]
            parts.append((sessions, self._begin(sessions, [[token] for _, token in part], trace, padded=True)))
        return Started(parts)

    def _batch_faults(self, pairs: Sequence[tuple[Session, object]]) -> list[Diagnostic]:
        if not pairs:
            return refusals.not_tokens([], self.manifest, 0)
        faults = refusals.repeated([session for session, _ in pairs])
        for session, token in pairs:
            unusable = self._unusable(session)
            faults += unusable
            if not unusable:
                faults += refusals.not_tokens([token], self.manifest, session.length)
                faults += refusals.too_long(session, 1)
        return faults

    def _begin(
        self,
        sessions: Sequence[Session],
        rows: Sequence[Sequence[int]],
        trace: Trace | None,
        *,
        padded: bool = False,
        tail: Tail | None = None,
    ) -> Ended:
        """Begin a step of equally long rows; it ends with f32 logits [len(sessions), T, V]. Checks nothing.

        With a `tail`, eager steps compute its rows: `Executor.run`.
        """
        began, width, size = time.perf_counter(), len(rows[0]), len(sessions)
        is_captured = self.steps.is_captured(width, trace)
        if padded or is_captured:
            size = self.steps.bucket(size)
        padding = size - len(sessions)
        slots = tuple(session.slot for session in sessions)
        positions = tuple(session.length for session in sessions)
        epochs = tuple(session.epoch for session in sessions)
        places = Rows(slots, positions, width, max(positions) + width, padding, None if is_captured else tail, epochs)
        if is_captured:
            self.steps.prepare(places.context)
        with _breaking(sessions):
            ended = self.steps.begin([*rows, *[[0] * width] * padding], places, trace)
            for session in sessions:
                session.length += width
        return self._timed(ended, len(sessions), width, began) if self.debug >= 1 else ended

    def _timed(self, ended: Ended, sessions: int, width: int, began: float) -> Ended:
        def wait() -> Tensor:
            logits = ended.logits()
            self.timings.append((sessions, width, time.perf_counter() - began))
            return logits

        return Ended(wait)


@contextmanager
def _breaking(sessions: Sequence[Session]) -> Iterator[None]:
    """Marks the sessions broken where the step inside does not come to its end."""
    try:
        yield
    except BaseException:
        for session in sessions:
            session.broken = True
        raise


def _pairs(batch: Batch) -> Iterable[tuple[Session, int]]:
    return batch.items() if isinstance(batch, Mapping) else batch


def _parts(pairs: Sequence[tuple[Session, int]], size: int) -> Iterator[list[tuple[Session, int]]]:
    iterator = iter(pairs)
    while part := list(islice(iterator, size)):
        yield part
