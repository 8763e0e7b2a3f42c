"""`import FILE.gguf`: the spec of a GGUF file is the spec of the config.json of the same model, field by field."""

import difflib
import json
import random

import gguf_made as made
import pytest
from golden_tiny import plan

from dsv41c.compiler.cli import main
from dsv41c.compiler.importing import import_config, import_gguf, other_model
from dsv41c.compiler.spec import load
from dsv41c.runtime.weights.gguf.config import roundest_start
from dsv41c.runtime.weights.headers import read_checkpoint
from dsv41c.runtime.weights.match import match

CONFIG = made.TINY / "config.json"
RELEASED = {"block_count": 40, "context_length": 1048576, "attention.indexer.top_k": 512}


@pytest.fixture(scope="module")
def tensors():
    """What a config is read from beside keys: the names of tensors, and the sizes of tables."""
    return {family: made.tensors(family) for family in made.FAMILIES}


@pytest.fixture
def imported(tensors, tmp_path):
    def run(family="b", changes=(), **options):
        keys = {**made.keys(family, **options), **dict(changes)}
        found = {name: value for name, value in keys.items() if value is not None}
        return import_gguf(str(made.write(tmp_path / "x.gguf", tensors[family], found)))

    return run


def codes(result):
    return [finding.code for finding in result.diagnostics]


@pytest.mark.parametrize("family", made.FAMILIES)
def test_the_spec_is_that_of_the_config(family, imported):
    result = imported(family)
    # One family has no key for the id that pads n-grams.
    assert codes(result) == (["DSV236"] if family == "upstream" else [])
    assert result.text == import_config(str(CONFIG)).text


def test_sources_are_the_layers_that_have_their_tensors(imported):
    result = imported("b", lists=False)
    assert result.text == import_config(str(CONFIG)).text
    assert codes(result) == ["DSV236", "DSV236"]
    said = " ".join(finding.message for finding in result.diagnostics)
    assert "`attn_compressor_kv.weight`" in said and "took [2, 4, 6, 8]: the layers that have `indexer.attn_q_b" in said


def test_the_second_level_is_known_without_keys_only_for_the_released_model(imported):
    names = [f"attention.candidate_{name}" for name in ("source_layer_id", "block_size", "topk_blocks")]
    result = imported("b", dict.fromkeys(names))
    assert codes(result) == ["DSV764"] and result.text is None
    assert all(f"`deepseek41.{name}`" in result.diagnostics[0].message for name in names)


def test_draft_layers_are_the_ratios_beyond_the_layers(imported):
    ratios = made.Array("u32", [0, 0, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0])
    assert "n_mtp_layers: 3" in imported("a", {"attention.compress_ratios": ratios}).text
    assert "n_mtp_layers: 2" in imported("a", {"nextn_predict_layers": 2}).text


def test_missing_keys_are_told_by_their_own_names_and_together(imported):
    result = imported("a", {"rope.freq_base": None, "expert_count": None, "swiglu_clamp_exp": None})
    assert codes(result) == ["DSV764"]
    for name in ("rope.freq_base", "expert_count", "swiglu_clamp_exp"):
        assert f"`deepseek41.{name}`" in result.diagnostics[0].message


def test_keys_that_nothing_reads_are_told(imported):
    result = imported("a", {"gate_temperature": 2.0, "attention.logit_softcapping": 30.0})
    assert codes(result) == ["DSV234"] and result.text is not None
    assert "`deepseek41.gate_temperature`, `deepseek41.attention.logit_softcapping`" in result.diagnostics[0].message


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"expert_gating_func": 2}, "DSV2"),
        ({"expert_weights_norm": False}, "DSV233"),
        ({"attention.head_count_kv": 8}, "DSV233"),
        ({"hash_layer_count": 3}, "DSV233"),
        ({"rope.scaling.type": "linear"}, "DSV233"),
        ({"attention.value_length": 32}, "DSV767"),
        ({"embedding_length": "wide"}, "DSV2"),
    ],
)
def test_what_another_model_computes_is_refused(changes, code, imported):
    result = imported("a", changes)
    assert result.text is None and any(each.startswith(code) for each in codes(result)), result.diagnostics


def test_constants_of_another_hash_give_no_spec(imported):
    numbers = list(made.hash_constants()[0])
    numbers[2] += 2
    result = imported("b", {"engram.multipliers": made.Array("u64", numbers)})
    assert codes(result) == ["DSV765"] and result.text is None
    assert "multipliers[2] of layer 1" in result.diagnostics[0].message


