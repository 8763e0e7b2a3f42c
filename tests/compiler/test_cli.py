"""The command line's contract: exit codes, what goes to which stream, and nothing left half-written."""

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dsv41c.compiler.cli.verbs import VERBS

BROKEN = "extends: toy\nlayers: {kv_source_layers: [2]}\n"


Run = Callable[..., Any]  # of conftest.py


def process(*argv: str, cwd: Path, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "dsv41c", *argv],
        cwd=cwd,
        env={**os.environ, **environment},
        input=stdin,
        capture_output=True,
        text=True,
        timeout=120,
    )


# --- usage ------------------------------------------------------------------------------------------------------------


def test_alone_it_says_what_there_is(run: Run):
    ran = run()
    assert ran.code == 0
    assert len(ran.out.splitlines()) <= 4 + len(VERBS)
    assert all(verb in ran.out for verb in VERBS)


@pytest.mark.parametrize("verb", VERBS)
def test_help_of_each_verb(run: Run, verb: str):
    ran = run(verb, "--help")
    assert ran.code == 0
    assert ran.out.startswith(f"usage: dsv41c {verb}")
    assert f"example: dsv41c {VERBS[verb].example}" in " ".join(ran.out.split())
    assert run("help", verb).out == ran.out


def test_version(run: Run):
    assert run("--version").out.startswith("dsv41c 0.")


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("valdate", "toy"), "did you mean `validate`?"),
        (("xyzzy",), "`xyzzy` is not a verb"),
        (("validate",), "SPEC"),
        (("validate", "toy", "--fromat", "json"), "did you mean `--format`?"),
        (("validate", "toy", "--format", "xml"), "xml"),
        (("validate", "-", "-"), "once"),
        (("compile", "toy"), "-o DIR"),
        (("compile", "toy", "-o", "-"), "standard output"),
        (("compile", "toy", "--set", "runtime.max_context", "-o", "p"), "PATH=VALUE"),
        (("run", "plan", "--checkpoint", "c"), "--prompt"),
        (("run", "plan", "--checkpoint", "c", "--ids", "1", "--prompt", "x"), "not allowed with"),
        (("run", "plan", "--checkpoint", "c", "--ids", "1", "-n", "-2"), "-2"),
        (("run", "plan", "--checkpoint", "c", "--ids", "1", "--temperature", "nan"), "nan"),
        (("run", "plan", "--checkpoint", "c", "--ids", "1", "--until", "logits"), "--compare reference"),
        (("explain", "DSV999"), "is not a code"),
        (("estimate", "toy", "--host-memory", "96G"), "may be GB or GiB"),
        (("estimate", "toy", "--host-memory", "much"), "not a size"),
        (("estimate", "toy", "--host-memory", "0.5"), "not a size"),
        (("estimate", "toy", "--host-memory", "0GB"), "1 byte"),
        (("estimate", "toy", "--unified"), "give its size"),
        (("estimate", "toy", "--unified", "--host-memory", "1GB", "--device-memory", "1GB"), "give its size"),
        (("estimate", "toy", "--fit", "context"), "give `--device-memory`"),
        (("estimate", "toy", "--fit", "context", "--context", "9", "--host-memory", "1GB"), "leave one of them out"),
        (("estimate", "toy", "--context", "1025"), "`model.max_seq_len`"),
        (("graph", "toy", "--hide", "tok"), "did you mean"),
    ],
)
def test_wrong_usage_is_2_and_on_stderr(run: Run, argv: tuple[str, ...], said: str):
    ran = run(*argv)
    assert ran.code == 2
    assert ran.out == ""
    assert said in ran.err
    assert "Traceback" not in ran.err


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (("validate", "nosuch"), "DSV220"),
        (("validate", "./nosuch.yaml"), "DSV117"),
        (("compile", "nosuch", "-o", "p"), "DSV220"),
        (("compile", "toy", "-o", "a/b/c"), "DSV154"),
        (("graph", "toy", "-o", "a/b.dot"), "DSV154"),
        (("graph", "toy", "-o", "."), "DSV154"),
        (("graph", "toy", "--select", "layers.99"), "DSV151"),
        (("import", "nosuch.json"), "DSV117"),
        (("inspect", "nosuch"), "DSV117"),
        (("inspect", "nosuch", "--boundaries"), "DSV117"),
        (("estimate", "nosuch"), "DSV220"),
        (("run", "nosuch", "--checkpoint", "c", "--ids", "1"), "DSV117"),
        (("validate", "toy", "--checkpoint", "nosuch"), "DSV700"),
        (("synth", "deepseek-v4.1-flash", "-o", "big"), "DSV750"),
        (("import", "nosuch.json", "-o", "a/b.yaml"), "DSV154"),
    ],
)
def test_what_is_not_there_is_2_with_a_code(run: Run, tmp_path: Path, argv: tuple[str, ...], code: str):
    ran = run(*argv)
    assert ran.code == 2
    assert f"error[{code}]" in ran.out + ran.err
    assert not list(tmp_path.iterdir())


