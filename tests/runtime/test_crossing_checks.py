"""Manifests of several stages that contradict themselves: refused, with the value named, before anything is bound."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv41c.compiler.cli import main
from dsv41c.compiler.plan import compile_spec
from dsv41c.compiler.spec import load
from dsv41c.diagnostics import Diagnostic, UserFault
from dsv41c.runtime.manifest import Manifest
from dsv41c.runtime.manifest_text import parse
from dsv41c.runtime.stages.crossing import Crossing, Rows
from dsv41c.runtime.stages.layout import Layout
from dsv41c.runtime.tail import TailRows

Content = dict[str, Any]
CUT = ("placement.devices=[cpu:0, cpu:1, cpu:2]", "placement.layer_ends=[4, 6, 8]")
TEXT = compile_spec(load("toy", sets=CUT)).files["manifest.json"]


def findings(content: Content) -> tuple[Diagnostic, ...]:
    try:
        parse(json.dumps(content).encode(), "manifest.json")
    except UserFault as fault:
        return tuple(fault.diagnostics)
    return ()


def entry(content: Content, part: str, name: str) -> Content:
    found: Content = next(item for item in content[part] if name in (item.get("id"), item.get("arrives_as")))
    return found


def move(arrives_as: str, **changes: object) -> Callable[[Content], None]:
    """A transfer with other entries; without any, left out."""

    def edit(content: Content) -> None:
        found = entry(content, "transfers", arrives_as)
        found.update(changes)
        if not changes:
            content["transfers"].remove(found)

    return edit


def value(name: str, **changes: object) -> Callable[[Content], None]:
    return lambda content: entry(content, "values", name).update(changes)


def op(name: str, **changes: object) -> Callable[[Content], None]:
    """An op with other entries; without any, left out."""

    def edit(content: Content) -> None:
        found = entry(content, "ops", name)
        found.update(changes)
        if not changes:
            content["ops"].remove(found)

    return edit


def both(*edits: Callable[[Content], None]) -> Callable[[Content], None]:
    def edit(content: Content) -> None:
        for one in edits:
            one(content)

    return edit


def reading(name: str, port: str, other: str) -> Callable[[Content], None]:
    """An op that reads another value, and its region with it."""

    def edit(content: Content) -> None:
        reads = entry(content, "ops", name)["reads"]
        old, reads[port] = reads[port], other
        region = next(region for region in content["regions"] if name in region["ops"])
        left = {read for each in region["ops"] for read in entry(content, "ops", each)["reads"].values()}
        region["reads"] = [read for read in region["reads"] if read in left or read != old]
        region["reads"] += [other] if other not in region["reads"] else []

    return edit


TOPK, KV, KEYS, PRE = "topk@L5.S2", "compress_kv@L5.S2", "index_k@L5.S2", "pre@L5.ffn.S2"
ARRIVALS = {
    TOPK: "transfer.topk.L5",
    KV: "mirror.compress_kv.L5",
    KEYS: "mirror.index_k.L5",
    PRE: "transfer.pre.L5.ffn",
}
UNDECLARED = "{} (stage 2) {} `{}` (stage 1), no transfer declared"


def unsent(name: str) -> Callable[[Content], None]:
    """No transfer, and no op that brings it."""
    return both(move(name), op(f"stages.2.{ARRIVALS[name]}"))


# By what is wrong: what is said, and the edit.
FAULTS: dict[str, tuple[str, Callable[[Content], None]]] = {
    # selections reset at a boundary
    "no transfer of a selection": (UNDECLARED.format("layer 6", "reads", "topk@L5"), move(TOPK)),
    "no transfer and no op": (UNDECLARED.format("layer 6", "reads", "topk@L5"), unsent(TOPK)),
    "a selection read where it was made": (
        UNDECLARED.format("layer 6", "reads", "topk@L5"),
        both(unsent(TOPK), reading("layers.6.attn.attend", "topk", "topk@L5")),
    ),
    "an earlier selection sent as this one": (
        "the transfer of `topk@L4` to stage 2 arrives as `topk@L5.S2`, and its copy there is `topk@L4.S2`",
        both(move(TOPK, value="topk@L4"), op("stages.2.transfer.topk.L5", reads={"value": "topk@L4"})),
    ),
    "a transfer that its op does not make": (
        "the transfer of `topk@L5` to stage 2 is carried by `stages.2.transfer.topk.L5`, which reads `topk@L4`",
        op("stages.2.transfer.topk.L5", reads={"value": "topk@L4"}),
    ),
    "a transfer without its op": (
        "the transfer of `topk@L5` to stage 2 has no op that brings `topk@L5.S2` to stage 2 as a chunk",
        op("stages.2.transfer.topk.L5"),
    ),
    # a state table forked per stage
    "a table of the stage's own": (UNDECLARED.format("layers 6-7", "read", "compress_kv@L5"), unsent(KV)),
    "a mirror in the storage of another": (
        "arrives in the storage of `compress_kv@L5.before`, and a mirror has its own",
        both(value(KV, storage="compress_kv@L5.before", stage=1, device="cpu:1")),
    ),
    "an update that lands elsewhere": (
        "`layers.5.attn.compress` reads `compress_kv@L5.before` and leaves `compress_kv@L5` in the storage of "
        "`compress_kv@L5`",
        value("compress_kv@L5", storage="compress_kv@L5"),
    ),
    "state that nobody updates": (
        "`window_kv@L9` is session state that no op updates",
        lambda content: content["values"].append(
            {**entry(content, "values", "window_kv@L6.before"), "id": "window_kv@L9", "storage": "window_kv@L9"}
        ),
    ),
    "a history of tokens read across": (
        "`stages.1.engram_ids` (stage 1) reads `token_history.before` (stage 0), no transfer declared",
        reading("stages.1.engram_ids", "token_history", "token_history.before"),
    ),
    # a pre-mix not carried
    "no transfer of a pre-mix": (UNDECLARED.format("layer 6", "reads", "pre@L5.ffn"), unsent(PRE)),
    "an earlier pre-mix sent as this one": (
        "the transfer of `pre@L5.attn` to stage 2 arrives as `pre@L5.ffn.S2`, and its copy there is `pre@L5.attn.S2`",
        both(move(PRE, value="pre@L5.attn"), op("stages.2.transfer.pre.L5.ffn", reads={"value": "pre@L5.attn"})),
    ),
    # keys mirrored from the wrong source
    "keys of another layer": (
        "the transfer of `index_k@L2.S1` to stage 2 arrives as `index_k@L5.S2`, and its copy there is `index_k@L2.S2`",
        both(move(KEYS, value="index_k@L2.S1"), op("stages.2.mirror.index_k.L5", reads={"value": "index_k@L2.S1"})),
    ),
    "compressed KV as keys": (
        "the transfer of `compress_kv@L5` to stage 2 is of kinds index_k, compress_kv and index_k",
        both(move(KEYS, value="compress_kv@L5"), op("stages.2.mirror.index_k.L5", reads={"value": "compress_kv@L5"})),
    ),
    # a mirror that misses appended rows
    "a mirror of what was there before": (
        "the transfer of `compress_kv@L5.before` to stage 2 sends what no op writes",
        both(
            move(KV, value="compress_kv@L5.before"),
            op("stages.2.mirror.compress_kv.L5", reads={"value": "compress_kv@L5.before"}),
        ),
    ),
    "a mirror that is too short": (
        "the transfer of `compress_kv@L5` to stage 2 is bf16[512, 64], and arrives as bf16[256, 64]",
        value(KV, shape=[256, 64], bytes=256 * 64 * 2),
    ),
    "a mirror sent whole": (
        "the transfer of `compress_kv@L5` to stage 2 goes as a chunk, and compress_kv crosses as: mirror",
        both(move(KV, how="chunk"), op("stages.2.mirror.compress_kv.L5", kind="transfer")),
    ),
    # and the rest
    "a stage left out": (
        "the transfer of `compress_kv@L2` to stage 2 comes from stage 0, and values go from a stage to the next one",
        lambda content: content["transfers"].append(
            {**entry(content, "transfers", "compress_kv@L2.S1"), "to_stage": 2, "arrives_as": KV}
        ),
    ),
    "twice": ("2 transfers arrive as `topk@L5.S2`", lambda c: c["transfers"].append(entry(c, "transfers", TOPK))),
    "an unknown value": ("a transfer to stage 2 names `nothing`, which is no value", move(TOPK, value="nothing")),
    "another dtype": ("is f32[B, T, 4], and arrives as bf16[B, T, 4]", value(PRE, dtype="bf16", bytes=8)),
    "a value on another device": ("`topk@L5` is on 'cpu:0', its stage 1 on cpu:1", value("topk@L5", device="cpu:0")),
    "a stage on the device before it": (
        "the transfer of `streams@L5.ffn` to stage 2 stays on cpu:1",
        lambda content: (
            content["stages"][2].update(device="cpu:1")
            or [each.update(device="cpu:1") for each in content["values"] if each["stage"] == 2]
        ),
    ),
    "what nobody reads": (
        "the transfer of `candidates@L5` to stage 2 arrives as `candidates@L5.S2`, which nobody reads",
        lambda content: (
            entry(content, "ops", "layers.7.attn.index_score")["reads"].pop("candidates")
            and next(each for each in content["regions"] if each["id"] == "layers.7")["reads"].remove(
                "candidates@L5.S2"
            )
        ),
    ),
    "regions out of order": (
        "the regions are not in the order of their stages",
        lambda content: content["regions"].insert(0, content["regions"].pop(5)),
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_is_named(name: str) -> None:
    said, edit = FAULTS[name]
    content = json.loads(TEXT)
    edit(content)
    found = findings(content)
    assert {finding.code for finding in found} == {"DSV804"}
    assert any(said in finding.message for finding in found), [finding.message for finding in found]
    assert all(finding.span.file == "manifest.json" and "compile the plan again" in finding.help for finding in found)


def test_the_command_refuses_an_edited_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Before it looks at a checkpoint."""
    plan, sets = tmp_path / "toy.plan", [argument for each in CUT for argument in ("--set", each)]
    assert main(["compile", "toy", "-o", str(plan), *sets]) == 0
    content = json.loads(TEXT)
    move(TOPK)(content)
    (plan / "manifest.json").write_text(json.dumps(content))
    assert main(["run", str(plan), "--checkpoint", str(tmp_path / "nothing"), "--ids", "1,2,3"]) == 1
    said = capsys.readouterr().err
    assert "error[DSV804]: layer 6 (stage 2) reads `topk@L5` (stage 1), no transfer declared" in said


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_what_is_accepted_can_be_set_up(data: st.DataObject) -> None:
    """Any entry of what crosses replaced by another of its kind: refused, or boundaries, tails and messages exist."""
    content = json.loads(TEXT)
    part = data.draw(st.sampled_from(["transfers", "values", "ops", "regions"]))
    names = [each["id"] for each in content["values"]]
    chosen = [each for each in content[part] if part != "ops" or each["kind"] in ("transfer", "mirror")]
    item = data.draw(st.sampled_from(chosen))
    key = data.draw(st.sampled_from(sorted(item)))
    others = [each[key] for each in content[part] if key in each]
    values = [
        *others,
        *names,
        0,
        1,
        2,
        "chunk",
        "mirror",
        None,
        ["B", "T", 8],
        {"value": data.draw(st.sampled_from(names))},
    ]
    item[key] = data.draw(st.sampled_from(values))
    try:
        manifest = parse(json.dumps(content).encode(), "manifest.json")
    except UserFault as fault:
        assert {finding.code for finding in fault.diagnostics} <= {"DSV803", "DSV804"}
        return
    _set_up(manifest)


def _set_up(manifest: Manifest) -> None:
    tails = TailRows.of(manifest, "exact")
    assert tails.values["logits"] == 1
    for stage in Layout.of(manifest).stages:
        if stage.boundary is not None:
            assert Crossing(manifest, stage.boundary).bytes(Rows((0, 1), (0, 7), 4, 11)) > 0
