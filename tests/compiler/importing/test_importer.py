"""Configs to specs: both vocabularies, both nestings, and every way in which a config is of another model."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv41c.compiler.cli import main
from dsv41c.compiler.importing import Imported, import_config, keys
from dsv41c.compiler.spec import load
from dsv41c.diagnostics import Diagnostic, has_errors

TINY = Path(__file__).resolve().parents[2] / "golden" / "tiny" / "config.json"

# The released config.json, whole.
FLASH: dict[str, Any] = {
    "architectures": ["DeepseekV41ForCausalLM"],
    "model_type": "deepseek_v41",
    "dtype": "bfloat16",
    "transformers_version": "5.6.0",
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
    "image_token_id": 129264,
    "quantization_config": {
        "quant_method": "fp8",
        "activation_scheme": "dynamic",
        "weight_block_size": [32, 32],
        "scale_fmt": "ue8m0",
        "expert_dtype": "fp4",
    },
    "text_config": {
        "model_type": "deepseek_v41_text",
        "vocab_size": 129280,
        "hidden_size": 5120,
        "num_hidden_layers": 40,
        "moe_intermediate_size": 2304,
        "num_attention_heads": 64,
        "num_key_value_heads": 1,
        "head_dim": 512,
        "qk_rope_head_dim": 64,
        "q_lora_rank": 1280,
        "o_lora_rank": 1024,
        "o_groups": 8,
        "hidden_act": "silu",
        "swiglu_limit": 10.0,
        "rms_norm_eps": 1e-20,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "initializer_range": 0.02,
        "use_cache": True,
        "tie_word_embeddings": False,
        "max_position_embeddings": 1048576,
        "rope_theta": 10000,
        "compress_rope_theta": 160000,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 16,
            "beta_fast": 32,
            "beta_slow": 1,
            "original_max_position_embeddings": 65536,
        },
        "sliding_window": 128,
        "n_routed_experts": 384,
        "n_shared_experts": 1,
        "num_experts_per_tok": 6,
        "scoring_func": "sqrtsoftplus",
        "topk_method": "noaux_tc",
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.5,
        "compress_ratios": [0] * 2 + [2] * 18 + [1] * 20 + [0] * 3,
        "kv_source_layer_ids": [2, 8, 14, 20],
        "index_source_layer_ids": [2, 8, 14, 20, 24, 28, 32, 36],
        "index_n_heads": 32,
        "index_head_dim": 128,
        "index_topk": 512,
        "candidate_source_layer_id": 20,
        "candidate_topk_blocks": 2048,
        "candidate_block_size": 8,
        "hc_mult": 4,
        "hc_sinkhorn_iters": 20,
        "hc_eps": 1e-6,
        "engram_layer_ids": [1, 14],
        "engram_num_embeddings": [384006168, 384016682],
        "engram_max_ngram_size": 4,
        "engram_vocab_size": 16000000,
        "engram_n_heads": 8,
        "engram_head_dim": 256,
        "engram_pad_token_id": 2,
        "engram_compressed_vocab_size": 99092,
        "num_nextn_predict_layers": 3,
        "dspark_block_size": 5,
        "dspark_noise_token_id": 128799,
        "dspark_target_layer_ids": [37, 38, 39],
        "dspark_markov_rank": 256,
        "dspark_n_routed_experts": 128,
        "dspark_num_experts_per_tok": 3,
    },
    "vision_config": {"model_type": "deepseek_v41_vision", "num_hidden_layers": 32, "hidden_size": 1024},
}
DROP = object()


def run(config: object) -> Imported:
    return import_config("-", stdin=lambda: json.dumps(config, indent=1))


def changed(top: dict[str, Any] | None = None, **text: Any) -> Imported:
    """Import of the tiny config with keys changed at the top and in the text config; DROP removes one."""
    config = json.loads(TINY.read_text())
    for place, values in ((config, top or {}), (config["text_config"], text)):
        for key, value in values.items():
            if value is DROP:
                del place[key]
            else:
                place[key] = value
    return run(config)


def codes(imported: Imported) -> list[str]:
    assert all(finding.span and finding.help for finding in imported.diagnostics)
    assert (imported.text is None) == has_errors(imported.diagnostics)
    return [finding.code for finding in imported.diagnostics]


def only(imported: Imported) -> Diagnostic:
    assert len(codes(imported)) == 1, imported.diagnostics
    return imported.diagnostics[0]


def flat(config: dict[str, Any]) -> dict[str, Any]:
    merged = {key: value for key, value in config.items() if key not in ("text_config", "vision_config")}
    return {**config["text_config"], **merged}


def official(config: dict[str, Any]) -> dict[str, Any]:
    """The same model as the inference code's own config says it."""
    skipped = ("model_type", "rope_scaling", "max_position_embeddings", *keys.FIXED)
    names = {names[0]: names[-1] for names in keys.FIELDS.values()}
    args = {names.get(key, key): value for key, value in config["text_config"].items() if key not in skipped}
    return args | {
        "max_batch_size": 4,
        "max_seq_len": config["text_config"]["max_position_embeddings"],
        "dtype": "fp8",
        "expert_dtype": "fp4",
        "scale_fmt": "ue8m0",
        "rope_factor": 16,
        "original_seq_len": config["text_config"]["rope_scaling"]["original_max_position_embeddings"],
        "beta_fast": 32,
        "beta_slow": 1,
        "vision_n_layers": 32,
        "gate_temp": 1.0,
    }


