"""The graph of a shard: what it splits, where shards meet, what that carries, and what has to divide."""

from __future__ import annotations

import dataclasses

import pytest

from dsv41c.compiler import compile_spec, passes
from dsv41c.compiler.build import build
from dsv41c.compiler.checks import check, check_graph
from dsv41c.compiler.ir import parse
from dsv41c.compiler.passes import PIPELINE, Program
from dsv41c.compiler.passes.shards import shards
from dsv41c.compiler.spec import load
from dsv41c.kernels.catalog import COLLECTIVES

TWO = "placement.tensor_parallel=2"
PLAIN = ("weights.linear=bf16", "weights.experts=bf16")
FLASH = ("placement.tensor_parallel=8", "placement.devices=[cuda:0, cuda:1]", "placement.layer_ends=[20, 40]")


def program(spec: str, *sets: str) -> Program:
    loaded = load(spec, sets=sets)
    assert loaded.spec is not None, loaded.diagnostics
    return Program(loaded.spec, loaded.spans, build(loaded.spec, loaded.spans))


def test_one_shard_is_the_same_program():
    whole = program("toy")
    assert shards(whole) is whole


def test_text_of_a_layer():
    lines = str(passes.run(program("toy", TWO), pipeline=PIPELINE[:4], verify=True).graph).splitlines()
    shown = [line.split(" ; ") for line in lines if line.startswith(("layers.0.attn.", "layers.0.ffn.", "head"))]
    texts = {text.partition(" = ")[0]: text.partition(" = ")[2] for text, _ in shown}
    assert texts["layers.0.attn.output"] == (
        'output(attended=attended@L0 | wo_a=layers.0.wo_a, wo_b=layers.0.wo_b | groups=1, activation_quant="none", '
        "shards=2) -> (sublayer_out=part@L0.attn: temporary f32[B, T, 128]) @0"
    )
    assert texts["layers.0.attn.all_reduce"] == (
        'all_reduce(sublayer_out=part@L0.attn |  | shards=2, dtype="bf16", bytes_per_token=512) '
        "-> (sublayer_out=sublayer_out@L0.attn: temporary bf16[B, T, 128]) @0"
    )
    assert "query=query@L0: temporary bf16[B, T, 2, 64]" in texts["layers.0.attn.query"]
    assert 'activation_quant="none", shards=2) -> (routed=routed@L0: ' in texts["layers.0.ffn.experts"]
    assert "-> (sublayer_out=part@L0.ffn: temporary f32[B, T, 128])" in texts["layers.0.ffn.shared_expert"]
    assert texts["head"].endswith("-> (logits=logits@shard: temporary f32[B, T, 256]) @0")
    assert texts["head.all_gather"] == (
        "all_gather(logits=logits@shard |  | shards=2, bytes_per_token=1024) "
        "-> (logits=logits: temporary f32[B, T, 512]) @0"
    )
    assert {place for text, place in shown if "all_" in text} == {"<--set 1>:1:1"}
    order = [name for name in texts if name.startswith("layers.0")]
    assert order[order.index("layers.0.ffn.shared_expert") :] == [
        "layers.0.ffn.shared_expert",
        "layers.0.ffn.all_reduce",
        "layers.0.ffn.expand",
    ]


def test_text_round_trips():
    graph = passes.run(program("toy", TWO), verify=True).graph
    assert str(parse(str(graph))) == str(graph)


