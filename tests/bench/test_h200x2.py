"""The script on the toy model and CPUs: two stages in one process are measured and summed up."""

import json
import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).with_name("h200x2.sh")


def test_it_runs(tmp_path: Path):
    tried = {"SPEC": "toy", "COMMIT": "abc", "PYTHON": sys.executable}
    done = subprocess.run(
        [str(SCRIPT), str(tmp_path / "results")],
        env={**os.environ, **tried},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "results" / "h200x2-even-both.json").read_text())
    assert found["label"] == "commit abc" and found["plan"]["stages"][1]["layers"] == [3, 8]
    log = (tmp_path / "results" / "h200x2.log").read_text()
    assert "even-both: a step takes" in log and "even-both: 2 in flight are" in log
    assert "even-both: a prompt of 32 (every) is read at" in log and found["against"]["stages"][0]["layers"] == [0, 8]
