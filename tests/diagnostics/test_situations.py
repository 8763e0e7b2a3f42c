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


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"WORLD_SIZE": "many"}, "`WORLD_SIZE` is `many`, expected a number from 1 up"),
        ({"WORLD_SIZE": "0"}, "`WORLD_SIZE` is `0`"),
        ({"WORLD_SIZE": "2"}, "`WORLD_SIZE` is 2, which takes `RANK`, `MASTER_ADDR`, `MASTER_PORT` too"),
        ({"WORLD_SIZE": "2", "RANK": "x", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}, "`RANK` is `x`"),
        ({"WORLD_SIZE": "2", "LOCAL_RANK": "-1"}, "`LOCAL_RANK` is `-1`"),
    ],
)
def test_variables_of_several_processes_are_checked(variables, said, made, monkeypatch, capsys):
    monkeypatch.chdir(made)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    placed = ("--set", 'placement.devices=["cpu:0", "cpu:1"]', "--set", "placement.layer_ends=[3, 8]")
    assert main(["compile", "toy", "-o", "two.plan", *placed]) == 0
    code = main(["run", "two.plan", "--checkpoint", "toy.checkpoint", "--ids", "1", "-n", "1"])
    told = capsys.readouterr().err
    assert code == 2 and "error[DSV152]" in told and said in told
