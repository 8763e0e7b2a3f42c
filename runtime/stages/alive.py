"""Noticing that another process has gone, whatever this one is waiting for.

Each process counts up a number of its own in the store over which they met, and looks at the others'. Where one stands
still, or the store is gone, there is nothing to wait for any more: the run ends with a message.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

from torch._C._distributed_c10d import Store

from dsv41c.diagnostics import Diagnostic, UserFault
from dsv41c.report import render

_BEAT = 0.5  # seconds
_SILENCE = 8.0  # seconds after which a process counts as gone: a long call may keep its threads from running
EXIT = 2


class Watch:
    """A thread that beats and looks. `gone` says it once, whoever noticed."""

    def __init__(self, store: Store | None, rank: int, names: Sequence[str]) -> None:
        self._store = store
        self._rank = rank
        self._names = names
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="dsv41c watch")

    @staticmethod
    def start(store: Store, rank: int, names: Sequence[str]) -> Watch:
        """A watch of all processes that have met over a store, through a connection of its own."""
        own: Store = store.clone()  # type: ignore[attr-defined]
        own.set_timeout(timedelta(seconds=_SILENCE))
        watch = Watch(own, rank, names)
        watch._thread.start()
        return watch

    def stop(self) -> None:
        """Say nothing from now on."""
        self._over.set()
        self._thread.join(timeout=2 * _BEAT)

    @contextmanager
    def over(self, rank: int | None = None) -> Iterator[None]:
        """Turns what torch raises when another process has gone, the one of `rank` most likely, into the finding."""
        try:
            yield
        except RuntimeError as error:  # torch's own kind for what its backends report
            raise UserFault([self.gone(rank)]) from error

    def gone(self, rank: int | None) -> Diagnostic:
        """The finding (DSV892) for a process that has gone; the thread says nothing of it then.

        Who notices first has seen the one that began it; the others only see their neighbours leave, and say the same.
        """
        self._over.set()
        guess = "" if rank is None or rank == self._rank else self._names[rank]
        who = self._first(guess) or "another process"
        return Diagnostic(
            "DSV892",
            f"{who} has ended, or not answered for {_SILENCE:.0f} s, so {self._names[self._rank]} cannot go on",
            help="what it said last, if anything, is in its own output; start the run again",
        )

    def _first(self, guess: str) -> str:
        """Whom the first process that noticed has named; the guess where nobody has, or the store is gone."""
        if self._store is None or not guess:
            return guess
        try:
            told = self._store.compare_set("gone", "", guess).decode()
        except RuntimeError:
            return guess
        return guess if told == self._names[self._rank] else told

    def _run(self) -> None:
        assert self._store is not None, "a watch that runs has a store"
        seen = {rank: (-1, time.monotonic()) for rank in range(len(self._names)) if rank != self._rank}
        while not self._over.wait(_BEAT):
            rank = 0  # whom a failing store speaks of
            try:
                self._store.add(f"beat/{self._rank}", 1)
                for rank in seen:
                    count = self._store.add(f"beat/{rank}", 0)
                    if count != seen[rank][0]:
                        seen[rank] = count, time.monotonic()
                silent = [rank for rank, (_, since) in seen.items() if time.monotonic() - since > _SILENCE]
            except RuntimeError:  # the first process keeps the store, or whoever started them all
                silent = [0]
            if silent and not self._over.is_set():
                sys.stderr.write(render((self.gone(silent[0]),), {}, "text"))
                sys.stderr.flush()
                os._exit(EXIT)
