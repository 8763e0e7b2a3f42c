"""GGUF files are written by what the tests of weights have for it."""

import sys
from pathlib import Path

RUNTIME = Path(__file__).resolve().parents[2] / "runtime"
sys.path[:0] = [str(RUNTIME), str(RUNTIME / "weights")]
