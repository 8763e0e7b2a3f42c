"""The bench itself, on a short prompt: it runs and counts; how long anything takes is not tested."""

import json
import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).with_name("exact_tail.py")


def test_it_runs(tmp_path: Path):
    numbers = tmp_path / "numbers.json"
    command = [sys.executable, str(BENCH), "--repeat", "1", "--layers", "8", "--tokens", "64", "--json", str(numbers)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "rows" in done.stdout
    found = json.loads(numbers.read_text())["8"]
    assert found["rows"] == (6 * 64 + 31 + 16) / (8 * 64)
    assert found["ratio"] > 0