def test_two_a_layer_and_one_at_the_end_with_stages_as_well():
    result = passes.run(program("deepseek-v4.1-flash", *FLASH), verify=True)
    met = [op for op in result.graph.ops if op.kind in COLLECTIVES]
    assert [(op.layer, op.stage) for op in met] == [
        *((layer, layer // 20) for layer in range(40) for _ in range(2)),
        (None, 1),
    ]
    assert {op.kind: op.attr("bytes_per_token") for op in met} == {
        "all_reduce": 5120 * 4,
        "all_gather": 129280 // 8 * 4,
    }
    alone = passes.run(program("deepseek-v4.1-flash", *FLASH[1:]))
    assert result.transfers == alone.transfers  # what crosses between stages is whole in every shard
    session = [value for value in result.graph.values.values() if value.scope == "session"]
    assert session == [value for value in alone.graph.values.values() if value.scope == "session"]


def test_fused_kinds_cover_the_sums_of_shards():
    kinds = {call.op.kind for region in passes.run(program("toy", TWO, "placement.devices=[cuda:0]")).regions
             for call in region.calls}  # fmt: skip
    assert {"attention_input", "attention_output_shard", "ffn_shard", "logits", "all_gather"} <= kinds
    assert not {"attention_output", "ffn", "all_reduce", "output", "experts"} & kinds


def test_plan():
    whole, plan = (compile_spec(load("toy", sets=sets)) for sets in ((), (TWO,)))
    manifest = plan.manifest
    assert (manifest.target.tensor_parallel, whole.manifest.target.tensor_parallel) == (2, 1)
    splits = {w.role: w.shard and (w.shard.axis, w.shard.count) for w in manifest.weights}
    rows, columns = ("rows", 2), ("columns", 2)
    inner = ("shared_w1", "shared_w3", "experts_w1", "experts_w3")
    assert {role: split for role, split in splits.items() if split} == {
        **dict.fromkeys(("head", "wq_b", "attn_sink", "wo_a", *inner), rows),
        **dict.fromkeys(("wo_b", "shared_w2", "experts_w2"), columns),
    }
    assert [w.model_copy(update={"shard": None, "ops": []}) for w in manifest.weights] == [
        w.model_copy(update={"ops": []}) for w in whole.manifest.weights
    ]
    assert "tensor_parallel: 2" in plan.files["spec.yaml"] and "tensor_parallel" not in whole.files["spec.yaml"]
    assert (
        '    sublayer_out_attn = kernels.all_reduce(part_attn, shards=2, dtype="bf16", bytes_per_token=512)'
        in (plan.files["stage_0.py"])
    )
    readme = plan.files["README.md"]
    assert "| `all_reduce` | `sublayer_out.ffn` | layers 0-7 | 512 |" in readme
    assert "| `all_gather` | `logits` | head | 1,024 |" in readme
    for file, text in whole.files.items():
        assert "shard" not in text or file == "README.md", file


def test_a_target_may_say_it(tmp_path):
    (tmp_path / "two.yaml").write_text("placement: {tensor_parallel: 2}\n")
    loaded = load("toy", target=str(tmp_path / "two.yaml"))
    assert loaded.spec is not None and loaded.spec.placement.tensor_parallel == 2


@pytest.mark.parametrize(
    ("sets", "keys"),
    [
        (("placement.tensor_parallel=2",), []),
        (
            ("placement.tensor_parallel=3",),
            ["n_heads", "o_groups", "inter_dim", "vocab_size"],
        ),
        (("placement.tensor_parallel=4",), ["o_groups", "inter_dim"]),
        (("placement.tensor_parallel=4", "attention.o_groups=4", "moe.inter_dim=128"), []),
        (("placement.tensor_parallel=2", "attention.o_lora_rank=16"), ["o_lora_rank"]),
        (("placement.tensor_parallel=2", "moe.inter_dim=96"), ["inter_dim"]),
        (("placement.tensor_parallel=2", "moe.inter_dim=96", "weights.linear=bf16"), ["inter_dim"]),
        (("placement.tensor_parallel=2", "moe.inter_dim=96", "weights.experts=bf16"), ["inter_dim"]),
        (("placement.tensor_parallel=2", "moe.inter_dim=96", *PLAIN), []),
        (("placement.tensor_parallel=2", "moe.inter_dim=96", *PLAIN, "numerics.activation_quant=fp8"), ["inter_dim"]),
        (("placement.tensor_parallel=2", "model.vocab_size=511"), ["vocab_size"]),
        (("placement.tensor_parallel=2", "moe.n_routed_experts=7"), []),
    ],
)
def test_what_has_to_divide(sets, keys):
    found = [finding for finding in check(load("toy", sets=sets)) if finding.code == "DSV507"]
    assert len(found) == bool(keys)  # one cause: the number of shards
    for finding in found:
        assert [name.partition(".")[2] for name, _ in finding.facts if "." in name] == keys
        assert len(finding.labels) == len(keys) and all(label.span.line > 0 for label in finding.labels)
        assert finding.span is not None and finding.message.startswith(f"{sets[0].partition('=')[2]} shards do not")
        assert finding.help and finding.help.startswith("set `placement.tensor_parallel` to 1")
        count = int(finding.help.rsplit(maxsplit=1)[1])
        assert not [f for f in check(load("toy", sets=(f"placement.tensor_parallel={count}", *sets[1:])))
                    if f.code == "DSV507"]  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new", "reader"),
    [
        ("sublayer_out@L3.ffn", "part@L3.ffn", "layers.3.ffn.expand"),
        ("sublayer_out@L0.attn", "part@L0.attn", "layers.0.attn.expand"),
    ],
)
def test_a_part_of_a_sum_read_as_the_whole_is_found(old, new, reader):
    graph = passes.run(program("toy", TWO)).graph
    ops = tuple(
        dataclasses.replace(op, reads=tuple((name, new if read == old else read) for name, read in op.reads))
        for op in graph.ops
    )
    (finding,) = check_graph(dataclasses.replace(graph, ops=ops))
    assert finding.code == "DSV508" and finding.message.startswith(f"`{reader}` reads `{new}`")


def test_routed_experts_of_a_shard_go_into_a_part_of_as_many_shards():
    graph = passes.run(program("toy", TWO)).graph
    ops = tuple(
        dataclasses.replace(op, attrs=tuple(pair for pair in op.attrs if pair[0] != "shards"))
        if op.id == "layers.3.ffn.shared_expert"
        else op
        for op in graph.ops
    )
    (finding,) = check_graph(dataclasses.replace(graph, ops=ops))
    assert finding.code == "DSV508" and finding.help == "set `shards` of `layers.3.ffn.shared_expert` to 2"
