"""Whatever fails inside a step is told: op, value, layer, phase, stage, sessions with positions, place in the spec."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import planted
import pytest
import spoiled
import torch
from golden_tiny import ORACLE, TINY, engine, ids, plan, weights, weights_for
from spoiled import FailingDevice, Fused, Spoiled, device_error, facts, narrower, on_device, raising, told

from dsv41c.compiler.cli import main
from dsv41c.diagnostics import UserFault
from dsv41c.runtime.engine import Engine
from dsv41c.runtime.faults.errors import code_of, said
from dsv41c.runtime.stages import processes
from dsv41c.runtime.stages.transport import Ended, LocalTransport

THREE = "placement: {devices: [cpu:0, cpu:1], layer_ends: [3, 10]}"
ONE = 'placement: {devices: ["cpu:0"], layer_ends: [10]}'


def four(kernels: object, **options: Any) -> Engine:
    """Four layers, steps of one session captured under CUDA's rules."""
    compiled = planted.for_family(plan(ORACLE, *planted.CHANGES, *planted.FOUR), "cuda")
    return Engine(compiled, TINY, weights=weights_for(compiled), kernels=kernels, strict=True, **options)


def test_a_prompt_that_fails_names_op_value_layer_and_tokens() -> None:
    running = engine(kernels=Spoiled("select_topk", raising(RuntimeError("size 7 is not 8\n at dim 2")), since=6))
    session = running.open()
    session.feed(ids()[:9], chunk=64)  # 4 layers select
    finding = told(lambda: running.feed(session, ids()[9:29], chunk=8))
    assert finding.code == "DSV840" and "RuntimeError: size 7 is not 8 at dim 2" in finding.message
    assert "`layers.6.attn.select_topk`, which makes `topk@L6`," in finding.message
    op = next(op for op in running.manifest.ops if op.id == "layers.6.attn.select_topk")
    assert str(finding.span) == op.span != "tiny.yaml:1:1"
    assert facts(finding) == {
        "op": "layers.6.attn.select_topk (select_topk)",
        "layer": "6",
        "region": "layers.6",
        "makes": "`topk@L6` i64 [1, 8, 8]",
        "step": "prefill, eager",
        "stage": "0 on cpu:0",
        "sessions": "slot 0 (epoch 1) at positions 9-16",
    }
    assert session.broken


def test_a_batch_that_fails_names_its_sessions() -> None:
    running = engine(kernels=Spoiled("head", raising(ValueError("no")), since=2))
    a, b = running.open(), running.open()
    a.feed(ids()[:5])
    b.feed(ids()[:7])
    finding = told(lambda: running.decode({b: 3, a: 4}))
    assert facts(finding)["sessions"] == "slot 1 (epoch 1) at position 7, slot 0 (epoch 1) at position 5"
    assert facts(finding)["step"] == "decode, eager" and facts(finding)["layer"] == "none"


def test_what_was_made_before_in_another_form_is_named() -> None:
    """The norm fails; the collapse before it is to blame."""
    running = engine(kernels=Spoiled("collapse", narrower))
    finding = told(lambda: running.feed(running.open(), ids()[:4]))
    assert "`layers.0.attn.norm`" in finding.message
    (note,) = finding.notes
    assert note.startswith("`collapsed@L0.attn`, made by `layers.0.attn.collapse`, is f32 [1, 4, 127] where the plan")


def test_what_leaves_a_region_in_another_form_is_told_at_capture() -> None:
    """Nothing behind it minds, and at a replay nobody looks any more."""
    kernels = Spoiled("head", narrower, variant="static")
    running = four(kernels)
    finding = told(lambda: running.decode({running.open(): 3}))
    assert finding.code == "DSV844" and facts(finding)["step"] == "decode, warm-up"
    assert "`head` made `logits` as f32 [1, 1, 511], expected f32 [1, 1, 512]" in finding.message


@pytest.mark.parametrize(("since", "how"), [(1, "warm-up"), (2, "capture"), (3, "replay")])
def test_captured_steps_say_how_they_ran(since: int, how: str) -> None:
    """One op fails the first time that it is called for a captured step, the second, the third."""
    kernels = Spoiled("engram_gate", raising(RuntimeError("odd")), since=since, variant="static")
    running = four(kernels)
    session = running.open()
    session.feed([7, 8])
    finding = told(lambda: running.decode({session: 3}))
    got = facts(finding)
    assert finding.code == "DSV840" and got["layer"] == "1" and got["op"] == "layers.1.engram_gate (engram_gate)"
    assert got["step"] == f"decode, {how}"
    whose = "slot 0 (epoch 1) at position 2" if how == "replay" else "none: padding rows alone"
    assert got["sessions"] == whose
    assert session.broken == (how == "replay")


