"""Where output goes: the result to standard output, all talk to standard error, colour only where it is wanted."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TextIO

from dsv41c.settings import Settings


@dataclass(frozen=True, slots=True)
class Console:
    """The streams of one run. `json` makes findings part of the result (see `faults.show`)."""

    settings: Settings = field(default_factory=Settings)
    json: bool = False

    def result(self, text: str) -> None:
        """Write a part of the result to standard output."""
        sys.stdout.write(text)
        sys.stdout.flush()

    def say(self, text: str) -> None:
        """Say something beside the result."""
        print(text, file=sys.stderr, flush=True)

    def colored(self, stream: TextIO) -> bool:
        """Whether text on a stream is to be coloured."""
        if self.settings.color == "auto":
            return stream.isatty()
        return self.settings.color == "always"

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """A step of the work; with DSV41C_DEBUG its time is told."""
        start = time.perf_counter()
        try:
            yield
        finally:
            if self.settings.debug:
                from dsv41c.report.escape import escape

                self.say(f"debug: {escape(name)}: {(time.perf_counter() - start) * 1000:.1f} ms")

    def progress(self, label: str, total: int) -> Progress:
        """A progress line, which a terminal shows once the step has taken a second."""
        return Progress(label, total, sys.stderr.isatty())


@dataclass(slots=True)
class Progress:
    """One line that is written over; without a terminal, nothing."""

    label: str
    total: int
    shown: bool
    started: float = field(default_factory=time.monotonic)
    drawn: bool = False

    def __call__(self, done: int) -> None:
        """Tell how much of the total is done."""
        if not self.shown or time.monotonic() - self.started < 1.0:
            return
        width = 30
        full = width * done // max(self.total, 1)
        sys.stderr.write(f"\r{self.label} [{'#' * full}{'.' * (width - full)}] {done}/{self.total}")
        sys.stderr.flush()
        self.drawn = True

    def of(self, done: int, total: int) -> None:
        """The same, for work that finds out the total on the way."""
        self.total = total
        self(done)

    def close(self) -> None:
        """Take the line away."""
        if self.drawn:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
