"""The engine: a plan with its weights and state pools, and the sessions that share them.

Every input is checked before any state is touched, so a refused call leaves all sessions as they were. A step that
fails half-way for another reason (out of memory, an interrupt, a bug) marks its sessions broken. Not for several
threads.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor

from dsv41c.diagnostics import Diagnostic
from dsv41c.kernels.collectives import Collectives
from dsv41c.kernels.fusion import NATIVE_VARIANT
from dsv41c.kernels.registry import kernels_for
from dsv41c.kernels.step import Step
from dsv41c.runtime import refusals
from dsv41c.runtime.captured import CapturedSteps
from dsv41c.runtime.constants import make_constants
from dsv41c.runtime.device.families import device_for, kernel_variants, not_runnable
from dsv41c.runtime.executor import Executor, LoadedPlan
from dsv41c.runtime.manifest import Manifest
from dsv41c.runtime.recording import Trace
from dsv41c.runtime.session import Session
from dsv41c.runtime.stages.collectives import other_shards
from dsv41c.runtime.stages.crossing import Rows
from dsv41c.runtime.stages.layout import Layout
from dsv41c.runtime.stages.transport import LocalTransport
from dsv41c.runtime.stages.weights import placed
from dsv41c.runtime.state import Pools
from dsv41c.runtime.tail import TAILS, Tail, TailKind, TailRows
from dsv41c.runtime.weights.bind import bind

Batch = Mapping[Session, int] | Iterable[tuple[Session, int]]


def load_weights(manifest: Manifest, checkpoint: Path | str, shard: int = 0) -> dict[str, object]:
    """Every weight and constant of a plan by id, those of a shard where processes share its stages.

    Raises `UserFault` with all findings where they do not fit.
    """
    bound = bind(manifest, Path(checkpoint), shard)
    weights: dict[str, object] = {entry.id: bound[entry.id] for entry in manifest.weights}
    return weights | make_constants(manifest, Path(checkpoint), shard)


class Engine:
    """Runs sessions of one plan, on devices of the plan's family. What goes in and comes out is on the host.

    `weights` may be given where another engine of the same plan has loaded them already. `debug` (DSV41C_DEBUG): 1
    keeps the seconds of each step in `timings`; 2 also fills empty slots with NaN, so that a read of what another
    session left shows, and checks after each region that state was updated in place and that no NaN came out.

    Steps of one token are captured as the plan says, on devices that capture. `strict` (DSV41C_STRICT) runs a plan of
    any family on the CPU instead, and holds those steps to the rules of the family's graphs (DSV870 to DSV877); where
    the plan has native kernels, plain torch stands in for them there.

    Where only the last logits of a feed are wanted, `tail` says which rows regions compute. `exact`: those at its end
    that these and the state after it need, as the plan says; the result is that of every row, for less. `every`: all,
    and the last one's logits.
    `bounded`: in regions that may leave rows out, no more than a window of them (bounded replay). That is less again,
    but an approximation: of a feed longer than the window, logits and window state are close to the exact ones.

    Of a plan whose stages several processes share, each process has an engine with `collectives` of them, and calls it
    as the others do: the same methods in the same order with the same arguments. All get the same results.
    """

    def __init__(
        self,
        plan: LoadedPlan,
        checkpoint: Path | str,
        *,
        weights: Mapping[str, object] | None = None,
        kernels: object | None = None,
        debug: int = 0,
        strict: bool = False,
        tail: TailKind = "exact",
        collectives: Collectives | None = None,
    ) -> None:
        unfit = [*not_runnable(plan.manifest, strict=strict), *other_shards(plan.manifest, collectives)]
        refusals.raise_if([*unfit, *refusals.unknown_tail(tail)])
        self.manifest = plan.manifest
        self.debug = debug
        self.tail: TailKind = tail
        self._tail_rows = {kind: TailRows.of(plan.manifest, kind) for kind in TAILS}
        self.layout = Layout.of(plan.manifest)
        self.devices = {
            place: device_for(plan.manifest, name=name, strict=strict, checks=debug >= 2)
            for place, name in enumerate(self.layout.devices)
        }
        self.device = self.devices[0]
        shard = collectives.rank if collectives is not None else 0
        loaded = weights if weights is not None else load_weights(plan.manifest, checkpoint, shard)
        places = {place: device.place for place, device in self.devices.items()}
        self.weights = placed(loaded, plan.manifest, self.layout, places)
        self.pools = Pools(plan.manifest, {self.layout.devices[place]: device for place, device in places.items()})
        family = plan.manifest.target.family
        eager, captured = kernel_variants(plan.manifest, strict=strict)
        chosen = kernels if kernels is not None else kernels_for(family, eager, collectives)
        self.executor = Executor(
            plan, chosen, self.weights, self.pools, checks=debug >= 2, transport=LocalTransport(places)
        )
        self.epochs = [0] * self.pools.slots
        self.timings: list[tuple[int, int, float]] = []  # sessions, tokens and seconds of each step, with debug >= 1
        self._free = list(range(self.pools.spare))
        sizes = {size for size in plan.manifest.runtime.decode_buckets if 1 <= size <= len(self._free)}
        self.buckets = tuple(sorted(sizes or {1}))
        self.captured: CapturedSteps | None = None
        if self.device.captures and plan.manifest.runtime.capture != "off":
            static = kernels if kernels is not None else kernels_for(family, captured, collectives)
            # Native kernels follow real lengths on the device, so one graph serves every context.
            contexts = (plan.manifest.runtime.max_context,) if captured == NATIVE_VARIANT.get(family) else None
            self.captured = CapturedSteps(self.executor, self.devices, static, self.buckets, contexts)

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
            self._free = sorted([*self._free, session.slot])

    def _start(self, slot: int) -> None:
        self.epochs[slot] += 1
        if self.debug >= 2:
            self.pools.poison(slot)
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
        for start in range(0, len(tokens), size):
            part = tokens[start : start + size]
            after = len(tokens) - start - len(part)
            tail = None if rows is None else Tail(rows, len(part), start, after)
            logits = self._step([session], [part], trace, tail=tail)[0]
            if not all_logits:  # a chunk's logits are large; let them go
                kept.clear()
            kept.append(logits if all_logits else logits[-1:].clone())
        return torch.cat(kept) if all_logits else kept[0][0]

    def decode(self, batch: Batch, *, trace: Trace | None = None) -> dict[Session, Tensor]:
        """Append one token to each of several sessions; f32 logits [V] by session.

        The batch is padded to the next decode bucket with rows of the spare slot; a batch above the largest bucket
        takes several steps. Raises `UserFault` as `feed` does, with the findings of every session, before anything is
        touched.
        """
        pairs = [(session, refusals.token(token)) for session, token in _pairs(batch)]
        refusals.raise_if(self._batch_faults(pairs))
        logits = {}
        for part in _parts(pairs, self.buckets[-1]):
            sessions = [session for session, _ in part]
            rows = self._step(sessions, [[token] for _, token in part], trace, padded=True)
            logits.update({session: row[-1].clone() for session, row in zip(sessions, rows, strict=True)})
        return logits

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

    def _step(
        self,
        sessions: Sequence[Session],
        rows: Sequence[Sequence[int]],
        trace: Trace | None,
        *,
        padded: bool = False,
        tail: Tail | None = None,
    ) -> Tensor:
        """One step of equally long rows; f32 logits [len(sessions), T, V]. Checks nothing.

        With a `tail`, eager steps compute its rows: `Executor.run`.
        """
        began = time.perf_counter()
        width = len(rows[0])
        captured = self.captured if width == 1 and trace is None else None
        size = len(sessions)
        if padded or captured is not None:
            size = next(size for size in self.buckets if size >= len(sessions))
        padding = size - len(sessions)
        places = Rows(
            tuple(session.slot for session in sessions),
            tuple(session.length for session in sessions),
            width,
            max(session.length for session in sessions) + width,
            padding,
            tail,
        )
        tokens = [*rows, *[[0] * width] * padding]
        if captured is not None:
            with torch.no_grad():
                captured.prepare(places.context)  # on padding rows alone: what fails here breaks no session
        with _breaking(sessions), torch.no_grad():
            if captured is not None:
                logits = captured.run([row[0] for row in tokens], places)
            else:
                logits = self._eager(tokens, places, trace)
            assert logits is not None, "every stage is here"
            logits = logits[: len(sessions)].to("cpu", copy=captured is not None)
            for session in sessions:
                session.length += width
        if self.debug >= 1:
            self.timings.append((len(sessions), width, time.perf_counter() - began))
        return logits

    def _eager(self, ids: Sequence[Sequence[int]], rows: Rows, trace: Trace | None) -> Tensor | None:
        slots = [*rows.slots, *[self.pools.spare] * rows.padding]
        positions = [*rows.positions, *[0] * rows.padding]
        steps = {
            place: Step(
                torch.tensor(slots, device=device.place), torch.tensor(positions, device=device.place), rows.context
            )
            for place, device in self.devices.items()
        }
        record = trace.begin() if trace is not None else None
        first = self.devices[self.executor.stages[0].place].place
        return self.executor.run_stages(torch.tensor(ids, device=first), steps, rows, record, tail=rows.tail)


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
