"""Pipes, devices, sockets and folders where a file is expected: told at once, and neither waited for nor read."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dsv41c.compiler.plan import compile_spec
from dsv41c.compiler.plan.folder import write
from dsv41c.compiler.source import read_file
from dsv41c.compiler.spec import load
from dsv41c.diagnostics import UserFault

Run = Callable[..., Any]  # of conftest.py
SPEC = b"extends: toy\n"
WAY_OUT = "give the path of a plain file, or `-` and the text on standard input"


@pytest.fixture(autouse=True)
def _no_hanging() -> Iterator[None]:
    """A read that waits for a pipe ends as the failure that it is."""

    def give_up(*_: object) -> None:
        raise AssertionError("it hangs")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def others(tmp_path: Path) -> dict[str, str]:
    """What is no file, with what it is."""
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "link.yaml").symlink_to("pipe.yaml")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "zero.json").symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as made:
        before = Path.cwd()
        os.chdir(tmp_path)  # the path of a socket is short
        made.bind("socket")
        os.chdir(before)
    pipe, device = "a named pipe", "a device"
    kinds = {"pipe.yaml": pipe, "link.yaml": pipe, "pipe": pipe, "folder": "a folder", "socket": "a socket"}
    return {**kinds, "zero.json": device, "/dev/zero": device}


@pytest.mark.parametrize("verb", ["validate", "compile", "graph", "estimate", "cut", "import"])
def test_what_is_no_file_is_told_by_every_verb(run: Run, others: dict[str, str], verb: str) -> None:
    more = {"compile": ["--dry-run"], "cut": ["--layers", "0"]}.get(verb, [])
    for name, kind in others.items():
        ran = run(verb, name, *more)
        assert ran.code == 2, name
        assert f"error[DSV117]: cannot read `{name}`: it is {kind}, expected a file\n" in ran.out + ran.err
        assert (f"help: {WAY_OUT}" in ran.out + ran.err) == (kind != "a folder")


def test_the_same_where_a_spec_or_an_option_names_it(run: Run, others: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("extends: pipe.yaml\n")
    ran = run("validate", "mine.yaml")
    assert ran.code == 1 and "cannot read `pipe.yaml`: it is a named pipe, expected a file" in ran.out
    assert "help: extend a shipped spec by name" in ran.out
    for argv in (("validate", "toy", "--target", "./pipe"), ("graph", "toy", "--format", "svg", "--overlay", "pipe")):
        ran = run(*argv)
        assert ran.code == 2 and "pipe`: it is a named pipe, expected a file" in ran.out + ran.err


def test_plan_folders_with_pipes_in_them(run: Run, tmp_path: Path) -> None:
    plan = compile_spec(load("toy"))
    write(plan.files, tmp_path / "toy.plan")
    for name in ("spec.yaml", "manifest.json", "stage_0.py"):
        place = tmp_path / "toy.plan" / name
        place.unlink()
        os.mkfifo(place)
        assert run("graph", "./toy.plan").code == (0 if name == "stage_0.py" else 2)
        ran = run("compile", "toy", "--check", "-o", "toy.plan")
        assert ran.code == 1 and ("is not up to date" in ran.err or "is no plan" in ran.err)
        if name != "stage_0.py":
            place.unlink()
            place.write_text(plan.files[name])
    assert run("compile", "toy", "-o", "toy.plan").code == 0
    assert stat.S_ISREG(os.stat(place).st_mode), "the folder is made anew"


def test_a_size_that_differs_is_enough(run: Run, tmp_path: Path) -> None:
    """A result is compared with what lies there already; that may be larger than memory."""
    for name in ("spec.yaml", "toy.plan/stage_0.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
        os.truncate(tmp_path / name, 1 << 40)
    assert run("cut", "toy", "--layers", "0", "-o", "spec.yaml").code == 2
    assert run("compile", "toy", "--check", "-o", "toy.plan").code == 1


@pytest.mark.parametrize(("name", "given"), [("-", "file"), ("/dev/stdin", "file"), ("/dev/stdin", "pipe")])
def test_standard_input_by_any_name(tmp_path: Path, name: str, given: str) -> None:
    (tmp_path / "spec.yaml").write_bytes(SPEC)
    command = [sys.executable, "-m", "dsv41c", "validate", name]
    with open(tmp_path / "spec.yaml", "rb") as file:
        source: dict[str, Any] = {"stdin": file} if given == "file" else {"input": SPEC}
        ran = subprocess.run(command, **source, capture_output=True, cwd=tmp_path, timeout=60)
    assert (ran.returncode, ran.stdout) == (0, b"") and b": ok" in ran.stderr


def test_an_open_pipe_is_read_and_an_open_socket_is_not() -> None:
    """The first is what a shell makes of `<(COMMAND)`."""
    reading, writing = os.pipe()
    os.write(writing, SPEC)
    os.close(writing)
    assert read_file(f"/dev/fd/{reading}") == SPEC
    os.close(reading)
    ours, theirs = socket.socketpair()
    with ours, theirs, pytest.raises(UserFault, match="it is a socket, expected a file"):
        read_file(f"/dev/fd/{ours.fileno()}")
