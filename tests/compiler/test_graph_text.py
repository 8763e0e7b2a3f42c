"""A graph as text in place of a spec: judged line by line, whatever was edited into it."""

from __future__ import annotations

import re
import re._parser as parser
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dsv41c.compiler import ir
from dsv41c.compiler.cli import main
from dsv41c.compiler.ir import MAX_LINE
from dsv41c.diagnostics import UserFault

from ..cost import growth  # noqa: TID252 (tests are no installed package)


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
    assert main(["validate", str(file), "--format", "concise"]) == 1
    assert "DSV130" in capsys.readouterr().out


def test_lines_beyond_a_length_are_matched_with_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Matching a line takes time with the square of its length, so the length is what bounds it."""
    seen: list[int] = []

    class Counted:
        """Sees how long the lines are that a pattern is matched with."""

        def __init__(self, pattern: re.Pattern[str]) -> None:
            self.pattern = pattern

        def fullmatch(self, line: str) -> re.Match[str] | None:
            seen.append(len(line))
            return self.pattern.fullmatch(line)

    for name in ("_INPUT", "_OP"):
        monkeypatch.setattr(ir, name, Counted(getattr(ir, name)))
    for length in (MAX_LINE - 1, MAX_LINE, MAX_LINE + 1, 10 * MAX_LINE):
        with pytest.raises(UserFault, match="neither an input nor an op"):
            ir.parse('dsv41c.graph/1 "x"\n' + "a" * length)
    assert seen == [MAX_LINE - 1, MAX_LINE - 1, MAX_LINE, MAX_LINE]


@pytest.mark.parametrize("name", ["_INPUT", "_OP", "_WRITE", "_ATTR"])
def test_no_pattern_repeats_what_repeats(name: str) -> None:
    """Such a pattern can be matched in so many ways that a line of fifty characters takes for ever."""
    pattern = getattr(ir, name).pattern
    assert not _nested(parser.parse(pattern), inside=False), pattern
    assert _nested(parser.parse("(?:a+)*"), inside=False) and _nested(parser.parse("(a|b*c)+"), inside=False)


def _nested(part: Any, *, inside: bool) -> bool:
    """Whether a repeat without end, other than a possessive one, holds another."""
    if isinstance(part, list | tuple | parser.SubPattern):
        if len(part) == 2 and str(part[0]) in ("MAX_REPEAT", "MIN_REPEAT"):
            _, most, repeated = part[1]
            endless = most is parser.MAXREPEAT
            return (endless and inside) or _nested(repeated, inside=inside or endless)
        return any(_nested(each, inside=inside) for each in part)
    return False


BODIES: dict[str, Callable[[range], str]] = {
    "comments": lambda numbers: "#\n" * len(numbers) + "x",
    "inputs": lambda numbers: "\n".join(f"input v{n}: temporary f32[1] @0 ; x:1:{n}" for n in numbers),
    "ops": lambda numbers: "\n".join(
        f"n{n} = norm(x=v{n} | weight=w | eps=1) -> (normed=v{n + 1}: temporary f32[1]) @0 ; x:1:1" for n in numbers
    ),
    "attributes": lambda numbers: "embed = embed( |  | " + "a=1, " * len(numbers) + ") -> () @1 ; x:1:1",
    "reads": lambda numbers: "embed = embed(" + "a=b, " * len(numbers) + " |  | ) -> () @1 ; x:1:1",
    "writes": lambda numbers: f"n = embed( |  | ) -> ({'a=b: temporary f32[1], ' * len(numbers)}) @1 ; x:1:1",
}


@pytest.mark.parametrize("name", BODIES)
def test_judging_a_graph_is_work_that_grows_with_its_text_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    def judge(count: int) -> None:
        file.write_text(f'dsv41c.graph/1 "x"\n{BODIES[name](range(count))}\n')
        assert main(["validate", str(file), "--format", "concise"]) == (0 if name == "inputs" else 1)

    file = tmp_path / "graph.txt"
    assert growth(judge, 200).ratio < 2.2


@pytest.mark.parametrize(
    "head", ['dsv41c.graph/2 "x"', "dsv41c.graph/1", r'dsv41c.graph/1 "\x"', 'dsv41c.graph/1 "a" b']
)
def test_other_first_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str], head: str) -> None:
    file = tmp_path / "graph.txt"
    file.write_text("#\n" * 1000 + head + "\n")
    assert main(["validate", str(file), "--format", "concise"]) == 1
    assert capsys.readouterr().out.startswith(f"{file}:1001:1: DSV130 ")
