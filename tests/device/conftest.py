"""The golden checkpoint's helpers are those of the runtime's tests; layers are compared as they are elsewhere."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
RUNTIME = HERE.parent / "runtime"
sys.path[:0] = [str(RUNTIME), str(RUNTIME / "stages"), str(RUNTIME / "weights"), str(HERE)]
