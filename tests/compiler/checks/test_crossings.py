"""What goes wrong between stages, written into the text of a placed graph: one finding each, at its line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv41c.compiler import passes
from dsv41c.compiler.build import build
from dsv41c.compiler.checks import check_graph
from dsv41c.compiler.cli import main
from dsv41c.compiler.ir import parse
from dsv41c.compiler.passes import PIPELINE, Program
from dsv41c.compiler.spec import load

Edit = Callable[[str], str]


def placed(ends: list[int], devices: list[int]) -> str:
    """The toy on some CPUs, as `dsv41c graph` prints it."""
    names = [f"cpu:{device}" for device in devices]
    loaded = load("toy", sets=(f"placement.devices=[{', '.join(names)}]", f"placement.layer_ends={ends}"))
    assert loaded.spec is not None
    start = Program(loaded.spec, loaded.spans, build(loaded.spec, loaded.spans))
    return str(passes.run(start, pipeline=PIPELINE[:4]).graph)


TEXT = placed([4, 6, 8], [0, 1, 2])
NEW_STATE = "input compress_kv@L5{}: compress_kv bf16[512, 64] @2 ; spec.yaml:1:1\n"


def without(op: str) -> Edit:
    """An op left out."""

    def edit(text: str) -> str:
        lines = text.splitlines(keepends=True)
        kept = [line for line in lines if not line.startswith(f"{op} = ")]
        assert len(kept) == len(lines) - 1, op
        return "".join(kept)

    return edit


def changed(op: str, *changes: str) -> Edit:
    """The line of an op with changes `old -> new`."""

    def edit(text: str) -> str:
        (old,) = (line for line in text.splitlines(keepends=True) if line.startswith(f"{op} = "))
        new = old
        for change in changes:
            before, _, after = change.partition(" -> ")
            assert before in new, (before, new)
            new = new.replace(before, after)
        return text.replace(old, new)

    return edit


def both(*edits: Edit) -> Edit:
    def edit(text: str) -> str:
        for one in edits:
            text = one(text)
        return text

    return edit


def with_input(line: str) -> Edit:
    return lambda text: text.replace("input ids:", f"{line}input ids:", 1)


TOPK, PRE = "stages.2.transfer.topk.L5", "stages.2.transfer.pre.L5.ffn"
KV, KEYS = "stages.2.mirror.compress_kv.L5", "stages.2.mirror.index_k.L5"
ATTEND, LATER = "layers.6.attn.attend", "layers.7.attn.attend"
COLLAPSE, SCORE = "layers.6.attn.collapse", "layers.7.attn.index_score"
UNDECLARED = "layer 6 (stage 2) reads `{}` (stage 1), no transfer declared"

# By what is wrong: the code, what the message has to say, the edit.
FAULTS: dict[str, tuple[str, str, Edit]] = {
    # selections reset at a boundary
    "no transfer of a selection": ("DSV505", UNDECLARED.format("topk@L5"), without(TOPK)),
    "a selection read where it was made": (
        "DSV505",
        UNDECLARED.format("topk@L5"),
        both(without(TOPK), changed(ATTEND, "topk@L5.S2 -> topk@L5")),
    ),
    "no selection": (
        "DSV402",
        "layer 6 reads a selection",
        both(without(TOPK), changed(ATTEND, "topk@L5.S2 -> topk@none")),
    ),
    "a selection that the call finds there": (
        "DSV505",
        UNDECLARED.format("topk@L5"),
        both(without(TOPK), with_input("input topk@L5.S2: topk i64[B, T, 8] @2 ; spec.yaml:1:1\n")),
    ),
    "an earlier selection sent as this one": (
        "DSV506",
        f"`{TOPK}` makes `topk@L5.S2: topk i64[B, T, 8]` of `topk@L4: topk i64[B, T, 8]`",
        changed(TOPK, "transfer(value=topk@L5  -> transfer(value=topk@L4 "),
    ),
    "an earlier selection": (
        "DSV405",
        "layer 6 uses the selection `topk@L4`",
        both(changed(TOPK, "topk@L5 -> topk@L4"), changed(ATTEND, "topk@L5 -> topk@L4")),
    ),
    # a state table forked per stage
    "a table of the stage's own": (
        "DSV431",
        "no op writes `compress_kv@L5.S2`",
        both(without(KV), with_input(NEW_STATE.format(".S2"))),
    ),
    "a table of the stage's own, as it was before": (
        "DSV429",
        f"`{ATTEND}` reads `compress_kv@L5.before.S2`, the version it needs is `compress_kv@L5.S2`",
        both(
            without(KV),
            with_input(NEW_STATE.format(".before.S2")),
            *(changed(op, "compress_kv@L5.S2 -> compress_kv@L5.before.S2") for op in (ATTEND, LATER)),
        ),
    ),
    "a history of tokens shared": (
        "DSV505",
        "`stages.1.engram_ids` (stage 1) reads `token_history.before` (stage 0)",
        changed("stages.1.engram_ids", "token_history.before.S1 -> token_history.before"),
    ),
    # a pre-mix not carried
    "no transfer of a pre-mix": ("DSV505", UNDECLARED.format("pre@L5.ffn"), without(PRE)),
    "a pre-mix read where it was made": (
        "DSV505",
        UNDECLARED.format("pre@L5.ffn"),
        both(without(PRE), changed(COLLAPSE, "pre@L5.ffn.S2 -> pre@L5.ffn")),
    ),
    "the pre-mix begun anew": (
        "DSV427",
        "the pre-mix `pre@init`, the one carried to it is `pre@L5.ffn`",
        both(without(PRE), changed(COLLAPSE, "pre@L5.ffn.S2 -> pre@init")),
    ),
    "an earlier pre-mix sent as this one": (
        "DSV506",
        "of `pre@L5.attn: pre f32[B, T, 4]`",
        changed(PRE, "transfer(value=pre@L5.ffn -> transfer(value=pre@L5.attn"),
    ),
    "an earlier pre-mix": (
        "DSV427",
        "the pre-mix `pre@L5.attn`, the one carried to it is `pre@L5.ffn`",
        both(changed(PRE, "pre@L5.ffn -> pre@L5.attn"), changed(COLLAPSE, "pre@L5.ffn -> pre@L5.attn")),
    ),
    # keys mirrored from the wrong source
    "keys of another layer": (
        "DSV506",
        f"`{KEYS}` makes `index_k@L5.S2: index_k bf16[512, 32]` of `index_k@L2.S1",
        changed(KEYS, "mirror(value=index_k@L5 -> mirror(value=index_k@L2.S1"),
    ),
    "keys of a layer that is on no neighbour": (
        "DSV506",
        f"`{KEYS}` makes `index_k@L5.S2: index_k bf16[512, 32]` of `index_k@L2:",
        changed(KEYS, "mirror(value=index_k@L5 -> mirror(value=index_k@L2"),
    ),
    "keys of another layer, under its name": (
        "DSV403",
        "layer 7 (ratio 1) reads `index_k@L2`",
        both(
            changed(KEYS, "index_k@L5.S2: index_k bf16[512 -> index_k@L2.S2: index_k bf16[256", "@L5  -> @L2.S1 "),
            changed(SCORE, "index_k@L5.S2 -> index_k@L2.S2"),
        ),
    ),
    "keys that are compressed KV": (
        "DSV506",
        "of `compress_kv@L5: compress_kv bf16[512, 64]`",
        changed(KEYS, "mirror(value=index_k@L5 -> mirror(value=compress_kv@L5"),
    ),
    # a mirror that misses appended rows
    "a mirror of what was there before": (
        "DSV429",
        f"`{KV}` reads `compress_kv@L5.before`, the version it needs is `compress_kv@L5`",
        changed(KV, "mirror(value=compress_kv@L5 -> mirror(value=compress_kv@L5.before"),
    ),
    "a mirror that is too short": (
        "DSV506",
        "whose copy on stage 2 is `compress_kv@L5.S2: compress_kv bf16[512, 64]`",
        changed(KV, "bf16[512 -> bf16[256"),
    ),
    # and the rest
    "another dtype": ("DSV506", "makes `pre@L5.ffn.S2: pre bf16[B, T, 4]`", changed(PRE, "f32 -> bf16")),
    "a transfer to its own stage": ("DSV506", "of stage 1 to stage 1", changed(PRE, "@2 ; -> @1 ;")),
    "streams of another sublayer": (
        "DSV506",
        "of `streams@L5.attn",
        changed("stages.2.transfer.streams.L5.ffn", "transfer(value=streams@L5.ffn -> transfer(value=streams@L5.attn"),
    ),
    "compressed KV sent whole": ("DSV506", "`compress_kv` is mirrored", changed(KV, "= mirror( -> = transfer(")),
    "ids read where they came in": (
        "DSV505",
        "`stages.1.engram_ids` (stage 1) reads `ids` (stage 0)",
        changed("stages.1.engram_ids", "ids=ids.S1 -> ids=ids"),
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_is_one_finding_at_its_line(name: str) -> None:
    code, said, edit = FAULTS[name]
    (finding,) = check_graph(parse(edit(TEXT), "graph.txt", here=True))
    assert (finding.code, said in finding.message) == (code, True), finding
    assert finding.span.file == "graph.txt" and finding.span.line > 1 and finding.help


def test_values_go_from_stage_to_stage() -> None:
    """The third stage's mirror is of the second one's, and that is left out."""
    text = both(
        without("stages.1.mirror.compress_kv.L2"),
        changed("layers.3.attn.attend", "compress_kv@L2.S1 -> compress_kv@L2"),
        changed("stages.2.mirror.compress_kv.L2", "mirror(value=compress_kv@L2.S1 -> mirror(value=compress_kv@L2"),
    )(placed([3, 4, 8], [0, 1, 2]))
    second, first = check_graph(parse(text))
    assert first.message == "layer 3 (stage 1) reads `compress_kv@L2` (stage 0), no transfer declared"
    assert second.message.endswith("sends on `compress_kv@L2` (stage 0) from stage 1, which does not get it")
    assert {first.code, second.code} == {"DSV505"}


def test_the_command_points_into_the_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "graph.txt"
    file.write_text(FAULTS["a selection read where it was made"][2](TEXT))
    assert main(["validate", str(file)]) == 1
    out = capsys.readouterr().out
    line = next(number for number, text in enumerate(file.read_text().splitlines(), 1) if text.startswith(ATTEND))
    assert "error[DSV505]: layer 6 (stage 2) reads `topk@L5` (stage 1), no transfer declared" in out
    assert f"graph.txt:{line}:1" in out and "add a `transfer` of `topk@L5` to stage 2" in out


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_a_text_that_is_right_gives_nothing(data: st.DataObject) -> None:
    """However often a device comes: the text does not say on which ones its stages are."""
    ends = [*sorted(data.draw(st.sets(st.integers(1, 7), max_size=5))), 8]
    text = placed(ends, [data.draw(st.integers(0, 2)) for _ in ends])
    assert not check_graph(parse(text))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_what_is_carried_wrongly_is_found(data: st.DataObject) -> None:
    """Any transfer or mirror of any other value of its kind."""
    graph = parse(TEXT)
    op = data.draw(st.sampled_from([op for op in graph.ops if op.kind in ("transfer", "mirror")]))
    kind = graph.values[op.read_ids[0]].kind
    others = [each.id for each in graph.values.values() if each.kind == kind and each.id not in op.read_ids]
    if not others:
        return
    text = changed(op.id, f"(value={op.read_ids[0]} | -> (value={data.draw(st.sampled_from(others))} |")(TEXT)
    assert check_graph(parse(text))
