"""Noticing that another process has gone, whatever this one is waiting for.

Each process counts up a number of its own in a store that the first process keeps, and looks at the others'. Where one
stands still, or the store is gone, there is nothing to wait for any more: the run ends with a message.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore

from dsv41c.diagnostics import Diagnostic
from dsv41c.report import render

_BEAT = 0.5  # seconds
_SILENCE = 8.0  # seconds after which a process counts as gone: a long call may keep its threads from running
EXIT = 2


class Watch:
    """A thread that beats and looks. `gone` says it once, whoever noticed."""

    def __init__(self, store: TCPStore, rank: int, names: Sequence[str]) -> None:
        self._store = store
        self._rank = rank
        self._names = names
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="dsv41c watch")

    @staticmethod
    def start(rank: int, names: Sequence[str]) -> Watch:
        """A watch of all processes, once all have come here."""
        host, port = os.environ["MASTER_ADDR"], torch.zeros(1, dtype=torch.int64)
        if rank == 0:
            store = TCPStore(host, 0, is_master=True, wait_for_workers=False)
            port[0] = store.port
        dist.broadcast(port, 0)
        if rank != 0:
            store = TCPStore(host, int(port), is_master=False)
        watch = Watch(store, rank, names)
        watch._thread.start()
        return watch

    def stop(self) -> None:
        """Say nothing from now on."""
        self._over.set()
        self._thread.join(timeout=2 * _BEAT)

    def gone(self, rank: int) -> Diagnostic:
        """The finding (DSV892) for a process that has gone; the thread says nothing of it then."""
        self._over.set()
        return Diagnostic(
            "DSV892",
            f"{self._names[rank]} has gone, so {self._names[self._rank]} cannot go on",
            help="what it said last, if anything, is in its own output; start the run again",
        )

    def _run(self) -> None:
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
            except RuntimeError:  # the first process keeps the store
                silent = [0]
            if silent and not self._over.is_set():
                sys.stderr.write(render((self.gone(silent[0]),), {}, "text"))
                sys.stderr.flush()
                os._exit(EXIT)
