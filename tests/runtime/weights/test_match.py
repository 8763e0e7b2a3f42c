"""A plan against a checkpoint: every misfit is found, in one report, once."""

import pytest

from dsv41c.runtime.weights.headers import read_checkpoint
from dsv41c.runtime.weights.match import match
from dsv41c.runtime.weights.names import unused_family

from ...cost import calls  # noqa: TID252 (tests are no installed package)

WO_B = "layers.0.attn.wo_b.weight"
SCALE = "layers.0.attn.wo_b.scale"


@pytest.fixture
def judged(plans, tiny_folder, changed):
    """The findings of the golden plan on the golden checkpoint with tensors changed, and config keys changed."""

    def judge(changes=None, **config):
        return match(plans.tiny(tiny_folder, **config), read_checkpoint(changed(changes or {})))

    return judge


def one(matching, code):
    assert [d.code for d in matching.diagnostics] == [code], matching.diagnostics
    return matching.diagnostics[0]


def everything(diagnostic):
    return " ".join([diagnostic.message, *(f"{key} {value}" for key, value in diagnostic.facts)])


def zeros(dtype, *shape, bits=8):
    size = bits
    for extent in shape:
        size *= extent
    return dtype, list(shape), bytes(size // 8)


def test_golden_matches(plans, tiny_folder):
    matching = match(plans.tiny(tiny_folder), read_checkpoint(tiny_folder))
    assert not matching.diagnostics
    assert matching.unused == {"layers.*.ffn.gate.bias_vl": 10} and matching.unused_count == 10
    bound = {binding.entry.id: binding.stored for binding in matching.bindings}
    assert [len(bound[key]) for key in ("embed", "layers.0.experts_w1")] == [1, 8]
    assert (
        bound["layers.0.wo_b"][0].encoding == "fp8_32x32" and bound["layers.1.engram_table"][0].encoding == "fp8_row32"
    )
    assert bound["layers.9.experts_w2"][7].tensor.stored == "layers.9.ffn.experts.7.w2.weight"


def test_missing_tensor_says_what_was_tried(judged):
    diagnostic = one(judged({"head.weight": None}), "DSV720")
    assert diagnostic.message == "tensor `head.weight` not in checkpoint"
    assert "language_model.model.head.weight" in dict(diagnostic.facts)["tried"]


def test_a_checkpoint_that_has_nothing_of_the_plan_is_one_finding(judged, tiny_data):
    """Another model's, or one whose names have a prefix that is unknown."""
    changes = {name: None for name in tiny_data} | {f"module.{name}": each for name, each in tiny_data.items()}
    first, second = judged(changes).diagnostics
    assert first.code == "DSV720" and first.message.startswith("none of the 483 tensors that the plan needs")
    assert second.code == "DSV721" and "module.layers.0." in second.message


def test_layer_3_made_a_source(judged):
    """The checkpoint has no compressor there; one finding, led by the compressor."""
    diagnostic = one(judged(kv_source_layer_ids=[2, 3, 4, 6], index_source_layer_ids=[2, 3, 4, 6, 8]), "DSV720")
    assert "`layers.3.attn.compressor.wkv.weight` and 6 more of layer 3 not in checkpoint" in diagnostic.message
    assert "layers.3.attn.indexer.wq_b.weight" in everything(diagnostic)


def test_layer_4_made_no_source(judged):
    diagnostic = one(judged(kv_source_layer_ids=[2, 6], index_source_layer_ids=[2, 6, 8]), "DSV721")
    assert "of layer 4" in diagnostic.message and "layers.4.attn.compressor.wkv.weight" in everything(diagnostic)


def test_role_missing_everywhere_is_one_finding(judged, tiny_data):
    gone = {name: None for name in tiny_data if name.endswith("attn_sink")}
    assert "of layers 0-9" in one(judged(gone), "DSV720").message


def test_too_many_and_too_few_layers(judged, tiny_data):
    extra = {
        name.replace("layers.9.", "layers.10."): tensor for name, tensor in tiny_data.items() if "layers.9." in name
    }
    assert "no such layer" in one(judged(extra), "DSV721").message
    planned = judged(num_hidden_layers=7, index_source_layer_ids=[2, 4, 6], compress_ratios=[0, 0, 2, 2, 2, 2, 1])
    assert "of layers 7-9 in checkpoint" in one(planned, "DSV721").message
    gone = {name: None for name in tiny_data if name.startswith("layers.9.") and not name.endswith("_vl")}
    assert "all that the plan needs there" in one(judged(gone), "DSV720").message


def test_unused_families_are_counted(judged):
    names = ["mtp.0.norm.weight", "vision.norm.weight", "aligner.w1.bias", "image_start"]
    matching = judged({name: zeros("BF16", 4, bits=16) for name in names})
    assert not matching.diagnostics
    assert matching.unused_count == 14 and matching.unused_bytes == 10 * 32 + 4 * 8
    assert all(unused_family(name) for name in [*names, "layers.3.ffn.gate.bias_vl"])
    assert not unused_family("layers.3.ffn.gate.bias") and not unused_family("imagex")


def test_foreign_family_is_one_finding(judged):
    diagnostic = one(judged({f"adapter.{n}": zeros("F32", 1, bits=32) for n in range(100)}), "DSV721")
    assert "`adapter.0` and 99 more" in diagnostic.message


def test_missing_expert_part_is_named(judged):
    diagnostic = one(judged({"layers.0.ffn.experts.3.w2.weight": None}), "DSV720")
    assert "`layers.0.ffn.experts.3.w2.weight` not in checkpoint" in diagnostic.message


@pytest.mark.parametrize("planned", [7, 9])
def test_number_of_experts(judged, planned):
    found = judged(n_routed_experts=planned).diagnostics
    # the router, whose rows are the experts, has the wrong shape as well
    assert [d.code for d in found] == ["DSV728", "DSV722", "DSV722"]
    assert f"8 experts in layers 0-9, the plan {planned}" in found[0].message


def test_one_layer_with_more_experts(judged, tiny_data):
    extra = {
        name.replace("experts.7.", "experts.8."): tensor
        for name, tensor in tiny_data.items()
        if name.startswith("layers.0.ffn.experts.7.")
    }
    assert "9 experts in layer 0, the plan 8" in one(judged(extra), "DSV728").message


def test_misshapen(judged):
    diagnostic = one(judged({"norm.weight": zeros("BF16", 64, bits=16)}), "DSV722")
    assert "`norm.weight` has shape [64] (BF16), expected [128]" in diagnostic.message


def test_wrong_width_is_one_finding_a_role(judged):
    found = judged(moe_intermediate_size=64).diagnostics
    assert {d.code for d in found} == {"DSV722"} and len(found) == 6  # three roles of experts, three of the shared one
    assert "(and 79 more of role `experts_w1`)" in found[0].message


@pytest.mark.parametrize("dtype", ["F16", "I8", "F8_E5M2", "I32"])
def test_refused_encodings(judged, dtype):
    bits = {"F16": 16, "I32": 32}.get(dtype, 8)
    diagnostic = one(judged({"norm.weight": zeros(dtype, 128, bits=bits)}), "DSV723")
    assert dtype in diagnostic.message and "bf16" in diagnostic.message


def test_no_scale(judged):
    diagnostic = one(judged({SCALE: None}), "DSV724")
    assert (
        diagnostic.message == f"fp8 tensor `{WO_B}` has no scale (looked for .scale, .weight_scale, .weight_scale_inv)"
    )


def test_scale_of_rank_one_names_both_shapes(judged):
    diagnostic = one(judged({SCALE: zeros("F8_E8M0", 8)}), "DSV725")
    assert "[8]" in diagnostic.message and "[4, 2]" in diagnostic.message


def test_layout_is_declared_not_guessed(judged):
    """Scales by row on a role that the plan declares by block, and the reverse."""
    assert "[4, 2] for fp8_32x32" in one(judged({SCALE: zeros("F8_E8M0", 128, 2)}), "DSV725").message
    changes = {"layers.1.engram.embed.scale": zeros("F8_E8M0", 15, 1)}
    assert "[462, 1] for fp8_row32" in one(judged(changes), "DSV725").message


def test_float_scale_is_refused(judged):
    assert "F32" in one(judged({SCALE: zeros("F32", 4, 2, bits=32)}), "DSV723").message


def test_two_scales(judged, tiny_data):
    assert "(.scale and .weight_scale_inv)" in one(judged({f"{WO_B}_scale_inv": tiny_data[SCALE]}), "DSV726").message


def test_scale_beside_plain_floats(judged):
    assert "BF16" in one(judged({WO_B: zeros("BF16", 128, 64, bits=16)}), "DSV727").message


def test_odd_rows_cannot_be_packed(plans, tmp_path):
    symbols = {"inter_dim": 2, "dim": 33, "experts": 1}
    plan = plans.manifest([plans.entry("experts_w1", symbols, 0)])
    plans.write(tmp_path / "x.safetensors", {"layers.0.ffn.experts.0.w1.weight": zeros("F4", 2, 33, bits=4)})
    assert "33" in one(match(plan, read_checkpoint(tmp_path)), "DSV722").message


def test_all_findings_in_one_report(judged):
    found = judged({"head.weight": None, "norm.weight": zeros("BF16", 64, bits=16), SCALE: None, "x": zeros("U8", 1)})
    assert sorted(d.code for d in found.diagnostics) == ["DSV720", "DSV721", "DSV722", "DSV724"]


def test_broken_shard_hides_what_it_held(plans, tiny_folder, tmp_path):
    """With an index, the tensors of a broken shard are known and not missing; other findings stay."""
    for file in tiny_folder.glob("*safetensors*"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    shard = tmp_path / "model-00002-of-00002.safetensors"
    shard.write_bytes(shard.read_bytes()[:100])
    matching = match(plans.tiny(tiny_folder, kv_source_layer_ids=[2, 3, 4, 6]), read_checkpoint(tmp_path))
    assert [d.code for d in matching.diagnostics] == ["DSV703", "DSV720"]
    shard.unlink()
    (tmp_path / "model.safetensors.index.json").unlink()
    shard.write_bytes(b"rubbish!")
    assert [d.code for d in match(plans.tiny(tiny_folder), read_checkpoint(tmp_path)).diagnostics] == ["DSV701"]


def experts_of(plans, layers, folder):
    """A plan of many experts, and a checkpoint of them without data."""
    symbols = {"inter_dim": 64, "dim": 64, "experts": 384}
    roles = ("experts_w1", "experts_w2", "experts_w3")
    plan = plans.manifest([plans.entry(role, symbols, layer) for layer in range(layers) for role in roles])
    tensors = {}
    for entry in plan.weights:
        for expert in range(entry.count):
            name = entry.name.replace("{expert}", str(expert))
            tensors[name] = ("I8", [64, 32], 2048)
            tensors[name.replace(".weight", ".scale")] = ("F8_E8M0", [64, 2], 128)
    folder.mkdir()
    with open(folder / "x.safetensors", "wb") as file:
        head = plans.header(tensors)
        file.write(head)
        file.truncate(len(head) + sum(size for _, _, size in tensors.values()))
    return plan, read_checkpoint(folder)


def test_a_plan_of_the_releases_size(plans, tmp_path):
    plan, checkpoint = experts_of(plans, 40, tmp_path / "40")
    matching = match(plan, checkpoint)
    assert not matching.diagnostics and sum(len(b.stored) for b in matching.bindings) == 46_080


def test_matching_grows_with_the_tensors(plans, tmp_path):
    one, eight = (experts_of(plans, layers, tmp_path / str(layers)) for layers in (1, 8))
    assert calls(lambda: match(*eight)) < 10 * calls(lambda: match(*one))