def test_flash_is_the_shipped_spec() -> None:
    imported = run(FLASH)
    assert imported.diagnostics == () and imported.text is not None
    text = imported.text
    loaded = load("-", stdin=lambda: text)
    assert loaded.diagnostics == () and loaded.spec is not None
    shipped = load("deepseek-v4.1-flash").spec
    assert loaded.spec.model_copy(update={"name": "deepseek-v4.1-flash"}) == shipped


def test_tiny_loads_without_findings() -> None:
    imported = import_config(str(TINY))
    assert imported.diagnostics == () and imported.text is not None
    text = imported.text
    loaded = load("-", stdin=lambda: text)
    assert loaded.diagnostics == () and loaded.spec is not None
    assert loaded.spec.layers.compress_ratios == (0, 0, 2, 2, 2, 2, 1, 1, 1, 1)
    assert loaded.spec.weights.model_dump() == load("toy").spec.weights.model_dump()  # type: ignore[union-attr]


def test_nested_flat_and_official_give_the_same_bytes() -> None:
    assert run(flat(FLASH)).text == run(FLASH).text
    imported = run(official(FLASH))
    assert codes(imported) == ["DSV236"] * 3  # the token ids, which that file does not have
    assert imported.text == run(FLASH).text


def test_either_spelling_and_both() -> None:
    other = {names[0]: names[-1] for names in keys.FIELDS.values()}
    config = json.loads(TINY.read_text())
    config["text_config"] = {other.get(key, key): value for key, value in config["text_config"].items()}
    assert run(config).text == import_config(str(TINY)).text
    note = only(changed(kv_source_layers=[2, 4, 6]))
    assert note.code == "DSV207"
    error = only(changed(kv_source_layers=[2, 4]))
    assert error.code == "DSV206" and "[2, 4, 6]" in error.message and "[2, 4]" in error.message


def test_levels_that_disagree() -> None:
    error = only(changed({"num_hidden_layers": 13}))
    assert error.code == "DSV231"
    assert dict(error.facts) == {"num_hidden_layers": "13", "text_config.num_hidden_layers": "10"}
    assert codes(changed({"num_hidden_layers": 10})) == []
    assert codes(changed({"rope_factor": 8})) == ["DSV231"]
    assert codes(changed(quantization_config={"quant_method": "fp8"})) == ["DSV231"]


