"""Stages in processes of their own: one packed message a boundary and step, and how a step ended, told to all.

Before each message goes a header of fixed size, host to host, so that a failed stage can say so: the stages behind it
pass that on instead of running, and the last one tells every process, with the logits where there are any. All raise.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from dsv41c.diagnostics import Diagnostic, UserFault
from dsv41c.runtime.stages.crossing import Crossing, Form, Rows
from dsv41c.runtime.stages.layout import Layout, Stage
from dsv41c.runtime.stages.transport import Ended, Traffic
from dsv41c.runtime.stages.world import World
from dsv41c.runtime.state import Pools

_TEXT = 2048  # bytes of a failure's text
_NUMBERS = 4 * 8


@dataclass(frozen=True, slots=True)
class Header:
    """What goes ahead of a message: which step, of whose rows (a checksum), its bytes, and the text of a failure."""

    step: int
    rows: int
    bytes: int = 0
    failure: str | None = None

    def packed(self) -> Tensor:
        """uint8 [32 + 2048]."""
        numbers = [self.step, self.rows, self.bytes, self.failure is not None]
        text = (self.failure or "").encode()[:_TEXT]
        packed = torch.zeros(_NUMBERS + _TEXT, dtype=torch.uint8)
        packed[:_NUMBERS] = torch.tensor(numbers, dtype=torch.int64).view(torch.uint8)
        if text:
            packed[_NUMBERS : _NUMBERS + len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        return packed

    @staticmethod
    def of(packed: Tensor) -> Header:
        """What `packed` packed."""
        step, rows, count, failed = packed[:_NUMBERS].view(torch.int64).tolist()
        if not failed:
            return Header(step, rows, count)
        text = bytes(packed[_NUMBERS:].tolist()).rstrip(b"\0").decode(errors="replace")
        return Header(step, rows, count, text)


class ProcessTransport:
    """This process's side of every boundary that it has a part in."""

    def __init__(self, world: World, layout: Layout, place: torch.device) -> None:
        self.world = world
        self.layout = layout
        self.place = place
        self._last = layout.stages[-1].place * world.shards  # the process that tells how steps end: its first shard
        self.traffic: dict[int, Traffic] = {}
        self._step = 0
        self._error: Exception | None = None
        self._failure: str | None = None
        self._side: torch.cuda.Stream | None = None
        self._sending: list[tuple[int, dist.Work, Tensor]] = []  # with the step of each

    # --- a step -----------------------------------------------------------------------------------------------------

    def run(self, stages: Iterable[Stage], rows: Rows | None, work: Callable[[Stage], None]) -> None:
        """Run the stages of this process. One that fails, here or before, fails those behind it; `finish` raises."""
        assert rows is not None, "steps over several stages say whose rows they have"
        self._step += 1
        self._error = self._failure = None
        for stage in stages:
            header = None if stage.boundary is None or stage.boundary.stays else self._header(stage)
            if header is not None and header.failure is not None:
                self._failure = self._failure or header.failure
            if self._failure is None:
                try:
                    if header is not None:
                        self._expect(stage, header, rows)
                    work(stage)
                except Exception as error:
                    self._error, self._failure = error, _said(stage, self.world, error)
            following = [each.boundary for each in self.layout.stages[stage.index + 1 : stage.index + 2]]
            if self._failure is not None and any(each is not None and not each.stays for each in following):
                self._send(Header(self._step, _checksum(rows), 0, self._failure).packed(), stage.index + 1)

    def leave(self, crossing: Crossing, values: Mapping[str, Tensor], pools: Pools, rows: Rows) -> None:
        """Send the header and the message, and go on."""
        if crossing.boundary.stays:
            return
        message = _joined(crossing.leaving(values, pools, rows), self.place)
        self._send(Header(self._step, _checksum(rows), message.numel()).packed(), crossing.boundary.to)
        if message.numel():
            self._send(message, crossing.boundary.to)
        self.traffic.setdefault(crossing.boundary.to, Traffic()).add(rows, message.numel())

    def arrive(self, crossing: Crossing, values: MutableMapping[str, Tensor], pools: Pools, rows: Rows) -> None:
        """Take over the message whose header has come."""
        if crossing.boundary.stays:
            return
        forms, message = crossing.forms(rows), self._message(crossing.boundary.source, crossing.bytes(rows))
        self.traffic.setdefault(crossing.boundary.to, Traffic()).add(rows, message.numel())
        crossing.arrive(_parted(message, forms), values, pools, rows)

    def finish(self, logits: Tensor | None, rows: Rows, vocabulary: int) -> Ended:
        """Begin to tell every process how the step ended; each has to call it, after `run`."""
        world, shape = self.world, (len(rows.slots), rows.read("logits"), vocabulary)
        header = Header(self._step, _checksum(rows), 0, self._failure).packed()
        own = torch.empty(shape, dtype=torch.float32, device=self.place)  # of a step that failed nobody reads it
        if logits is not None and self._failure is None and world.rank == self._last:
            own.copy_(logits[: shape[0]])
        step, error, works = self._step, self._error, []
        with self.world.watch.over(self._last):
            for part in (header, own):
                if part.numel():
                    works.append(dist.broadcast(part, self._last, async_op=True))
        on_host = self._on_host(own, works[1:])

        def wait() -> Tensor:
            with self.world.watch.over(self._last):
                for work in works:
                    work.wait()
                self._let_go(step)
            if error is not None:
                raise error
            told = Header.of(header)
            if told.failure is not None:
                raise UserFault([_elsewhere(told.failure)])
            return on_host()

        return Ended(wait)

    def _on_host(self, own: Tensor, works: Sequence[dist.Work]) -> Callable[[], Tensor]:
        """Logits on the host, asked for now: on a stream of their own, since the next step's work comes behind."""
        if own.device.type != "cuda" or not own.numel():
            return lambda: own.to("cpu")
        if self._side is None:
            self._side = torch.cuda.Stream(own.device)  # type: ignore[no-untyped-call]
        host = torch.empty(own.shape, dtype=own.dtype, pin_memory=True)
        copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
        with torch.cuda.stream(self._side):
            for work in works:
                work.wait()
            host.copy_(own, non_blocking=True)
            copied.record(self._side)
        own.record_stream(self._side)

        def wait() -> Tensor:
            copied.synchronize()
            return host

        return wait

    # --- messages ---------------------------------------------------------------------------------------------------

    def _send(self, message: Tensor, stage: int) -> None:
        """Send to the place of a stage; what is on its way is kept until its step has ended."""
        target = self.world.beside(self.layout.place_of(stage))
        with self.world.watch.over(target):
            work = dist.isend(message, target)
            assert work is not None
            self._sending.append((self._step, work, message))

    def _let_go(self, step: int) -> None:
        """Of what was sent up to a step that has ended: it has arrived. Gloo does not know before it is asked."""
        for sent, work, _ in self._sending:
            if sent <= step:
                work.wait()
        self._sending = [each for each in self._sending if each[0] > step]

    def _header(self, stage: Stage) -> Header:
        packed, rank = Header(0, 0).packed(), self._before(stage)
        with self.world.watch.over(rank):
            dist.recv(packed, rank)
        return Header.of(packed)

    def _expect(self, stage: Stage, header: Header, rows: Rows) -> None:
        """Refuse the message of another step, or of other sessions; it is received all the same."""
        if (header.step, header.rows) != (self._step, _checksum(rows)):
            rank = self._before(stage)
            self._message(rank // self.world.shards, header.bytes)
            raise UserFault([_disagree(self.world, rank, header, self._step)])

    def _message(self, source: int, count: int) -> Tensor:
        """So many bytes from a place; work of the device waits for them, the host does not where it need not."""
        message, rank = torch.empty(count, dtype=torch.uint8, device=self.place), self.world.beside(source)
        if count:
            with self.world.watch.over(rank):
                work = dist.irecv(message, rank)
                assert work is not None
                work.wait()
        return message

    def _before(self, stage: Stage) -> int:
        """The rank that sends to a stage."""
        assert stage.boundary is not None
        return self.world.beside(stage.boundary.source)


def _joined(parts: Sequence[Tensor], place: torch.device) -> Tensor:
    """Dense tensors as one of bytes, those of larger elements first, so that each begins at a multiple of its own."""
    flat = [part.contiguous().view(torch.uint8).flatten() for part in sorted(parts, key=_element) if part.numel()]
    return torch.cat(flat) if flat else torch.empty(0, dtype=torch.uint8, device=place)


def _parted(message: Tensor, forms: Sequence[Form]) -> list[Tensor]:
    """What `_joined` joined, in the order of the forms; views of the message."""
    found: dict[int, Tensor] = {}
    begin = 0
    for index in sorted(range(len(forms)), key=lambda index: -forms[index][1].itemsize):
        shape, dtype = forms[index]
        end = begin + math.prod(shape) * dtype.itemsize
        found[index] = message[begin:end].view(dtype).view(shape)
        begin = end
    return [found[index] for index in range(len(forms))]


def _element(part: Tensor) -> int:
    return -part.element_size()


def _checksum(rows: Rows) -> int:
    tail = None if rows.tail is None else (rows.tail.before, rows.tail.after, *rows.tail.rows.regions.values())
    return zlib.crc32(repr((rows.slots, rows.positions, rows.tokens, rows.digest, tail)).encode())


def _said(stage: Stage, world: World, error: Exception) -> str:
    """What the others are told of a failure: where it was, and why."""
    why, more = f"{type(error).__name__}: {error}", []
    if isinstance(error, UserFault):
        why = "; ".join(diagnostic.message for diagnostic in error.diagnostics)
        first = error.diagnostics[0]
        more = [("code", first.code), *[("comes from", str(first.span))] * (first.span is not None), *first.facts]
    lines = [f"stage {stage.index} of {world.names[world.rank]}: {why}", *(f"{name}: {value}" for name, value in more)]
    return "\n".join(" ".join(line.split()) for line in lines)


def _elsewhere(text: str) -> Diagnostic:
    said, *more = text.split("\n")
    facts = [line.partition(": ") for line in more]
    return Diagnostic(
        "DSV891",
        f"the step failed in {said}",
        facts=tuple((name, value) for name, _, value in facts if name and value),
        help="its sessions are broken in every process: reset or close them; others go on",
    )


def _disagree(world: World, rank: int, header: Header, step: int) -> Diagnostic:
    what = (
        f"step {header.step} there, step {step} here"
        if header.step != step
        else f"other sessions or tokens in step {step}"
    )
    return Diagnostic(
        "DSV893",
        f"{world.names[world.rank]} and {world.names[rank]} were asked for different things: {what}",
        help="every process has to open, feed and close the same sessions in the same order",
    )
