"""Folders of results when something goes wrong while they are written."""

import errno
import os
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from dsv41c.compiler.cli import main
from dsv41c.diagnostics import UserFault
from dsv41c.runtime import beside
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
        assert writer.stdout.readline() == b"begun\n" and list(tmp_path.glob(".new-*/*/half"))
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


# --- what killed processes leave --------------------------------------------------------------------------------------


@contextmanager
def writer(out):
    """A process that is writing `out`, and the hidden folder that it writes in."""
    before = set(out.parent.iterdir())
    command = [sys.executable, "-c", WRITER, str(out)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout.readline() == b"begun\n"
            (hidden,) = set(out.parent.iterdir()) - before
            yield process, hidden
        finally:
            process.kill()


def killed(out):
    """What a process left that was killed while it wrote `out`."""
    with writer(out) as (_, hidden):
        pass
    assert (hidden / "result" / "half").read_text() == "half"
    return hidden


def told(out, needed=0):
    """What is said when `out` is written."""
    lines = []
    with new_folder(out, needed, lines.append) as folder:
        (folder / "whole").write_text("whole")
    return lines


def test_what_a_killed_process_left_goes(tmp_path):
    hidden, other = killed(tmp_path / "new"), killed(tmp_path / "new-one")
    assert told(tmp_path / "new") == [f"removed `{hidden}`, left by a run that was killed"]
    assert set(tmp_path.iterdir()) == {tmp_path / "new", other}
    assert [file.name for file in (tmp_path / "new").iterdir()] == ["whole"]


def test_what_lives_stays(tmp_path):
    with writer(tmp_path / "new") as (process, hidden):
        assert told(tmp_path / "new") == []
        assert (hidden / "result" / "half").exists()
        shutil.rmtree(tmp_path / "new")
        process.stdin.close()
        assert process.wait(60) == 0
    assert [file.name for file in tmp_path.rglob("*")] == ["new", "half"]


def _no_mark(hidden):
    (hidden / beside.MARK).unlink()


def _other_mark(hidden):
    (hidden / beside.MARK).write_text("mine")


def _more(hidden):
    (hidden / "mine").write_text("mine")


def _link(hidden):
    hidden.rename(hidden.parent / "elsewhere")
    hidden.symlink_to("elsewhere")


def _other_name(hidden):
    hidden.rename(hidden.with_name(hidden.name + "-1"))


@pytest.mark.parametrize("change", [_no_mark, _other_mark, _more, _link, _other_name])
def test_what_is_not_provably_ours_stays(change, tmp_path):
    change(killed(tmp_path / "new"))
    before = sorted(tmp_path.rglob("*"))
    assert told(tmp_path / "new") == []
    assert [file for file in sorted(tmp_path.rglob("*")) if tmp_path / "new" not in (file, file.parent)] == before


def test_what_another_machine_may_be_writing_is_told_and_stays(tmp_path, monkeypatch):
    hidden = killed(tmp_path / "new")
    monkeypatch.setattr(beside, "_boot", lambda: "another")
    (line,) = told(tmp_path / "new")
    assert line.startswith(f"`{hidden}` was left before") and (hidden / "result" / "half").exists()


def test_without_locks_nothing_is_marked(tmp_path, monkeypatch):
    monkeypatch.setattr(beside.fcntl, "flock", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOLCK, "No locks")))
    with new_folder(tmp_path / "new") as folder:
        assert [file.name for file in folder.parent.iterdir()] == [folder.name]
    assert list(tmp_path.iterdir()) == [tmp_path / "new"]


def test_room_is_looked_for_when_it_is_made(tmp_path, monkeypatch):
    hidden = killed(tmp_path / "new")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=0 if hidden.exists() else 10))
    assert len(told(tmp_path / "new", needed=10)) == 1


def test_commands_say_it(tmp_path, monkeypatch, capsys):
    """`synth`, and `repack` and `cut` of what it wrote."""
    monkeypatch.chdir(tmp_path)
    assert main(["compile", "toy", "-o", "plan"]) == 0
    left = [killed(tmp_path / name) for name in ("toy", "repacked", "cut")]
    commands = (
        ["synth", "toy", "-o", "toy"],
        ["repack", "plan", "--checkpoint", "toy", "-o", "repacked", "--no-check"],
        ["cut", "toy", "--layers", "0,1", "--checkpoint", "toy", "-o", "cut"],
    )
    for command, hidden in zip(commands, left, strict=True):
        capsys.readouterr()
        assert main(command) == 0
        first, *_ = capsys.readouterr().err.splitlines()
        assert first == f"removed `{hidden}`, left by a run that was killed"
    assert sorted(path.name for path in Path.cwd().iterdir()) == ["cut", "plan", "repacked", "toy"]
