"""What a GGUF file is refused for, from its header alone: every reason told, and all at once."""

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from golden_tiny import ORACLE, plan

from dsv41c.diagnostics import UserFault
from dsv41c.runtime.weights.bind import bind
from dsv41c.runtime.weights.gguf.families import FAMILIES
from dsv41c.runtime.weights.headers import read_checkpoint
from dsv41c.runtime.weights.match import match

from . import gguf_made as made


@pytest.fixture(scope="module")
def whole():
    """(tensors, keys) of each family that is changed here, by its letter."""
    return {family: (made.tensors(family), made.keys(family)) for family in "abc"} | {
        "d": (made.tensors("d"), made.keys("d")),
        "upstream": (made.tensors("upstream"), made.keys("upstream")),
    }


@pytest.fixture
def judged(whole, tmp_path):
    """Findings of a plan and a file of a family with tensors and keys changed (None: left out)."""

    def judge(family="b", tensors=(), keys=(), *, arch="deepseek41", compiled=None):
        both = []
        for part, changes in zip(whole[family], (tensors, keys), strict=True):
            both.append({name: value for name, value in {**part, **dict(changes)}.items() if value is not None})
        file = made.write(tmp_path / "x.gguf", *both, arch=arch)
        found = match((compiled or plan()).manifest, read_checkpoint(file)).diagnostics
        assert all(str(file) == each.span.file for each in found if each.span is not None)
        return [(each.code, each.message) for each in found]

    return judge


def only(found, code, *said):
    ((given, message),) = found
    assert given == code and all(part in message for part in said), found


ZEROS = made.as_type(np.zeros((4, 32)), "F32")


def test_nothing_is_said_of_a_sound_file(judged):
    for family in made.FAMILIES:
        assert judged(family) == []


# --- another architecture, another family -----------------------------------------------------------------------------


@pytest.mark.parametrize("arch", ["deepseek4", "deepseek410", "deepseek2", "llama"])
def test_only_the_exact_name_is_read(arch, judged):
    found = judged(arch=arch)
    only(found, "DSV761", f"is of architecture `{arch}`, expected `deepseek41`")
    assert ("engram tensors under the older architecture's name" in found[0][1]) == (arch == "deepseek4")


def test_keys_under_the_older_prefix(judged):
    only(judged(keys={".deepseek4.engram.layer_ids": 1}), "DSV761", "`deepseek4.engram.layer_ids`", "`deepseek41.`")


def test_tensors_of_the_older_architecture(judged):
    names = ("output_hc_base.weight", "blk.3.attn_compressor_ape.weight", "blk.0.ffn_gate_tid2eid.weight")
    only(judged(tensors=dict.fromkeys(names, ZEROS)), "DSV768", "3 tensors", *names)


UNREAD = {
    "source-layers": ({"attention.indexer.kv_source_layers": made.Array("u32", [2])}, {}),
    "constant-tensors": ({}, {"engram_primes.weight": ZEROS}),
    "external-engram": ({"engram.storage": "external"}, {}),
}


@pytest.mark.parametrize("name", UNREAD)
def test_families_known_in_part_are_refused_by_name(name, judged):
    keys, tensors = UNREAD[name]
    only(judged(keys=keys, tensors=tensors), "DSV762", f"of the GGUF family `{name}`, which is not read: ")


# --- hash constants ---------------------------------------------------------------------------------------------------


def test_missing_constants_are_named_together(judged):
    lacking = dict.fromkeys(("engram.multipliers", "engram.token_map", "engram.primes", "engram.offsets"))
    names = [f"`deepseek41.{name}`" for name in lacking if name != "engram.offsets"]  # which follow from the primes
    only(judged(keys=lacking), "DSV764", *names)
    assert judged(keys={"engram.offsets": None}) == []