def test_the_end_of_a_capture_does_not_hide_what_failed_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    late = device_error("CUDA error: operation failed due to a previous error during capture")
    running = on_device(FailingDevice("capture", late), monkeypatch, kernels=Spoiled("query", raising(ValueError("x"))))
    device = running.device
    assert isinstance(device, FailingDevice)
    device.warm_up = lambda work: None  # type: ignore[method-assign]
    finding = told(lambda: running.decode({running.open(): 3}))
    assert finding.code == "DSV840" and "ValueError: x" in finding.message and "query" in facts(finding)["op"]
    assert facts(finding)["step"] == "decode, capture"


@pytest.mark.parametrize("at", ["capture", "replay"])
def test_a_device_error_has_the_regions_it_may_come_from(at: str, monkeypatch: pytest.MonkeyPatch) -> None:
    device = FailingDevice(at, device_error())
    device.armed = False
    running = on_device(device, monkeypatch)
    session = running.open()
    session.feed(ids()[:3])
    if at == "replay":
        running.decode({session: 5})
    device.armed = True
    finding = told(lambda: running.decode({session: 6}))
    assert finding.code == "DSV842" and "CUDA error: unspecified launch failure" in finding.message
    (note,) = finding.notes
    assert finding.help is not None and "--check-finite" in finding.help and "CUDA_LAUNCH_BLOCKING" in finding.help
    if at == "capture":
        assert "at the capture of `embed" in finding.message and "none" in facts(finding)["sessions"]
        assert not session.broken
    else:
        assert "at the replay of `layers.2`" in finding.message and "from `embed` to `layers.2`" in note
        assert facts(finding)["sessions"] == "slot 0 (epoch 1) at position 4" and session.broken


def test_a_late_error_may_be_of_an_earlier_step() -> None:
    """Chunks are asked for ahead: the first is not known to be well when the second notices."""
    running = engine(kernels=Spoiled("attend", raising(device_error()), since=10))
    finding = told(lambda: running.feed(running.open(), ids()[:16], chunk=8))
    (note,) = finding.notes
    assert "from `embed` of an earlier step (slot 0 (epoch 1) at positions 0-7) to `layers.0`" in note
    assert facts(finding)["sessions"] == "slot 0 (epoch 1) at positions 8-15"


def test_with_debug_every_region_was_waited_for() -> None:
    running = engine(kernels=Spoiled("attend", raising(device_error()), since=3), debug=2)
    finding = told(lambda: running.feed(running.open(), ids()[:8]))
    assert "it was made in `layers.3`" in finding.notes[0]
    checked = engine(kernels=Spoiled("attend", raising(device_error()), since=3), check_finite=True)
    finding = told(lambda: checked.feed(checked.open(), ids()[:8]))
    assert finding.notes == () and finding.help is not None and "every op was waited for" in finding.help


def test_a_device_that_fails_when_it_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def finish(self: LocalTransport, *_: object) -> Ended:
        def wait() -> torch.Tensor:
            raise device_error("HIP error: unspecified launch failure")

        return Ended(wait)

    running = engine()
    session = running.open()
    monkeypatch.setattr(LocalTransport, "finish", finish)
    finding = told(lambda: session.feed(ids()[:8]))
    assert finding.code == "DSV842" and "while it was waited for" in finding.message
    assert "from `embed` to `head`" in finding.notes[0] and session.broken
    assert facts(finding)["sessions"] == "slot 0 (epoch 1) at positions 0-7"


@pytest.mark.parametrize("kind", ["attend", "attention_output"])
def test_fused_calls_name_what_they_cover(kind: str) -> None:
    compiled = plan(*planted.FUSED)
    kernels = Fused(kind, raising(RuntimeError("odd")), since=0)
    running = Engine(compiled, TINY, kernels=kernels, weights=weights(planted.FUSED[0]), strict=True)
    finding = told(lambda: running.feed(running.open(), ids()[:4]))
    note = finding.notes[0]
    assert "`attention_output` covers `layers.0.attn.attend`, `layers.0.attn.window_store`" in note
    if kind == "attend":
        assert "it was at `layers.0.attn.attend`" in note and "which makes `attended@L0`" in finding.message
    else:
        assert "the fused call `attention_output` in region `layers.0`" in finding.message
        assert "layers.0.attn.expand (expand)" in facts(finding)["op"] and "streams@L0.attn" in facts(finding)["makes"]


def test_stages_are_named() -> None:
    running = Engine(
        plan(ORACLE, (ONE, THREE)), TINY, weights=weights(), kernels=Spoiled("attend", raising(KeyError("x")), since=3)
    )
    finding = told(lambda: running.feed(running.open(), ids()[:4]))
    assert facts(finding)["stage"] == "1 on cpu:1" and facts(finding)["region"] == "layers.3"


