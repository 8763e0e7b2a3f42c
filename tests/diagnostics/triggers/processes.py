"""What sets off each code of several processes (89x). `TRIGGERS[code](tmp_path)` gives findings that hold it.

Those of a run that goes wrong are made where they are raised; `tests/runtime/stages/test_processes.py` has the runs.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

from dsv41c.diagnostics import Diagnostic, UserFault
from dsv41c.runtime.stages import processes
from dsv41c.runtime.stages.alive import Watch
from dsv41c.runtime.stages.world import World, joined

_NAME = "golden_tiny"
_PATH = Path(__file__).resolve().parents[2] / "runtime" / f"{_NAME}.py"
if _NAME not in sys.modules:  # one copy with the runtime's tests: it caches plans and weights
    _spec = importlib.util.spec_from_file_location(_NAME, _PATH)
    sys.modules[_NAME] = importlib.util.module_from_spec(_spec)
    _spec.loader.exec_module(sys.modules[_NAME])
tiny = sys.modules[_NAME]

NAMES = ("process 0 (stage 0 on cpu:0)", "process 1 (stage 1 on cpu:1)")
WATCH = Watch(None, 0, NAMES)
WORLD = World(0, 2, 1, 0, NAMES, None, WATCH)


def _number(_: Path) -> list[Diagnostic]:
    with patch.dict("os.environ", WORLD_SIZE="3"):
        try:
            with joined(tiny.plan().manifest):
                return []
        except UserFault as fault:
            return list(fault.diagnostics)


TRIGGERS: dict[str, Callable[[Path], list[Diagnostic]]] = {
    "DSV890": _number,
    "DSV891": lambda _: [processes._elsewhere("stage 1 of process 1 (stage 1 on cpu:1): no room")],
    "DSV892": lambda _: [WATCH.gone(1)],
    "DSV893": lambda _: [processes._disagree(WORLD, 1, processes.Header(3, 7), 4)],
}