@pytest.mark.parametrize("kind", ["u32", "f32", "i64"])
def test_integers_of_any_width_are_read_but_never_floats(kind, judged):
    numbers = made.hash_constants()[1]
    found = judged(keys={"engram.primes": made.Array(kind, numbers)})
    assert found == [] if kind != "f32" else found[0][0] == "DSV764"


def test_multipliers_that_were_cut_off(judged):
    cut = made.Array("i32", [number & 0x7FFFFFFF for number in made.hash_constants()[0]])
    found = judged(keys={"engram.multipliers": cut})
    assert {code for code, _ in found} == {"DSV765"}
    assert "is an array of i32, and a multiplier does not fit" in found[0][1]


@pytest.mark.parametrize("part", ["multipliers", "primes", "offsets", "token_map"])
def test_one_number_that_is_another(part, judged):
    place = ("multipliers", "primes", "offsets", "token_map").index(part)
    numbers = list(made.hash_constants()[place])
    at = 3 if part == "multipliers" else 9
    numbers[at] += 2
    if part == "primes":
        numbers[at + 1] -= 2  # so that rows stay the same
    found = judged(keys={f"engram.{part}": made.Array("i32" if part == "token_map" else "u64", numbers)})
    said = {
        "multipliers": ("multipliers[3] of layer 1", str(numbers[3]), "the spec gives"),
        "primes": ("primes[3] of layer 4", "(2 of 12 differ)"),
        "offsets": ("offsets[3] of layer 4",),
        "token_map": ("has", "for token 9", "the tokenizer gives"),
    }[part]
    only(found, "DSV765", *said)


def test_offsets_of_tables_in_one_tensor_may_count_through(judged):
    offsets = made.hash_constants()[2]
    through = [*offsets[:6], *(462 + offset for offset in offsets[6:])]
    assert judged("upstream", keys={"ple.head_offsets": made.Array("u64", through)}) == []
    through[7] += 1
    only(judged("upstream", keys={"ple.head_offsets": made.Array("u64", through)}), "DSV765", "offsets[1] of layer 4")


def test_constants_of_another_number_of_columns(judged):
    numbers = made.hash_constants()[1][:11]
    found = judged(keys={"engram.primes": made.Array("u64", numbers)})
    assert any("has 11 entries for 2 engram layers" in text for _, text in found)


def test_a_token_map_of_another_vocabulary(judged):
    short = made.Array("i32", made.hash_constants()[3][:500])
    assert any("500 entries, and the vocabulary 512" in text for _, text in judged(keys={"engram.token_map": short}))
    found = judged("a", keys={"engram.compressed_vocab_size": 400})
    only(found, "DSV765", "the token map goes up to 425", "is 400")


def test_a_tokenizer_that_is_not_the_models(judged):
    tokens = list(made.keys()[".tokenizer.ggml.tokens"])
    tokens[300], tokens[301] = tokens[301], tokens[300]
    found = judged(keys={".tokenizer.ggml.tokens": tokens})
    assert found and all(code in ("DSV765", "DSV769", "DSV741") for code, _ in found)
    only(judged(keys={".tokenizer.ggml.tokens": None}), "DSV769", "`tokenizer.ggml.tokens` is no list of tokens")
    only(judged(keys={".tokenizer.ggml.model": "bert"}), "DSV769", "`bert`, expected `gpt2`")
    assert judged(keys={".tokenizer.ggml.pre": "a-rule-of-tomorrow"}) == []  # which the map does not need


# --- engram tables ----------------------------------------------------------------------------------------------------


def test_a_table_too_short(judged):
    table = made.as_type(made.values("layers.1.engram.embed.weight")[:400], "BF16")
    found = judged(tensors={"blk.1.engram_embd.weight": table})
    assert ("DSV766", "the engram table of layer 1 has 400 rows, and its buckets take 462") in found


def test_a_table_too_narrow(judged):
    table = made.as_type(np.zeros((462, 16)), "BF16")
    only(judged(tensors={"blk.1.engram_embd.weight": table}), "DSV722", "has shape [462, 16]", "expected [462, 32]")


