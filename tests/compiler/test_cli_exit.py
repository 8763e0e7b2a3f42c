"""What a run of the command line leaves behind: its exit code, and the process as it was."""

import gc

from dsv41c.compiler.cli import main
from dsv41c.compiler.cli.faults import USAGE_CODES, exit_code
from dsv41c.diagnostics import Diagnostic


def test_exit_code_is_2_only_where_every_error_is_of_usage():
    assert {"DSV117", "DSV152", "DSV820", "DSV858", "DSV860", "DSV865"} <= USAGE_CODES
    usage, content = Diagnostic("DSV860", "n is below 0"), Diagnostic("DSV301", "layer 99")
    assert [exit_code(found) for found in ([], [usage], [content], [usage, content])] == [0, 2, 1, 1]
    assert exit_code([Diagnostic("DSV410", "a warning")]) == 0


def test_the_cycle_collector_runs_again(capsys):
    assert gc.isenabled()
    assert main(["validate", "toy"]) == 0
    assert gc.isenabled()


def test_a_comparison_that_fails_exits_1(tmp_path, monkeypatch, capsys):
    from dsv41c.runtime import compare

    plan, checkpoint = str(tmp_path / "plan"), str(tmp_path / "checkpoint")
    assert main(["compile", "toy", "-o", plan]) == 0
    assert main(["synth", "toy", "-o", checkpoint]) == 0
    run = ["run", plan, "--checkpoint", checkpoint, "--ids", "0,5", "-n", "0", "--compare", "reference"]
    assert main(run) == 0
    monkeypatch.setattr(compare, "BOUNDS", {"f32": -1.0, "bf16": -1.0})
    assert main(run) == 1
    assert "DSV866" in capsys.readouterr().err


def test_state_of_another_session_exits_1(tmp_path, monkeypatch, capsys):
    from dsv41c.runtime.session import Session

    plan, checkpoint = str(tmp_path / "plan"), str(tmp_path / "checkpoint")
    assert main(["compile", "toy", "-o", plan]) == 0
    assert main(["synth", "toy", "-o", checkpoint]) == 0
    run = ["run", plan, "--checkpoint", checkpoint, "--ids", "0,5", "-n", "0"]
    monkeypatch.setenv("DSV41C_DEBUG", "2")
    assert main(run) == 0
    begin = Session.__init__
    monkeypatch.setattr(Session, "__init__", lambda self, engine, slot, epoch: begin(self, engine, slot, epoch, 3))
    capsys.readouterr()
    assert main(run) == 1
    said = capsys.readouterr().err
    assert "DSV848" in said and "window_kv@L0" in said and "position 2" in said and "slot 0 (epoch 1)" in said
