"""The golden checkpoint's helpers are those of the runtime's tests; layers are compared as they are elsewhere."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "runtime"), str(HERE.parent / "runtime" / "stages"), str(HERE)]
