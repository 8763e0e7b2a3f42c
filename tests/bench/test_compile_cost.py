"""The bench itself, on few layers and one round: it runs and counts; how long anything takes is not tested."""

import json
import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).with_name("compile_cost.py")


def test_it_runs(tmp_path: Path):
    numbers = tmp_path / "numbers.json"
    command = [sys.executable, str(BENCH), "--repeat", "1", "--layers", "40,80", "--json", str(numbers)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "power" in done.stdout
    found = json.loads(numbers.read_text())
    assert set(found["ratio_to_imports"]) == {"validate", "compile"}
    assert all(taken > 0 for taken in found["growth_seconds"]["compile"].values())