def test_other_processes_are_told_all_of_it() -> None:
    running = engine(kernels=Spoiled("attend", raising(RuntimeError("odd: \n\x1b[31m" + "é" * 3000))))
    with pytest.raises(UserFault) as fault:
        running.feed(running.open(), ids()[:4])
    stage, names = running.layout.stages[0], ("process 0 (stage 0 on cpu:0)",)
    text = processes._said(stage, processes.World(0, 1, 1, 0, names, None, None), fault.value)  # type: ignore[arg-type]
    failure = processes.Header.of(processes.Header(3, 0, 0, text).packed()).failure
    assert failure is not None
    finding = processes._elsewhere(failure)
    assert finding.code == "DSV891" and "`layers.0.attn.attend`, which makes `attended@L0`, failed" in finding.message
    assert facts(finding)["code"] == "DSV840" and facts(finding)["layer"] == "0"
    assert facts(finding)["comes from"].startswith("tiny.yaml:")
    assert facts(finding)["sessions"] == "slot 0 (epoch 1) at positions 0-3"


def test_code_that_is_not_the_plans_names_the_region() -> None:
    def edited(*_: object) -> object:
        raise ZeroDivisionError("here")

    compiled = plan()
    compiled = replace(compiled, functions={**compiled.functions, "layers.3": edited})
    running = Engine(compiled, TINY, weights=weights())
    finding = told(lambda: running.feed(running.open(), ids()[:4]))
    assert finding.message == "region `layers.3` failed: ZeroDivisionError: here"
    assert finding.span is not None and "op" not in facts(finding)


def test_what_is_no_fault_of_an_op_stays_a_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_: object, **__: object) -> None:
        raise KeyError("ours")

    running = engine()
    monkeypatch.setattr(LocalTransport, "run", run)
    with pytest.raises(KeyError):
        running.feed(running.open(), ids()[:4])

    def ours(*_: object) -> None:
        raise RuntimeError("ours too")

    captured = on_device(FailingDevice("never", device_error()), monkeypatch)
    monkeypatch.undo()
    monkeypatch.setattr("dsv41c.runtime.captured.CapturedSteps._look", ours)
    with pytest.raises(RuntimeError, match="ours too"):
        captured.decode({captured.open(): 3})


def test_nobody_watches_while_all_is_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dsv41c.runtime.executor.RecordingKernels", None)
    monkeypatch.setattr("dsv41c.runtime.executor.Sizes", None)
    running = engine()
    running.feed(running.open(), ids()[:4])
    assert not running.executor.begun


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (MemoryError(), "DSV841"),
        (torch.OutOfMemoryError("CUDA out of memory"), "DSV841"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"), "DSV841"),
        (RuntimeError("HIP error: the operation cannot be performed in the present state"), "DSV842"),
        (RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered"), "DSV842"),
        (RuntimeError("Triton Error [CUDA]: out of memory"), "DSV841"),
        (spoiled.compile_error("at 1:2"), "DSV843"),
        (ValueError("a cuda error, says a text"), "DSV840"),
        (AssertionError(), "DSV840"),
    ],
)
def test_kinds_of_errors(error: Exception, code: str) -> None:
    assert code_of(error) == code


def test_texts_of_errors_are_short_and_safe() -> None:
    text = said(RuntimeError("\x1b[31m first\n" + "x" * 10_000 + "\u202e last."))
    assert len(text) < 220 and "\x1b" not in text and "\u202e" not in text
    assert text.startswith("RuntimeError: \\x1b[31m first") and text.endswith("last")


COMMAND = ("--checkpoint", str(TINY), "--ids", "3,4,5", "-n", "2")


@pytest.mark.parametrize(("error", "code"), [(RuntimeError("odd"), 1), (MemoryError("none"), 2), (device_error(), 2)])
def test_the_command_says_so(
    error: Exception, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("dsv41c.runtime.steps.kernels_for", lambda *_: Spoiled("route", raising(error)))
    folder = str(plan().folder)
    assert main(["run", folder, *COMMAND]) == code
    out, err = capsys.readouterr()
    assert not out and "Traceback" not in err and "`layers.0.ffn.route`" in err and "tiny.yaml:18:6" in err
    monkeypatch.setenv("DSV41C_DEBUG", "2")
    assert main(["run", folder, *COMMAND]) == code
    assert "spoiled.py" in (shown := capsys.readouterr().err) and "debug:" in shown


def test_sessions_go_on_after_a_failed_capture() -> None:
    kernels = Spoiled("engram_gate", raising(RuntimeError("odd")), variant="static")
    running, well = four(kernels), four(Spoiled("", raising(RuntimeError()), variant="static"))
    one, other = running.open(), well.open()
    told(lambda: running.decode({one: 3}))
    kernels.kind = ""
    assert torch.equal(running.decode({one: 3})[one], well.decode({other: 3})[other])


def test_a_folder_is_not_needed_any_more(tmp_path: Path) -> None:
    """The code that failed is found in what was loaded."""
    from shutil import copytree, rmtree

    from dsv41c.runtime.plan import load_plan

    copytree(plan().folder, tmp_path / "p")
    compiled = load_plan(tmp_path / "p")
    rmtree(tmp_path / "p")
    running = Engine(compiled, TINY, weights=weights(), kernels=Spoiled("mix", raising(RuntimeError("odd"))))
    assert "`layers.0.attn.mix`" in told(lambda: running.feed(running.open(), [3])).message
