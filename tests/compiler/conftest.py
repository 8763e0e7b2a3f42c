"""A command line run in process, in an empty folder."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from dsv41c.compiler.cli import main


class Ran(NamedTuple):
    """What a command came to."""

    code: int
    out: str
    err: str


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ran]:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("DSV41C_")]:
        monkeypatch.delenv(name)

    def command(*argv: str) -> Ran:
        code = main(list(argv))
        captured = capsys.readouterr()
        return Ran(code, captured.out, captured.err)

    return command
