"""The golden checkpoint's helpers are those of the runtime's tests; layers are compared as they are elsewhere."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "runtime"), str(Path(__file__).resolve().parent)]