# --- verbs ------------------------------------------------------------------------------------------------------------


def test_validate(run: Run, tmp_path: Path):
    assert run("validate", "toy", "deepseek-v4.1-flash")[:2] == (0, "")
    (tmp_path / "broken.yaml").write_text(BROKEN)
    ran = run("validate", "toy", "broken.yaml")
    assert ran.code == 1
    assert "error[DSV403]" in ran.out
    assert "toy.yaml: ok" in ran.err


@pytest.mark.parametrize("form", ["text", "concise", "json", "sarif", "github"])
def test_validate_formats(run: Run, tmp_path: Path, form: str):
    (tmp_path / "broken.yaml").write_text(BROKEN)
    ran = run("validate", "broken.yaml", "--format", form)
    assert ran.code == 1
    assert "DSV403" in ran.out
    if form in ("json", "sarif"):
        json.loads(ran.out)
        json.loads(run("validate", "toy", "--format", form).out)


def test_standard_input(tmp_path: Path):
    assert process("validate", "-", cwd=tmp_path, stdin="extends: toy\n").returncode == 0
    broken = process("validate", "-", "--format", "concise", cwd=tmp_path, stdin=BROKEN)
    assert broken.returncode == 1
    assert "DSV403" in broken.stdout
    mended = process("validate", "-", "--fix", cwd=tmp_path, stdin="extends: toy\nruntime: {max_sesions: 2}\n")
    assert "+runtime: {max_sessions: 2}" in mended.stdout
    assert "--write" not in mended.stderr


def test_compile_and_compile_again(run: Run, tmp_path: Path):
    ran = run("compile", "toy", "-o", "plan")
    assert ran[:2] == (0, "")
    assert "wrote plan" in ran.err
    assert "compress_kv" in ran.err
    before = {file.name: file.read_bytes() for file in (tmp_path / "plan").iterdir()}
    assert "manifest.json" in before
    assert run("compile", "toy", "-o", "plan", "--check").code == 0
    assert "left as it was" in run("compile", "toy", "-o", "plan").err
    assert {file.name: file.read_bytes() for file in (tmp_path / "plan").iterdir()} == before
    changed = run("compile", "toy", "-o", "plan", "--set", "runtime.max_context=256")
    assert "~ runtime.max_context 512 -> 256" in changed.err


def test_check_finds_a_stale_plan_and_writes_nothing(run: Run, tmp_path: Path):
    assert run("compile", "toy", "-o", "plan", "--check").code == 1
    assert not (tmp_path / "plan").exists()
    run("compile", "toy", "-o", "plan")
    stale = run("compile", "toy", "-o", "plan", "--check", "--set", "runtime.max_context=256")
    assert stale.code == 1
    assert "~ runtime.max_context 512 -> 256" in stale.out
    assert run("compile", "toy", "-o", "plan", "--check").code == 0


def test_dry_run_writes_nothing(run: Run, tmp_path: Path):
    ran = run("compile", "toy", "--dry-run")
    assert ran.code == 0
    assert "stage_0.py" in ran.out
    assert run("compile", "toy", "-o", "plan", "--dry-run", "--json").code == 0
    assert not list(tmp_path.iterdir())


