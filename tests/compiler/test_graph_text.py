"""A graph as text in place of a spec: judged line by line, whatever was edited into it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from dsv41c.compiler.cli import main
from dsv41c.compiler.ir import MAX_LINE


@pytest.fixture
def text(capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["graph", "toy"]) == 0
    return capsys.readouterr().out


def test_what_graph_prints_is_valid_and_prints_itself(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "graph.txt"
    file.write_text("# edited by hand\n" + text)
    assert main(["validate", str(file)]) == 0
    assert main(["graph", str(file)]) == 0
    assert capsys.readouterr().out == text
    assert main(["graph", str(file), "--select", "compress_kv@L2+"]) == 0
    assert "read by layers 2-4" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("before", "after", "code", "op"),
    [
        ("pre=pre@L3.ffn |  | ) -> (c", "pre=pre@L4.attn |  | ) -> (c", "DSV427", "layers.4.attn.collapse = "),
        ("@L4.attn, pre=pre@L4.attn", "@L4.attn, pre=pre@L4.ffn", "DSV427", "layers.4.ffn.collapse = "),
        ("topk=topk@L7 |", "topk=topk@L5 |", "DSV409", "layers.7.attn.select_topk = "),
        ("(logits=logits: temporary", "(logits=logits: no_such_kind", "DSV130", "head = "),
    ],
)  # fmt: skip
def test_an_edit_is_refused_on_its_own_line(
    text: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    before: str,
    after: str,
    code: str,
    op: str,
) -> None:
    assert text.count(before) == 1
    file = tmp_path / "graph.txt"
    file.write_text(text.replace(before, after))
    line = next(number for number, each in enumerate(text.splitlines(), 1) if each.startswith(op))
    assert main(["validate", str(file), "--format", "concise"]) == 1
    assert capsys.readouterr().out.startswith(f"{file}:{line}:1: {code} ")
    assert main(["graph", str(file)]) == 1


def test_a_value_written_twice(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "graph.txt"
    lines = text.splitlines()
    head = lines[-1]
    file.write_text("\n".join([*lines, head]) + "\n")
    assert main(["validate", str(file), "--format", "concise"]) == 1
    assert "DSV421" in capsys.readouterr().out


@pytest.mark.parametrize("option", [["--set", "model.dim=3"], ["--target", "cpu"], ["--checkpoint", "folder"]])
def test_what_goes_with_specs_does_not_go_with_graphs(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], option: list[str]
) -> None:
    file = tmp_path / "graph.txt"
    file.write_text(text)
    assert main(["validate", str(file), *option]) == 2
    assert f"`{option[0]}` goes with specs only" in capsys.readouterr().err


@pytest.mark.parametrize(
    "line",
    [
        "embed = embed(a |  | " + ") -> () @1 ; " * 1500 + "x",
        "embed = embed( |  | a=" + "[" * 9000 + ") -> () @1 ; x:1:1",
        "embed = embed( |  | a=NaN) -> () @1 ; x:1:1",
        "embed = embed( |  | a=1e999) -> () @1 ; x:1:1",
        "embed = embed( |  | ) -> () @" + "9" * 9000 + " ; x:1:1",
        "input " + "a." * 9000,
        "input " + "a" * MAX_LINE,
        "#\n" * 100_000 + "x",
    ],
)
def test_lines_made_to_hurt(tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str) -> None:
    file = tmp_path / "graph.txt"
    file.write_text(f'dsv41c.graph/1 "x"\n{line}\n')
    start = time.process_time()
    assert main(["validate", str(file), "--format", "concise"]) == 1
    assert "DSV130" in capsys.readouterr().out
    assert time.process_time() - start < 10


@pytest.mark.parametrize(
    "head", ['dsv41c.graph/2 "x"', "dsv41c.graph/1", r'dsv41c.graph/1 "\x"', 'dsv41c.graph/1 "a" b']
)
def test_other_first_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str], head: str) -> None:
    file = tmp_path / "graph.txt"
    file.write_text("#\n" * 1000 + head + "\n")
    assert main(["validate", str(file), "--format", "concise"]) == 1
    assert capsys.readouterr().out.startswith(f"{file}:1001:1: DSV130 ")
