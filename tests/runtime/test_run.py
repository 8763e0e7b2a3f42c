"""Whole runs: files in the golden's names and forms, text, comparison, and refusals before any work."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from golden_tiny import LOGITS_BOUND, ORACLE, TINY, apart, golden, ids, plan, prefill_rows
from safetensors import SafetensorError
from safetensors.torch import load_file

from dsv41c.compiler.cli.files import expect_writable
from dsv41c.diagnostics import UserFault
from dsv41c.runtime.files import save_tensors
from dsv41c.runtime.run import Prompt, RunOptions, RunResult, read_ids, run_plan


def run(tokens: Sequence[int], **options: Any) -> RunResult:
    return run_plan(plan(), TINY, Prompt(ids=tokens), RunOptions(**options))


def codes(fault: pytest.ExceptionInfo[UserFault]) -> list[str]:
    return [diagnostic.code for diagnostic in fault.value.diagnostics]


@pytest.mark.parametrize("chunk", [None, 7, 1000])
def test_files_of_a_prefill(tmp_path: Path, chunk: int | None) -> None:
    run(ids(), chunk=chunk, logits_out=tmp_path / "l.safetensors", states_out=tmp_path / "s.safetensors")
    assert sorted(os.listdir(tmp_path)) == ["l.safetensors", "s.safetensors"]
    logits, states = (load_file(tmp_path / f"{name}.safetensors") for name in "ls")
    assert set(logits) == {"logits"} and logits["logits"].dtype == torch.float32
    assert apart(logits["logits"], golden()["prefill64.logits"]) <= LOGITS_BOUND
    expected = prefill_rows()
    wanted = {key for key in expected if not key.endswith(("gate_margin", "index_score", "logits"))}
    assert set(states) == wanted
    for key in wanted:
        assert states[key].dtype == expected[key].dtype, key
        assert states[key].shape == expected[key].shape, key
        if expected[key].dtype == torch.float32:
            assert apart(states[key], expected[key]) <= LOGITS_BOUND, key
        else:
            assert torch.equal(states[key], expected[key]), key


def test_generated_tokens_have_rows_too(tmp_path: Path) -> None:
    result = run(ids()[:9], n=4, logits_out=tmp_path / "l.safetensors", states_out=tmp_path / "s.safetensors")
    logits, states = (load_file(tmp_path / f"{name}.safetensors") for name in "ls")
    assert len(result.ids) == 4 and result.finish == "length" and result.seed is None
    assert logits["logits"].shape == (9 + 3, 512)
    assert [int(row.argmax()) for row in logits["logits"][8:]] == result.ids
    assert states["L2.compress_kv"].shape[0] == 6 and states["L6.candidates"].shape == (12, 12)
    assert states["L2.topk"].shape == (12, 8) and states["engram_ids"].shape == (12, 2, 6)
    assert set(result.timings) == {"load", "prefill", "decode", "write"}


def test_text_streams(tmp_path: Path) -> None:
    pieces: list[str] = []
    parts: list[str] = []
    options = RunOptions(n=12, temperature=1.0, seed=5)
    result = run_plan(plan(), TINY, Prompt(text="hello"), options, on_text=pieces.append, on_part=parts.append)
    assert result.prompt_ids[0] == 0 and len(result.prompt_ids) > 1
    assert result.text == "".join(pieces) and result.seed == 5
    assert parts == ["load", "prefill", "decode", "write"]
    again = run_plan(plan(), TINY, Prompt(text="hello"), options)
    assert (again.ids, again.text) == (result.ids, result.text)


def test_comparison(tmp_path: Path) -> None:
    result = run(ids()[:11], n=2, chunk=4, compare=True, states_out=tmp_path / "s.safetensors")
    assert result.comparison is not None and result.comparison.first is None
    assert result.comparison.steps == 4
    plain = run(ids()[:11], n=2, chunk=4)
    assert plain.ids == result.ids and plain.comparison is None
    assert load_file(tmp_path / "s.safetensors")["L0.streams"].shape == (12, 4, 128)
    short = run(ids()[:3], until="topk@L2").comparison
    assert short is not None and 0 < short.values < result.comparison.values


def test_chat_needs_its_tokens() -> None:
    with pytest.raises(UserFault) as fault:
        run_plan(plan(), TINY, Prompt(chat="hi"))
    assert codes(fault) == ["DSV863"]


def test_refusals_come_before_loading(tmp_path: Path) -> None:
    """The checkpoint is not even there."""

    def refused(tokens: Sequence[int] = (5,), **options: Any) -> list[str]:
        with pytest.raises(UserFault) as fault:
            run_plan(plan(), tmp_path / "nothing", Prompt(ids=tokens), RunOptions(**options))
        return codes(fault)

    out = tmp_path / "l.safetensors"
    assert refused(temperature=-1.0, top_p=0.0) == ["DSV860", "DSV860"]
    assert refused(logits_out=tmp_path / "no" / "l.safetensors", states_out=tmp_path) == ["DSV865", "DSV865"]
    assert refused(logits_out=out, states_out=out) == ["DSV865"]
    assert refused([600]) == ["DSV850"]
    assert refused([]) == ["DSV854"]
    assert refused([5] * 81) == ["DSV851"]
    assert refused([5] * 80, n=2) == ["DSV851"]
    assert refused(n=-1) == ["DSV860"]
    assert refused(chunk=0) == ["DSV859"]
    assert refused(until="nothing@L9") == ["DSV867"]
    assert os.listdir(tmp_path) == []


def test_a_prompt_of_text_says_that_the_checkpoint_is_absent(tmp_path: Path) -> None:
    """Not that its tokenizer is."""
    with pytest.raises(UserFault) as fault:
        run_plan(plan(), tmp_path / "nothing", Prompt(text="hello"), RunOptions())
    assert codes(fault) == ["DSV700"]


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "l.safetensors"
    save_tensors({"a": torch.ones(2)}, path)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(UserFault, match="no space left") as fault:
        save_tensors({"a": torch.zeros(2)}, path)
    assert codes(fault) == ["DSV865"]
    assert os.listdir(tmp_path) == ["l.safetensors"]
    assert load_file(path)["a"].sum() == 2


def test_a_disk_that_fills_up_while_tensors_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("safetensors.torch.save_file", full)
    with pytest.raises(UserFault, match="No space left") as fault:
        save_tensors({"a": torch.zeros(2)}, tmp_path / "l.safetensors")
    assert codes(fault) == ["DSV865"] and os.listdir(tmp_path) == []


def test_a_device_or_pipe_is_not_replaced_by_a_file(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(UserFault, match="no plain file") as fault:
        run((5,), logits_out=pipe)
    assert codes(fault) == ["DSV865"]
    with pytest.raises(UserFault, match="no plain file"):
        expect_writable(str(pipe))
    assert pipe.is_fifo()


@pytest.mark.parametrize(
    ("text", "expected"), [("1,2,3", [1, 2, 3]), (" 1 2\n3,", [1, 2, 3]), ("[4, 5]", [4, 5]), ("", [])]
)
def test_read_ids(text: str, expected: list[int]) -> None:
    assert read_ids(text) == expected


@pytest.mark.parametrize("text", ["1,x", "1.5", "0x10", "1" * 40, "¹", "--1", "1,,2", ",1", "1, \n,2", "[,1]", ","])
def test_read_ids_refuses(text: str) -> None:
    with pytest.raises(UserFault) as fault:
        read_ids(text, "ids.txt")
    assert codes(fault) == ["DSV850"] and "ids.txt" in str(fault.value)


def test_the_oracle_is_what_these_tests_compile() -> None:
    numerics = plan().manifest.numerics
    assert f"{numerics.compute}-act_{numerics.activation_quant}-kv_{numerics.kv_cache}" == ORACLE
