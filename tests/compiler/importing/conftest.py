"""GGUF files are written by what the tests of weights have for it."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "runtime" / "weights"))