def test_compile_refuses_what_validate_refuses(run: Run, tmp_path: Path):
    (tmp_path / "broken.yaml").write_text(BROKEN)
    for verb in (
        ("compile", "broken.yaml", "-o", "plan"),
        ("graph", "broken.yaml"),
        ("synth", "broken.yaml", "-o", "c"),
    ):
        ran = run(*verb)
        assert ran[:2] == (1, "")
        assert "error[DSV403]" in ran.err
    assert [file.name for file in tmp_path.iterdir()] == ["broken.yaml"]


def test_compile_leaves_other_folders_alone(run: Run, tmp_path: Path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    ran = run("compile", "toy", "-o", "mine")
    assert ran.code != 0
    assert "DSV820" in ran.err
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "years of work"


def test_targets_and_sets(run: Run):
    placed = json.loads(run("compile", "deepseek-v4.1-flash", "--dry-run", "--target", "rocm8", "--json").out)
    assert len(placed["summary"]["stages"]) == 8
    wrong = run("compile", "toy", "--dry-run", "--set", "numerics.compute=f16")
    assert wrong.code == 1
    assert "<--set 1>:1" in wrong.err


def test_graph_answers(run: Run):
    ran = run("graph", "deepseek-v4.1-flash", "--select", "compress_kv@L20+")
    assert ran.code == 0
    assert ran.out.startswith("# compress_kv@L20: written by layer 20, read by layers 20-39\n")


def test_graph_shows_where_a_selection_is_wrong(run: Run):
    ran = run("graph", "toy", "--select", "layers.1, compress_kv@L3+")
    assert ran[:2] == (2, "")
    assert "<--select>:1:11" in ran.err
    assert "^^^^^^^^^^^^^^" in ran.err


def test_graph_to_a_file(run: Run, tmp_path: Path):
    assert run("graph", "toy", "--format", "dot", "-o", "toy.dot")[:2] == (0, "")
    assert (tmp_path / "toy.dot").read_text().startswith("digraph")
    assert [file.name for file in tmp_path.iterdir()] == ["toy.dot"]


def test_explain(run: Run):
    listed = run("explain")
    assert listed.code == 0
    assert "DSV403" in listed.out
    page = run("explain", "dsv403")
    assert "This gives it:" in page.out
    assert run("explain", json.loads(run("explain", "DSV403", "--json").out)["name"]).out == page.out
    assert "did you mean" in run("explain", "DSV40").err


# --- findings as JSON, colour, settings -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "argv",
    [
        ("compile", "broken.yaml", "-o", "plan", "--json"),
        ("graph", "broken.yaml", "--json"),
        ("synth", "broken.yaml", "-o", "c", "--json"),
        ("validate", "broken.yaml", "--json"),
    ],
)
def test_json_findings_are_the_result(run: Run, tmp_path: Path, argv: tuple[str, ...]):
    (tmp_path / "broken.yaml").write_text(BROKEN)
    ran = run(*argv)
    assert ran.code == 1
    data = json.loads(ran.out)
    assert data["format"].startswith("dsv41c.diagnostics/")
    assert [finding["code"] for finding in data["diagnostics"]] == ["DSV403"]


def test_colour_is_asked_for_or_on_a_terminal(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "broken.yaml").write_text(BROKEN)
    assert "\x1b[" not in run("validate", "broken.yaml").out
    assert "\x1b[" in run("validate", "broken.yaml", "--color", "always").out
    monkeypatch.setenv("DSV41C_COLOR", "always")
    assert "\x1b[" in run("validate", "broken.yaml").out
    assert "\x1b[" not in run("validate", "broken.yaml", "--color", "never").out


