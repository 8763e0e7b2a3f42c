"""The script itself, on the toy model and the CPU: it compiles, measures, and leaves its results where it should."""

import json
import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).with_name("h200.sh")


def test_it_runs(tmp_path: Path):
    tried = {"SPEC": "toy", "TARGET": "cpu", "COMMIT": "abc", "PYTHON": sys.executable, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [str(SCRIPT), str(tmp_path / "new" / "results")],
        env={**os.environ, **tried},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    results = tmp_path / "new" / "results"
    found = json.loads((results / "h200.json").read_text())
    assert found["label"] == "commit abc"
    assert [(cell["batch"], cell["context"]) for cell in found["cells"]] == [(1, 20), (2, 64)]
    assert "measuring batch 2, context 64" in (results / "h200.log").read_text()


def test_it_needs_a_place_for_results(tmp_path: Path):
    done = subprocess.run([str(SCRIPT)], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    assert "RESULTS" in done.stderr