def test_layers_with_tables_are_those_of_the_keys(judged):
    found = judged(keys={"engram.layer_ids": made.Array("u32", [1])})
    assert found[0][0] == "DSV766" and "is [1], layers [1, 4] have engram tables" in found[0][1]
    found = judged(tensors={"blk.4.engram_embd.weight": None})
    assert "is [1, 4], layers [1] have engram tables, and layers [1, 4] engram tensors of any kind" in found[0][1]
    assert found[-1][0] == "DSV720" and "layers.4.engram.embed.weight" in found[-1][1]


def test_tables_that_were_left_out(judged):
    only(judged(keys={"engram.present": False}), "DSV766", "`deepseek41.engram.present` is false")


def test_raw_rows_that_nothing_describes(judged, whole):
    tensors = {name: array for name, array in whole["c"][0].items() if name == "blk.1.engram_embd.weight"}
    found = judged("c", tensors=tensors, keys={"engram.encoding": None})
    assert [code for code, _ in found] == ["DSV766", "DSV766"]
    assert all("is I8 in rows of 33 without a key that describes them" in text for _, text in found)
    found = judged("c", keys={"engram.encoding": "e4m3_e8m0_32_row264"})
    assert "rows of 33, which `engram.encoding`, `e4m3_e8m0_32_row264`, does not describe" in found[0][1]
    found = judged("d", tensors={"blk.1.engram_embd_scale.weight": (np.zeros((400, 1), np.int8), Type.I8)})
    assert "and scales beside it: `blk.1.engram_embd_scale.weight` [1, 400]" in found[0][1]


def test_scales_that_would_not_be_applied(judged):
    scale = made.as_type(np.ones((462, 1)), "F32")
    only(judged(tensors={"blk.1.engram_embd.scale": scale}), "DSV727", "`blk.1.engram_embd.scale`")
    only(judged(tensors={"blk.3.attn_q_a.scale": made.as_type(np.ones(1), "F32")}), "DSV727", "`blk.3.attn_q_a.scale`")
    only(judged("upstream", tensors={"per_layer_token_embd.scale": scale}), "DSV727", "`per_layer_token_embd.scale`")


def test_a_table_of_all_layers_of_another_size(judged):
    table = made.as_type(np.zeros((1091, 32)), "BF16")
    found = judged("upstream", tensors={"per_layer_token_embd.weight": table})
    only(found, "DSV766", "[32, 1091], and the buckets of layers [1, 4] take 1,092 rows")


def test_a_product_beside_its_parts(judged, whole):
    found = judged("upstream", tensors={"blk.1.engram_q.weight": whole["b"][0]["blk.1.engram_q.weight"]})
    assert found[0][0] == "DSV721" and "unknown to GGUF family `per-layer-table`" in found[0][1]


# --- layers that differ, and types ------------------------------------------------------------------------------------


def test_numbers_that_differ_by_layer(judged):
    found = judged(
        keys={
            "expert_count": made.Array("u32", [8] * 9 + [4]),
            "expert_used_count": made.Array("u32", [2] * 10),
            "swiglu_clamp_exp": made.Array("f32", [2.0] * 9 + [7.0]),
        }
    )
    only(
        found, "DSV767", "`deepseek41.expert_count` differs by layer", "`deepseek41.swiglu_clamp_exp` differs by layer"
    )
    found = judged(keys={"swiglu_clamp_shexp": made.Array("f32", [3.0] * 10)})
    only(found, "DSV767", "`deepseek41.swiglu_clamp_exp` is 2 and `deepseek41.swiglu_clamp_shexp` is 3")


def test_types_that_are_not_read(judged):
    found = judged(tensors={"blk.3.attn_q_a.weight": (np.zeros((96, 128), np.int16), Type.I16)})
    only(found, "DSV763", "1 tensor of type I16, which is not read: `blk.3.attn_q_a.weight`")