def test_settings_are_checked(run: Run, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("DSV41C_DEBG", "1")
    ran = run("explain")
    assert ran.code == 0
    assert "DSV153" in ran.err
    assert "`DSV41C_DEBUG`" in ran.err
    monkeypatch.setenv("DSV41C_DEBUG", "loud")
    ran = run("explain")
    assert ran[:2] == (2, "")
    assert "DSV152" in ran.err


def test_debug_tells_times(run: Run, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("DSV41C_DEBUG", "1")
    assert "debug: validate in all" in run("validate", "toy").err


# --- when things go wrong ---------------------------------------------------------------------------------------------


def _raise(error: BaseException) -> Callable[..., int]:
    def work(*_: object) -> int:
        raise error

    return work


def test_a_bug_is_101_with_what_to_report(run: Run, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("dsv41c.compiler.cli.explain.work", _raise(KeyError("x")))
    ran = run("explain", "a b")
    assert ran[:2] == (101, "")
    for part in ("this is a bug in dsv41c", "dsv41c 0.", "Python 3", "platform:", "dsv41c explain 'a b'", "KeyError"):
        assert part in ran.err


def test_interrupted_is_130(run: Run, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("dsv41c.compiler.cli.explain.work", _raise(KeyboardInterrupt()))
    ran = run("explain")
    assert ran.code == 130
    assert "Traceback" not in ran.err


def test_the_environment_refusing_is_2(run: Run, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("dsv41c.compiler.cli.explain.work", _raise(OSError(28, "No space left on device")))
    ran = run("explain")
    assert ran.code == 2
    assert "No space left" in ran.err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_2(tmp_path: Path):
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "dsv41c", "graph", "toy"]
        ran = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, cwd=tmp_path, timeout=60)
    assert ran.returncode == 2
    assert "Traceback" not in ran.stderr


def test_a_reader_that_leaves_is_no_fault(tmp_path: Path):
    command = f"{sys.executable} -m dsv41c graph deepseek-v4.1-flash --format json | head -n 1"
    ran = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, cwd=tmp_path, timeout=60
    )
    assert ran.returncode == 0
    assert ran.stderr == ""


@pytest.mark.parametrize("closed", ["<&-", "2>&-", "<&- 2>&-"])
def test_closed_streams_are_no_fault(tmp_path: Path, closed: str):
    command = f"{sys.executable} -m dsv41c validate - {closed}"
    ran = subprocess.run(["bash", "-c", command], capture_output=True, text=True, input="", cwd=tmp_path, timeout=60)
    assert ran.returncode == 1  # nothing is no spec
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize("argv", ["graph toy", "graph nosuch --json", "explain", "", "--help", "run --help"])
def test_a_result_that_reaches_nobody_is_2(tmp_path: Path, argv: str):
    command = f"{sys.executable} -m dsv41c {argv} >&-"
    ran = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=tmp_path, timeout=60)
    assert ran.returncode == 2
    assert "standard output is closed" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_without_a_result_nobody_misses_standard_output(tmp_path: Path):
    command = f"{sys.executable} -m dsv41c compile toy -o toy.plan >&-"
    assert subprocess.run(["bash", "-c", command], capture_output=True, cwd=tmp_path, timeout=60).returncode == 0
    assert (tmp_path / "toy.plan" / "manifest.json").read_text().startswith("{")


def test_output_that_the_terminal_cannot_spell(tmp_path: Path):
    ran = process("explain", cwd=tmp_path, PYTHONIOENCODING="ascii", LC_ALL="C", PYTHONUTF8="0")
    assert ran.returncode == 0
    assert "Traceback" not in ran.stderr


def test_the_schema_for_editors(run: Run):
    ran = run("explain", "--schema")
    assert ran.code == 0 and json.loads(ran.out)["title"] == "dsv41c.spec/1"
    assert run("explain", "DSV301", "--schema").code == 2


def test_validate_takes_many_and_tells_all(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch):
    """Good ones are said to be ok, each once however it is spelt; what is wrong anywhere is in one report."""
    Path("good.yaml").write_text("extends: toy\n")
    Path("bad.yaml").write_text(BROKEN)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"extends: toy\nruntime: {max_sesions: 2}\n")))
    ran = run("validate", "good.yaml", "none.yaml", "-", "bad.yaml", "./good.yaml", "toy", "--format", "concise")
    assert ran.code == 1 and ran.err == "good.yaml: ok\nspecs/toy.yaml: ok\n"
    places = [line.split(": ")[0] for line in ran.out.splitlines()]
    assert places == ["<stdin>:2:11", "none.yaml:1:1", "specs/toy.yaml:17:37"]
    assert run("validate", "good.yaml", "none.yaml").code == 2  # nothing is wrong but what was asked for
    assert run("validate", "good.yaml", "bad.yaml", "bad.yaml").out.count("error[") == 1
    assert run("validate", "-", "good.yaml", "-").code == 2
