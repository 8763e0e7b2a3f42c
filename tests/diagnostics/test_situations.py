"""What `explain` says of how codes come about: commands give the code, and the mended ones do not."""

import re
import shlex

import pytest

from dsv41c.codes import TABLE
from dsv41c.codes.situations import SITUATIONS
from dsv41c.compiler.cli import main

COMMAND = re.compile(r"(?:(DSV41C_\w+)=(\w+) )?dsv41c ([^;,`]+)")
COMMANDS = [code for code, both in SITUATIONS.items() if all(map(COMMAND.fullmatch, both))]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with the toy's plan and a random checkpoint of it."""
    folder = tmp_path_factory.mktemp("situations")
    assert main(["compile", "toy", "-o", str(folder / "toy.plan")]) == 0
    assert main(["synth", "toy", "-o", str(folder / "toy.checkpoint")]) == 0
    return folder


@pytest.mark.parametrize("code", COMMANDS)
def test_commands_do_what_is_said(code, made, monkeypatch, capsys):
    monkeypatch.chdir(made)
    told = []
    for text in SITUATIONS[code]:
        name, value, words = COMMAND.fullmatch(text).groups()
        with monkeypatch.context() as environment:
            if name:
                environment.setenv(name, value)
            exit_code = main(shlex.split(words))
        said = capsys.readouterr()
        told.append((exit_code, f"[{code}]" in said.out + said.err))
    stops = TABLE[code].severity == "error"
    assert told[0][1] and (told[0][0] != 0) == stops, told
    assert told[1] == (0, False), said.err


def test_words_of_both_kinds_are_short_and_differ():
    assert len(COMMANDS) > 12
    for code, (bad, good) in SITUATIONS.items():
        assert bad != good and max(len(bad), len(good)) <= 120, code
        assert bad.count("`") % 2 == good.count("`") % 2 == 0, code
