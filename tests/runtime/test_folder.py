"""Folders of results when something goes wrong while they are written."""

import errno
import os
import signal
import subprocess
import sys

import pytest

from dsv41c.diagnostics import UserFault
from dsv41c.runtime.folder import new_folder

WRITER = """
import sys
from pathlib import Path
from dsv41c.runtime.folder import new_folder
with new_folder(Path(sys.argv[1])) as folder:
    (folder / "half").write_text("half")
    print("begun", flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_process_that_is_ended_leaves_nothing(number, tmp_path):
    command = [sys.executable, "-c", WRITER, str(tmp_path / "new")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as writer:
        assert writer.stdout.readline() == b"begun\n" and list(tmp_path.glob(".new-*/half"))
        writer.send_signal(number)
        assert writer.wait(60) in (128 + number, -number)
    assert not list(tmp_path.iterdir())


def test_signals_are_handled_as_before_again(tmp_path):
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL), signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with new_folder(tmp_path / "new"):
            assert callable(signal.getsignal(signal.SIGTERM)) and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before[0])
        signal.signal(signal.SIGHUP, before[1])


@pytest.mark.parametrize(
    ("number", "way_out"), [(errno.ENOSPC, "make room"), (errno.EFBIG, "make room"), (errno.EACCES, "name a folder")]
)
def test_the_way_out_is_that_of_the_reason(number, way_out, tmp_path):
    with pytest.raises(UserFault) as caught, new_folder(tmp_path / "new"):
        raise OSError(number, os.strerror(number))
    (found,) = caught.value.diagnostics
    assert found.code == "DSV751" and found.help.startswith(way_out)
    assert not list(tmp_path.iterdir())


def test_a_link_is_called_one(tmp_path):
    (tmp_path / "new").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserFault, match="is a link"), new_folder(tmp_path / "new"):
        pass
