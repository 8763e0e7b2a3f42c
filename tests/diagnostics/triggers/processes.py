"""What sets off each code of several processes (89x), and the same mended.

Those of a run that goes wrong are made where they are raised; `tests/runtime/stages/test_processes.py` has the runs.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import golden_tiny as tiny

from dsv41c.diagnostics import Diagnostic
from dsv41c.runtime.stages import processes, world
from dsv41c.runtime.stages.alive import Watch
from dsv41c.runtime.stages.crossing import Rows

NAMES = ("process 0 (stage 0 on cpu:0)", "process 1 (stage 1 on cpu:1)")
WORLD = world.World(0, 2, 1, 0, NAMES, None, Watch(None, 0, NAMES))
ROWS = Rows((0,), (5,), 1, 64)


class _Meeting(Exception):
    """Stands for the meeting of the processes, which comes once their number is right."""


def _started(count: int) -> Callable[[Path], None]:
    def trigger(_: Path) -> None:
        started = patch.dict("os.environ", WORLD_SIZE=str(count))
        meeting = patch.object(world, "_met", side_effect=_Meeting)
        with started, meeting, suppress(_Meeting), world.joined(tiny.plan().manifest):
            pass

    return trigger


def _told(failure: str | None) -> Callable[[Path], list[Diagnostic]]:
    """How a step ended, as it comes from the last process."""

    def trigger(_: Path) -> list[Diagnostic]:
        told = processes.Header.of(processes.Header(4, 0, failure=failure).packed()).failure
        return [] if told is None else [processes._elsewhere(told)]

    return trigger


def _waiting(*, gone: bool) -> Callable[[Path], None]:
    def trigger(_: Path) -> None:
        with WORLD.watch.over(1):
            if gone:
                raise RuntimeError("Connection closed by peer")

    return trigger


def _received(step: int) -> Callable[[Path], None]:
    """A message of a step, where step 4 is expected."""
    here = SimpleNamespace(world=WORLD, _step=4, _before=lambda _: 1, _message=lambda *_: None)
    header = processes.Header(step, processes._checksum(ROWS))
    return lambda _: processes.ProcessTransport._expect(here, None, header, ROWS)  # type: ignore[arg-type]


TRIGGERS = {
    "DSV890": (_started(3), _started(1)),
    "DSV891": (_told("stage 1 of process 1 (stage 1 on cpu:1): no room"), _told(None)),
    "DSV892": (_waiting(gone=True), _waiting(gone=False)),
    "DSV893": (_received(3), _received(4)),
}