@pytest.mark.parametrize(
    "name", ["deepseek_v4", "deepseek_v4_1", "DeepseekV41ForCausalLM", "deepseek_v410", "llama", 4]
)
def test_only_exact_model_types(name: object) -> None:
    error = only(changed({"model_type": name}))
    assert error.code == "DSV230" and "deepseek_v41" in dict(error.facts)["supported"]
    if name == "deepseek_v4":
        assert error.message == "deepseek_v4 is a different architecture (per-layer compressors, ratios 4/128)"


def test_architectures() -> None:
    assert only(changed({"architectures": ["DeepseekV4ForCausalLM"]})).code == "DSV230"
    assert only(changed({"architectures": DROP, "model_type": DROP}, model_type=DROP)).code == "DSV230"
    assert codes(changed({"architectures": DROP})) == []
    assert codes(changed(model_type="deepseek_v4_text")) == ["DSV230"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"weight_block_size": [128, 128]},
            "`quantization_config.weight_block_size` is [128, 128], expected [32, 32] or [1, 32]",
        ),
        ({"scale_fmt": "fp32"}, '`quantization_config.scale_fmt` is "fp32", expected "ue8m0"'),
        ({"expert_dtype": "fp8"}, '`quantization_config.expert_dtype` is "fp8", expected "fp4"'),
        ({"expert_dtype": DROP}, '`quantization_config` has no `expert_dtype`, expected "fp4"'),
        ({"moe_quant_algo": "NVFP4"}, "the checkpoint is quantised by ModelOpt NVFP4, which is not read here"),
        ({"quantized_layers": {}}, "the checkpoint is quantised by ModelOpt NVFP4, which is not read here"),
        ({"quant_method": "quark"}, "the checkpoint is quantised by AMD Quark, which is not read here"),
        ({"quant_method": "exl3"}, "the checkpoint is quantised by EXL3, which is not read here"),
        ({"quant_method": "awq"}, '`quantization_config.quant_method` is "awq", expected "fp8" or "mxfp8"'),
        ({"modules": []}, "`quantization_config.modules` is unknown, and could change what scales mean"),
    ],
)
def test_other_quantisations(change: dict[str, Any], message: str) -> None:
    block = {**FLASH["quantization_config"], **change}
    block = {key: value for key, value in block.items() if value is not DROP}
    error = only(changed({"quantization_config": block}))
    assert (error.code, error.message) == ("DSV232", message)


@pytest.mark.parametrize("method", ["fp8", "mxfp8"])
def test_mxfp8_linears(method: str) -> None:
    block = {**FLASH["quantization_config"], "quant_method": method, "weight_block_size": [1, 32]}
    imported = changed({"quantization_config": block})
    assert codes(imported) == []
    assert "linear: fp8_row32\n" in (imported.text or "") and "experts: fp4_32\n" in (imported.text or "")


def test_no_quantisation_means_plain_weights_and_says_so() -> None:
    imported = changed({"quantization_config": DROP})
    assert codes(imported) == ["DSV236"] and "linear: bf16" in (imported.text or "")
    assert codes(changed({"quantization_config": 3})) == ["DSV203"]
    args = official(FLASH)
    assert "DSV232" in codes(run({**args, "expert_dtype": None}))
    assert "DSV232" in codes(run({**args, "dtype": "bf16"}))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hidden_act", "gelu"),
        ("norm_topk_prob", False),
        ("topk_method", "greedy"),
        ("attention_bias", True),
        ("tie_word_embeddings", True),
        ("num_key_value_heads", 8),
        ("num_hash_layers", 3),
        ("norm_topk_prob", 1),
    ],
)
def test_other_mathematics(key: str, value: object) -> None:
    error = only(changed(**{key: value}))
    assert error.code == "DSV233" and f"`text_config.{key}`" in error.message


