"""What sets off each code of captured work (87x): kernels that do what a graph cannot hold."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path

from dsv41c.diagnostics import Diagnostic, UserFault

_FOLDER = Path(__file__).resolve().parents[2] / "runtime"
for _name in ("golden_tiny", "planted"):
    if _name not in sys.modules:  # one copy with the runtime's tests: it caches plans and weights
        _spec = importlib.util.spec_from_file_location(_name, _FOLDER / f"{_name}.py")
        sys.modules[_name] = importlib.util.module_from_spec(_spec)
        _spec.loader.exec_module(sys.modules[_name])
planted = sys.modules["planted"]


def _trigger(name: str) -> Callable[[Path], list[Diagnostic]]:
    def run(_: Path) -> list[Diagnostic]:
        try:
            planted.run(name, "hpu")
        except UserFault as fault:
            return list(fault.diagnostics)
        return []

    return run


TRIGGERS: dict[str, Callable[[Path], list[Diagnostic]]] = {
    planted.FAULTS[name].code: _trigger(name) for name in planted.SHOWN
}
