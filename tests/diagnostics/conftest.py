"""Makes what the tests of the runtime share importable: one copy with theirs, since it caches plans and weights."""

import sys
from pathlib import Path

RUNTIME = Path(__file__).resolve().parents[1] / "runtime"
sys.path[:0] = [str(RUNTIME), str(RUNTIME / "weights")]