def test_tensors_are_those_of_the_plan(judged):
    missing = judged(tensors={"blk.2.attn_compressor_gate.weight": None})
    only(missing, "DSV720", "layers.2.attn.compressor.wgate.weight")
    gate = made.as_type(np.zeros((64, 128)), "BF16")
    extra = judged(tensors={"blk.6.attn_compressor_gate.weight": gate})  # of ratio 1
    only(extra, "DSV721", "layers.6.attn.compressor.wgate.weight")
    only(judged(tensors={"blk.2.attn_q.weight": gate}), "DSV721", "unknown to GGUF family `engram_embd`")
    only(judged(tensors={"blk.0.ffn_up.{expert}.weight": gate}), "DSV721", "`blk.0.ffn_up.{expert}.weight`")
    only(judged(tensors={"embed.weight": gate}), "DSV721", "unknown to GGUF family `engram_embd`: `embed.weight`")


def test_what_was_looked_for_is_told_in_the_familys_names():
    a, b = ({family.name: family for family in FAMILIES}[name] for name in ("engram_embed", "engram_embd"))
    assert a.spellings("layers.2.attn.indexer.wk.weight") == ("blk.2.indexer_compressor_kv.weight",)
    assert b.spellings("layers.2.attn.indexer.wk.weight") == ("blk.2.indexer.attn_k.weight",)
    experts = ("blk.30.ffn_down_exps.weight", "blk.30.ffn_down.17.weight")
    assert a.spellings("layers.30.ffn.experts.17.w2.weight") == experts
    assert a.spellings("head.weight") == ("output.weight",)


def test_another_number_of_experts(judged, whole):
    fewer = {name: (array[:7], kind) for name, (array, kind) in whole["b"][0].items() if name.endswith("_exps.weight")}
    only(judged(tensors=fewer), "DSV728", "has 7 experts in layers 0-9, the plan 8")


def test_experts_both_merged_and_single(judged, whole):
    single = {"blk.0.ffn_up.3.weight": (whole["b"][0]["blk.0.ffn_up_exps.weight"][0][3], Type.MXFP4)}
    found = judged(tensors=single)
    assert found[0][0] == "DSV710" and "`blk.0.ffn_up_exps.weight[3]` and `blk.0.ffn_up.3.weight`" in found[0][1]


def test_findings_come_together(judged, tmp_path, monkeypatch):
    found = judged(
        tensors={"blk.1.engram_embd.scale": ZEROS, "blk.4.engram_embd.weight": made.as_type(np.zeros((9, 32)), "F32")},
        keys={"engram.primes": None, "expert_count": made.Array("u32", [8, 4])},
    )
    assert {code for code, _ in found} >= {"DSV727", "DSV764", "DSV767", "DSV722"}
    monkeypatch.setattr("dsv41c.runtime.weights.bind.MappedFiles", None)  # nothing is loaded
    with pytest.raises(UserFault) as raised:
        bind(plan().manifest, tmp_path / "x.gguf")
    assert [(each.code, each.message) for each in raised.value.diagnostics] == found


def test_a_file_without_engrams_is_not_asked_for_their_constants(judged, whole):
    sizes = "max_ngram_size: 4, n_heads: 2, head_dim: 32, vocab_size: 64, num_embeddings: [462, 630], pad_id: 2"
    section = f"engram: {{{sizes},\n  compressed_vocab_size: 426, storage: mapped}}\n"
    no_engram = (("  engram_layers: [1, 4]\n", ""), (section, ""))
    tensors, keys = whole["b"]
    none = {name: None for name in tensors if ".engram_" in name}, {name: None for name in keys if "engram" in name}
    assert judged("b", *none, compiled=plan(ORACLE, *no_engram)) == []
    assert judged("b", *none)[0][0] == "DSV720"
