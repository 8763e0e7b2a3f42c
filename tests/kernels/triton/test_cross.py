"""Every kernel compiles for every architecture that the catalogue of native kernels names, within its shared memory."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dsv41c.kernels.fusion import ARCHITECTURES

CROSS = Path(__file__).with_name("cross.py")


@pytest.mark.parametrize("target", [name for names in ARCHITECTURES.values() for name in names])
def test_compiles_for(target, tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    command = [sys.executable, str(CROSS), target]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    print(result.stdout)
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-4000:]