def test_rope_scaling() -> None:
    scaling = json.loads(TINY.read_text())["text_config"]["rope_scaling"]
    assert codes(changed(rope_scaling={**scaling, "rope_type": "linear"})) == ["DSV233"]
    assert codes(changed(rope_scaling={**scaling, "mscale": 1.0})) == ["DSV233"]
    assert codes(changed(rope_scaling={**scaling, "mscale": None})) == []
    assert sorted(codes(changed(rope_scaling=3))) == ["DSV203", "DSV236", "DSV236", "DSV237", "DSV237"]
    del scaling["beta_fast"]
    assert codes(changed(rope_scaling=scaling)) == ["DSV236"]
    del scaling["factor"]
    missing = next(found for found in changed(rope_scaling=scaling).diagnostics if found.code == "DSV237")
    assert "rope_scaling.factor" in missing.message
    assert codes(changed(rope_parameters={})) == ["DSV235"]


def test_unknown_keys() -> None:
    error = only(changed(kv_sources_layer=[2]))
    assert error.code == "DSV235" and error.help == "did you mean `kv_source_layers`?"
    assert codes(changed(engram_flavour=2)) == ["DSV235"]
    warning = only(changed({"colour": "blue"}))
    assert warning.code == "DSV234" and warning.severity == "warning"


@pytest.mark.parametrize("parameter", list(keys.FIELDS))
def test_every_parameter_is_read_and_missed_by_name(parameter: str) -> None:
    config = official(FLASH) | {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
    assert codes(run(config)) == []
    for name in keys.FIELDS[parameter]:
        config.pop(name, None)
    imported = run(config)
    if parameter == "model.n_mtp_layers":
        assert codes(imported) == ["DSV208"]
    elif parameter in keys.SILENT_DEFAULTS or parameter == "engram.hash_layers":  # which only cut models have
        assert codes(imported) == []
    else:
        code = "DSV236" if parameter in keys.ASSUMED else "DSV237"
        error = only(imported)
        assert error.code == code and f"`{keys.FIELDS[parameter][0]}`" in error.message


def test_models_without_parts() -> None:
    no_engram = changed(engram_layer_ids=[], engram_num_embeddings=[])
    assert codes(no_engram) == [] and "\nengram:" not in (no_engram.text or "")
    gone = {key: DROP for key in json.loads(TINY.read_text())["text_config"] if key.startswith("engram_")}
    assert changed(**gone).text == no_engram.text
    for value in (-1, None):
        assert "candidate_source_layer:" not in (
            changed(candidate_source_layer_id=value).text or "candidate_source_layer:"
        )
    none = changed(candidate_source_layer_id=-1, candidate_topk_blocks=0, candidate_block_size=DROP)
    assert codes(none) == []
    assert codes(changed(candidate_source_layer_id=DROP)) == ["DSV237"]
    assert codes(changed(engram_layer_ids=DROP)) == ["DSV237"]


def test_ratio_lengths() -> None:
    ratios = FLASH["text_config"]["compress_ratios"]
    for length, code in ((39, "DSV208"), (40, None), (42, "DSV208"), (43, None), (44, "DSV208")):
        config = copy.deepcopy(FLASH)
        config["text_config"]["compress_ratios"] = [*ratios, 0][:length]
        assert codes(run(config)) == ([code] if code else [])


def test_findings_point_into_the_config() -> None:
    imported = changed(index_topk=-1)
    error = only(imported)
    assert error.span is not None and error.span.file == "<stdin>"
    line = imported.sources["<stdin>"].splitlines()[error.span.line - 1]
    assert line.strip() == '"index_topk": -1,' and line[error.span.column - 1 :].startswith("-1")


@pytest.mark.parametrize(
    "change",
    [
        {"kv_source_layer_ids": [0, 2, 4, 6], "index_source_layer_ids": [0, 2, 4, 6, 8]},
        {"kv_source_layer_ids": [3, 4, 6], "index_source_layer_ids": [3, 4, 6, 8]},
        {"candidate_source_layer_id": 7},
        {"kv_source_layer_ids": [2, 2, 4, 6]},
        {"kv_source_layer_ids": [4, 2, 6]},
        {"engram_num_embeddings": [462]},
        {"engram_layer_ids": [1, 1]},
        {"engram_layer_ids": []},
    ],
)
def test_what_is_for_the_checks_passes_through(change: dict[str, Any]) -> None:
    assert codes(changed(**change)) == []


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"compress_ratios": [0, 0, 2, 2, 2, 2, 1, 1, 1, 1, 0]}, "DSV208"),
        ({"qk_rope_head_dim": 15}, "DSV215"),
        ({"qk_rope_head_dim": 80}, "DSV204"),
        ({"scoring_func": "tanh"}, "DSV205"),
        ({"num_experts_per_tok": 9}, "DSV204"),
        ({"hidden_size": 10**30}, "DSV114"),
        ({"swiglu_limit": float("nan")}, "DSV115"),
        ({"n_shared_experts": 2}, "DSV204"),
        ({"head_dim": "64"}, "DSV203"),
    ],
)
def test_type_length_and_range(change: dict[str, Any], code: str) -> None:
    assert codes(changed(**change)) == [code]