def test_layers_that_are_not_there_are_left_to_the_checks_of_specs(imported):
    result = imported("upstream", {"ple.layers": made.Array("i32", [-1, 4])})
    assert codes(result) == ["DSV766"]


def test_a_pad_that_no_token_has(imported):
    assert codes(imported("b", {"engram.pad_id": 5000})) == ["DSV765"]


@pytest.mark.parametrize(
    ("first", "start"), [(16000057, 16000000), (67, 64), (2, 2), (3, 3), (101, 100), (1 << 62, 1 << 62)]
)
def test_where_a_search_for_primes_started(first, start):
    """Every start from the prime before on gives the same primes; a round one is taken."""
    assert roundest_start(first) == start


def test_the_command_line(tensors, tmp_path, capsys):
    file = made.write(tmp_path / "x.gguf", tensors["a"], made.keys("a"))
    assert main(["import", str(CONFIG), "-o", str(tmp_path / "one.yaml")]) == 0
    assert main(["import", str(file), "-o", str(tmp_path / "two.yaml")]) == 0
    one, two = ((tmp_path / f"{name}.yaml").read_text() for name in ("one", "two"))
    assert one == two, "\n".join(difflib.unified_diff(one.split("\n"), two.split("\n")))
    capsys.readouterr()
    assert main(["validate", str(tmp_path / "two.yaml"), "--checkpoint", str(file)]) == 0
    assert "483 tensors for 273 weights" in capsys.readouterr().err
    assert main(["import", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["spec"] == one
    file.write_bytes(file.read_bytes()[:5000])
    assert main(["import", str(file)]) == 1
    assert "DSV703" in capsys.readouterr().err


ODD = (
    "text",
    True,
    0.5,
    4_000_000_000,
    made.Array("f32", [1.5, -2.0]),
    made.Array("i32", [-1, 5]),
    made.Array("u64", [1 << 63, 0]),
    made.Array("u8", [7]),
    ["a", "b"],
)


@pytest.mark.parametrize("family", ["b", "upstream"])
def test_values_of_any_kind_are_judged(family, tmp_path):
    """No value of any key makes a bug of ours: a spec comes out, or findings."""
    names = ("token_embd.weight", "per_layer_token_embd.weight")
    tensors = {name: tensor for name, tensor in made.tensors(family).items() if ".engram_" in name or name in names}
    keys, rng = made.keys(family, lists=False), random.Random(11)
    own = [name for name in keys if not name.startswith(".tokenizer.ggml.t") and name != ".tokenizer.ggml.merges"]
    for name in own:
        changed = {**keys, name: rng.choice(ODD), rng.choice(own): rng.choice(ODD)}
        file = made.write(tmp_path / "x.gguf", tensors, changed)
        result = import_gguf(str(file))
        assert result.text is not None or result.diagnostics
        assert all(finding.message.isprintable() for finding in result.diagnostics)
        match(plan().manifest, read_checkpoint(file))


@pytest.mark.parametrize(
    ("key", "value", "path"),
    [
        ("rope.freq_base", 20000.0, "rope.theta"),
        ("attention.layer_norm_rms_epsilon", 1e-6, "model.norm_eps"),
        ("expert_weights_scale", 2.0, "moe.route_scale"),
        ("attention.sliding_window", 8, "attention.window_size"),
        ("rope.scaling.yarn_beta_fast", 16.0, "rope.yarn"),
    ],
)
def test_keys_that_contradict_the_spec_are_told(key, value, path, tensors, tmp_path, capsys):
    spec, keys = tmp_path / "spec.yaml", made.keys("b")
    spec.write_text(import_config(str(CONFIG)).text)
    assert key in keys
    file = made.write(tmp_path / "x.gguf", tensors["b"], {**keys, key: value})
    assert main(["validate", str(spec), "--checkpoint", str(file)]) == 1
    said = capsys.readouterr().out
    assert said.count("DSV771") == 2 and f"{path}: " in said, said  # the finding, and the way to its page
    assert main(["compile", str(spec), "-o", str(tmp_path / "plan")]) == 0
    assert main(["run", str(tmp_path / "plan"), "--checkpoint", str(file), "--ids", "1,2", "-n", "1"]) == 1
    assert "DSV771" in capsys.readouterr().err


@pytest.mark.parametrize("family", made.FAMILIES)
def test_every_family_tells_the_model_of_the_config(family, tensors, tmp_path):
    (tmp_path / "spec.yaml").write_text(import_config(str(CONFIG)).text)
    file = made.write(tmp_path / "x.gguf", tensors[family], made.keys(family))
    assert other_model(load(str(tmp_path / "spec.yaml")).spec, read_checkpoint(file)) == ()