def test_unreadable_configs(tmp_path: Path) -> None:
    assert codes(import_config(str(tmp_path / "config.json"))) == ["DSV117"]
    assert codes(run([1])) == ["DSV203"]
    assert codes(import_config("-", stdin=lambda: b"\xff")) == ["DSV102"]
    assert codes(import_config("-", stdin=lambda: '{"a": 1, "a": 2, "model_type": "llama"}')) == ["DSV106", "DSV230"]


_VALUES = st.none() | st.booleans() | st.integers(-3, 70) | st.text(max_size=4)
_ANY = st.recursive(_VALUES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner))
_KEYS = ("text_config", "quantization_config", "rope_scaling", "architectures", "model_type", "dtype")


@settings(max_examples=150, deadline=None)
@given(st.sampled_from((*keys.SPELLINGS, *keys.FIXED, *_KEYS)), _ANY, st.booleans())
def test_no_config_raises(key: str, value: object, top: bool) -> None:
    imported = changed({key: value}) if top else changed(**{key: value})
    assert (imported.text is None) == has_errors(imported.diagnostics)
    if imported.text is not None:
        text = imported.text
        assert not has_errors(load("-", stdin=lambda: text).diagnostics)


@pytest.mark.parametrize("parameter", keys.ASSUMED)
def test_what_is_assumed_is_what_the_released_model_has(parameter: str):
    value: Any = load("deepseek-v4.1-flash").spec
    for name in parameter.split("."):
        value = getattr(value, name)
    assert value == keys.ASSUMED[parameter]


def test_a_list_of_model_types_is_no_model_type(tmp_path):
    config = json.loads(TINY.read_text()) | {"model_type": ["deepseek_v41"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert "DSV230" in [each.code for each in import_config(tmp_path / "config.json").diagnostics]


def test_a_config_beside_weights_is_held_to_the_spec(tmp_path, capsys):
    """A warning: a spec may differ on purpose. `run` says it too, and goes on."""
    (tmp_path / "spec.yaml").write_text(import_config(str(TINY)).text or "")
    validate = ["validate", str(tmp_path / "spec.yaml"), "--checkpoint", str(TINY.parent)]
    assert main(validate) == 0 and "DSV734" not in capsys.readouterr().out
    for value, path in (("rope.theta=5000", "rope.theta: 5000"), ("moe.swiglu_limit=0", "moe.swiglu_limit: 0")):
        assert main([*validate, "--set", value]) == 0
        assert f"{path}" in capsys.readouterr().out
    assert main(["compile", str(tmp_path / "spec.yaml"), "-o", str(tmp_path / "plan"), "--set", "rope.theta=5000"]) == 0
    assert main(["run", str(tmp_path / "plan"), "--checkpoint", str(TINY.parent), "--ids", "1,2", "-n", "1"]) == 0
    assert "DSV734" in capsys.readouterr().err
