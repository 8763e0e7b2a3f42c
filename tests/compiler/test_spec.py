"""Specs: every rule by its finding, every finding at its place; merging, overriding, writing, the schema."""

from __future__ import annotations

import copy
import json
from importlib import resources
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv41c.codes import schema, text
from dsv41c.compiler.source import parse, to_data
from dsv41c.compiler.spec import SECTIONS, load, shipped_names
from dsv41c.compiler.spec.json_schema import spec_schema, to_text
from dsv41c.compiler.spec.write import to_yaml
from dsv41c.diagnostics import Span, has_errors

from .spec_text import findings, load_text, only, place


@pytest.fixture
def toy() -> dict[str, Any]:
    """The toy spec as plain data."""
    source = resources.files("dsv41c.specs").joinpath("toy.yaml").read_text()
    return json.loads(json.dumps(to_data(parse(source, "toy").root)))


# --- shipped specs ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", shipped_names())
def test_shipped_specs_are_valid(name: str) -> None:
    loaded = load(name)
    assert loaded.diagnostics == ()
    assert loaded.spec is not None and loaded.spec.name == name
    assert set(loaded.sections) == set(SECTIONS) and loaded.invalid == frozenset()
    assert loaded.file == f"specs/{name}.yaml" and list(loaded.sources) == [loaded.file]


def test_flash_is_the_released_model() -> None:
    spec = load("deepseek-v4.1-flash").spec
    assert spec is not None and spec.engram is not None
    assert spec.layers.compress_ratios == (0,) * 2 + (2,) * 18 + (1,) * 20
    assert spec.layers.kv_source_layers == (2, 8, 14, 20)
    assert spec.layers.index_source_layers == (2, 8, 14, 20, 24, 28, 32, 36)
    assert (spec.model.norm_eps, spec.mhc.eps) == (1e-20, 1e-6)
    assert spec.engram.num_embeddings == (384006168, 384016682)


@pytest.mark.parametrize("target", shipped_names("targets"))
def test_shipped_targets_fit_flash(target: str) -> None:
    loaded = load("deepseek-v4.1-flash", target=target)
    assert loaded.diagnostics == () and loaded.spec is not None
    placement = loaded.spec.placement
    assert len(placement.devices) == len(placement.layer_ends) and placement.layer_ends[-1] == 40
    assert loaded.spans.value(("placement", "devices", 0)).file == f"specs/targets/{target}.yaml"


# --- codes ------------------------------------------------------------------------------------------------------------

EXAMPLES = [code for code in (*text.CODES, *schema.CODES) if code.bad]


@pytest.mark.parametrize("code", EXAMPLES, ids=lambda code: code.code)
def test_examples_of_codes(code: Any) -> None:
    found = findings(code.bad)
    assert [finding.code for finding in found] == [code.code]
    assert all(finding.span and finding.help for finding in found)
    assert findings(code.good) == []


def test_a_misspelt_extends_is_one_finding() -> None:
    """What was to come from the base is not missing besides."""
    finding = only("extend: toy\nindexer: {topk: 16}\n")
    assert (finding.code, finding.help) == ("DSV201", "did you mean `extends`?")


# --- shape, type, range -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "code", "message", "column"),
    [
        ("model: {dimm: 128}", "DSV201", "unknown key `dimm` in `model`", 9),
        ("model: {head_dim: 128}", "DSV201", "unknown key `head_dim` in `model`", 9),
        ("modle: {}", "DSV201", "unknown key `modle`", 1),
        ("rope: {yarn: {faktor: 2}}", "DSV201", "unknown key `faktor` in `rope.yarn`", 15),
        ("layers: {reads: {4: {tpk: 2}}}", "DSV201", "unknown key `tpk` in `layers.reads.4`", 22),
        ('model: {dim: "128"}', "DSV203", '`model.dim` is text "128", expected an integer', 14),
        ("model: {dim: true}", "DSV203", "`model.dim` is true, expected an integer", 14),
        ("model: {dim: 128.0}", "DSV203", "`model.dim` is 128.0, expected an integer", 14),
        ("model: {dim: }", "DSV203", "`model.dim` is empty, expected an integer", 14),
        ("model: [1]", "DSV203", "`model` is a list, expected a map", 8),
        ("moe: {swiglu_limit: null}", "DSV203", "`moe.swiglu_limit` is empty, expected a number", 21),
        ("layers: {kv_source_layers: 2}", "DSV203", "`layers.kv_source_layers` is 2, expected a list", 28),
        ("layers: {kv_source_layers: [2, x]}", "DSV203", '`layers.kv_source_layers[1]` is text "x", expected an', 32),
        ("layers: {reads: {x: {topk: 2}}}", "DSV203", "key `layers.reads.x` is no layer number", 18),
        ("layers: {compress_ratios: 2}", "DSV203", "`layers.compress_ratios` is 2, expected a list", 27),
        ("name: [a]", "DSV203", "`name` is a list, expected text", 7),
        ("model: {dim: 0}", "DSV204", "`model.dim` is 0, expected at least 1", 14),
        ("model: {dim: 2097152}", "DSV204", "`model.dim` is 2097152, expected at most 1048576", 14),
        ("indexer: {candidate_topk_blocks: 0}", "DSV204", "`indexer.candidate_topk_blocks` is 0, expected at", 34),
        ("moe: {n_shared_experts: 2}", "DSV204", "`moe.n_shared_experts` is 2, expected at most 1", 25),
        ("moe: {n_activated_experts: 9}", "DSV204", "`moe.n_activated_experts` is 9, expected at most `moe", 28),
        ("moe: {swiglu_limit: -1}", "DSV204", "`moe.swiglu_limit` is -1, expected at least 0", 21),
        ("attention: {rope_head_dim: 80}", "DSV204", "`attention.rope_head_dim` is 80, expected at most `att", 28),
        ("attention: {rope_head_dim: 34}", "DSV204", "`attention.rope_head_dim` is 34, expected at most `ind", 28),
        ("tokens: {eos: 512}", "DSV204", "`tokens.eos` is 512, expected less than `model.vocab_size`, 512", 15),
        ("engram: {compressed_vocab_size: 513}", "DSV204", "`engram.compressed_vocab_size` is 513, expected at", 33),
        ("engram: {num_embeddings: []}", "DSV204", "`engram.num_embeddings` has 0 entries, expected at least 1", 26),
        ("runtime: {max_context: 2048}", "DSV204", "`runtime.max_context` is 2048, expected at most `model.", 24),
        ("runtime: {prefill_chunk: 513}", "DSV204", "`runtime.prefill_chunk` is 513, expected at most `run", 26),
        ("runtime: {capture: {every: 0}}", "DSV204", "`runtime.capture.every` is 0, expected at least 1", 28),
        ("rope: {yarn: {beta_fast: 0.5}}", "DSV204", "`rope.yarn.beta_fast` is 0.5, expected at least `rope.", 26),
        ("moe: {score_func: sigmoid}", "DSV205", '`moe.score_func` is "sigmoid", expected `sqrtsoftplus`', 19),
        ("runtime: {capture: of}", "DSV205", '`runtime.capture` is "of", expected `off`, `layer`, `all`', 20),
        ("numerics: {kv_cache: fp8}", "DSV205", '`numerics.kv_cache` is "fp8", expected `none`, `reference`', 22),
        ("layers: {reads: {4: {streams: 2}}}", "DSV211", "`layers.reads.4` names a source for `streams`", 22),
        ("name: ../x", "DSV212", '`name` is "../x", which is no plain name', 7),
        ("name: 'a\n\n  b'", "DSV212", '`name` is "a\\nb"', 7),
        ("placement: {devices: [cuda]}", "DSV213", '`placement.devices[0]` is "cuda", which is no device', 23),
        ("format: 1", "DSV214", "`format` is 1, expected `dsv41c.spec/1`", 9),
        ("attention: {o_groups: 3}", "DSV215", "`attention.n_heads` 4 does not divide by", 23),
        ("attention: {rope_head_dim: 15}", "DSV215", "`attention.rope_head_dim` 15 is odd", 28),
        ("model: {dim: 100}", "DSV215", "`model.dim` 100 is not a multiple of 32", 14),
        ("attention: {q_lora_rank: 100}", "DSV215", "`attention.q_lora_rank` 100 is not a multiple of 32", 26),
        ("attention: {head_dim: 80}", "DSV215", "`attention.head_dim` 80 is not a multiple of 32", 23),
        ("attention: {o_lora_rank: 24}", "DSV215", "the input of wo_b, o_groups times o_lora_rank, is 48", 26),
        ("moe: {inter_dim: 72}", "DSV215", "`moe.inter_dim` 72 is not a multiple of 32", 18),
        ("indexer: {head_dim: 40}", "DSV215", "`indexer.head_dim` 40 is not a multiple of 32", 21),
        ("engram: {head_dim: 16}", "DSV215", "`engram.head_dim` 16 is not a multiple of 32", 20),
    ],
)
def test_one_fault_gives_one_finding(source: str, code: str, message: str, column: int) -> None:
    finding = only(f"extends: toy\n{source}\n")
    assert finding.code == code
    assert finding.message.startswith(message)
    assert place(finding) == ("<stdin>", 2, column)
    assert finding.facts


def test_suggestions() -> None:
    assert only("extends: toy\nlayers: {kv_sources_layer: [2]}").help == "did you mean `kv_source_layers`?"
    assert only("extends: toy\nmodel: {head_dim: 2}").help == "`head_dim` belongs in `attention`"
    assert only("extends: toy\nattension: {}").help == "did you mean `attention`?"
    assert only("extends: toy\nnumerics: {compute: bf61}").help == "did you mean `bf16`?"


def test_widths_are_free_where_nothing_shares_a_scale() -> None:
    plain = "weights: {linear: bf16, experts: bf16, engram: bf16}\nnumerics: {kv_cache: none}\n"
    widths = "model: {dim: 100}\nattention: {q_lora_rank: 20, head_dim: 24}\nindexer: {head_dim: 18}\n"
    assert findings(f"extends: toy\n{plain}{widths}moe: {{inter_dim: 7}}\nengram: {{head_dim: 5}}") == []
    # Rounded activations share scales whatever the weights are; the window and the indexer do not care.
    found = findings(f"extends: toy\n{plain}{widths}", sets=["numerics.activation_quant=fp8"])
    assert [finding.message.split()[0] for finding in found] == ["`model.dim`", "`attention.q_lora_rank`"]


def test_a_misspelt_key_is_not_missing_too(toy: dict[str, Any]) -> None:
    toy["layers"]["kv_sources_layer"] = toy["layers"].pop("kv_source_layers")
    toy["atention"] = toy.pop("attention")
    assert [finding.code for finding in findings(json.dumps(toy, indent=1))] == ["DSV201", "DSV201"]


@pytest.mark.parametrize(("section", "key"), [(s, k) for s in SECTIONS for k in SECTIONS[s].model_fields])
def test_every_required_key_is_missed_by_name(section: str, key: str) -> None:
    source = resources.files("dsv41c.specs").joinpath("toy.yaml").read_text()
    spec = json.loads(json.dumps(to_data(parse(source, "toy").root)))
    if key not in spec[section]:
        return
    del spec[section][key]
    found = findings(json.dumps(spec, indent=1))
    optional = section in ("numerics", "placement", "runtime") or key in ("candidate_source_layer", "engram_layers")
    if optional or (section, key) == ("engram", "storage"):
        assert found == []
    else:
        assert [finding.code for finding in found] == ["DSV202"]
        assert found[0].message == f"`{section}` has no `{key}`"


def test_all_findings_in_one_run() -> None:
    source = "extends: toy\nmodel: {dim: x, dimm: 2}\nlayers: {compress_ratios: [1]}\nmoe: {inter_dim: 0}\nfoo: 1\n"
    codes = [(finding.code, place(finding)[1]) for finding in findings(source)]
    assert codes == [("DSV203", 2), ("DSV201", 2), ("DSV208", 3), ("DSV204", 4), ("DSV201", 5)]


def test_valid_sections_are_there_beside_invalid_ones() -> None:
    loaded = load_text("extends: toy\nmoe: {inter_dim: 0}\nengram: null\n")
    assert loaded.spec is None and loaded.invalid == {"moe"}
    assert set(loaded.sections) == set(SECTIONS) - {"moe", "engram"}


def test_rules_between_values_leave_the_spec() -> None:
    loaded = load_text("extends: toy\nattention: {o_groups: 3}")
    assert loaded.spec is not None and has_errors(loaded.diagnostics)


# --- ratios -----------------------------------------------------------------------------------------------------------

FLASH = [0] * 2 + [2] * 18 + [1] * 20


@pytest.mark.parametrize("ratios", [FLASH, [*FLASH, 0, 0, 0]])
def test_ratio_lists_of_both_lengths(ratios: list[int]) -> None:
    loaded = load_text(f"extends: deepseek-v4.1-flash\nlayers: {{compress_ratios: {ratios}}}")
    assert loaded.diagnostics == () and loaded.spec is not None
    assert loaded.spec.layers.compress_ratios == tuple(FLASH)


@pytest.mark.parametrize("length", [39, 41, 42, 44])
def test_other_ratio_lengths_are_never_padded(length: int) -> None:
    ratios = [*FLASH, 0, 0, 0, 0][:length]
    finding = only(f"extends: deepseek-v4.1-flash\nlayers: {{compress_ratios: {ratios}}}")
    rule = "40 backbone + 3 MTP = 43 (or 40 without MTP)"
    assert (finding.code, finding.message) == ("DSV208", f"compress_ratios has {length} entries; {rule}")


def test_draft_ratios_are_zero() -> None:
    finding = only(f"extends: deepseek-v4.1-flash\nlayers: {{compress_ratios: {[*FLASH, 0, 0, 1]}}}")
    assert finding.code == "DSV209" and finding.message.startswith("compress_ratios[42] is 1, expected 0")


@pytest.mark.parametrize(
    ("ranges", "code", "message"),
    [
        ("{0-1: 0, 2-4: 2, 5-8: 1}", "DSV210", "range `5-8` goes beyond the last layer, 7"),
        ("{0-1: 0, 1-4: 2, 5-7: 1}", "DSV210", "range `1-4` gives layer 1 a second ratio"),
        ("{0-1: 0, 3: 2, 4-7: 1}", "DSV210", "no ratio for layer 2, before range `3`"),
        ("{2-4: 2, 5-7: 1}", "DSV210", "no ratio for layers 0 to 1, before range `2-4`"),
        ("{0-1: 0, 4-2: 2, 5-7: 1}", "DSV210", "range `4-2` runs backwards"),
        ("{0-1: 0, two: 2}", "DSV210", "`two` is not a range of layers"),
        ("{0-1: 0, 2-99999999999: 2}", "DSV210", "`2-99999999999` is not a range of layers"),
        ("{0-1: 0, 2-6: 2}", "DSV208", "compress_ratios has 7 entries; the backbone has 8 layers"),
        ("{}", "DSV208", "compress_ratios has 0 entries; the backbone has 8 layers"),
        ("{0-7: x}", "DSV203", '`layers.compress_ratios[0]` is text "x", expected an integer'),
        ("{0-7: -1}", "DSV204", "`layers.compress_ratios[0]` is -1, expected at least 0"),
    ],
)
def test_compact_ratio_maps(ranges: str, code: str, message: str) -> None:
    found = findings(f"extends: toy\nlayers: {{compress_ratios: {ranges}}}")
    assert (found[0].code, found[0].message) == (code, message)


def test_a_layers_span_is_its_entry_of_the_compact_map() -> None:
    spans = load_text("extends: toy\nlayers: {compress_ratios: {5-7: 1, 0-1: 0, 2-4: 2}}").spans
    assert spans.value(("layers", "compress_ratios", 3)) == Span("<stdin>", 2, 44, 2, 50)
    assert spans.value(("layers", "compress_ratios", 7)) == Span("<stdin>", 2, 28, 2, 34)


def test_ratios_are_judged_even_where_model_has_other_faults() -> None:
    found = findings("extends: toy\nmodel: {dim: x}\nlayers: {compress_ratios: [0]}")
    assert [finding.code for finding in found] == ["DSV203", "DSV208"]


# --- normal form ------------------------------------------------------------------------------------------------------


def test_absent_parts() -> None:
    for word in ("null", "-1"):
        spec = load_text(f"extends: toy\nlayers: {{candidate_source_layer: {word}}}").spec
        assert spec is not None and spec.layers.candidate_source_layer is None
    spec = load_text("extends: toy\nengram: null\nlayers: {engram_layers: null, reads: null}").spec
    assert spec is not None and spec.engram is None
    assert spec.layers.engram_layers == () and spec.layers.reads == {}


def test_defaults(toy: dict[str, Any]) -> None:
    for name in ("numerics", "placement", "runtime"):
        toy.pop(name)
    loaded = load_text(json.dumps(toy))
    assert loaded.diagnostics == () and loaded.spec is not None
    spec = loaded.spec
    assert spec.numerics.model_dump() == {"compute": "bf16", "activation_quant": "none", "kv_cache": "reference"}
    assert (spec.placement.devices, spec.placement.layer_ends) == (("cpu:0",), (8,))
    assert spec.runtime.max_context == 1024 and spec.runtime.prefill_chunk == 512
    assert spec.runtime.decode_buckets == (1, 2, 4) and spec.runtime.capture_text == "layer"


def test_dependent_defaults() -> None:
    spec = load_text("extends: toy\nruntime: null", sets=["runtime.max_context=100", "runtime.max_sessions=3"]).spec
    assert spec is not None
    assert spec.runtime.prefill_chunk == 100 and spec.runtime.decode_buckets == (1, 2, 3)
    assert only('extends: toy\nplacement: {devices: ["cpu:0", "cpu:0"]}').message == "`placement` has no `layer_ends`"


def test_capture_words() -> None:
    for word, shown in [("off", "off"), ("{every: 4}", "every:4"), ("all", "all")]:
        spec = load("toy", sets=[f"runtime.capture={word}"]).spec
        assert spec is not None and spec.runtime.capture_text == shown


def test_reads_have_layer_numbers_as_keys() -> None:
    spec = load_text("extends: toy\nlayers: {reads: {4: {compress_kv: 2, topk: 2}, 06: {topk: 5}}}").spec
    assert spec is not None and spec.layers.reads == {4: {"compress_kv": 2, "topk": 2}, 6: {"topk": 5}}
    assert only("extends: toy\nlayers: {reads: {4: {topk: 2}, 04: {topk: 2}}}").code == "DSV106"


def test_a_pre_mix_cannot_be_taken_from_the_sublayer_itself() -> None:
    finding = only("extends: toy\nlayers: {reads: {4: {pre: 4}}}")
    assert "a pre-mix taken from the sublayer itself cannot be written" in dict(finding.facts)["why"]


# --- aliases ----------------------------------------------------------------------------------------------------------


def test_aliases_give_the_same_spec_and_the_same_place() -> None:
    one, two = (
        load_text(f"extends: toy\nlayers: {{{key}: [2, 5]}}") for key in ("kv_source_layers", "kv_source_layer_ids")
    )
    assert one.spec == two.spec and two.diagnostics == ()
    assert two.spans.key(("layers", "kv_source_layers")) == Span("<stdin>", 2, 10, 2, 29)


def test_nested_aliases() -> None:
    source = "extends: toy\nrope: {rope_scaling: {original_max_position_embeddings: 128}}"
    spec = load_text(source).spec
    assert spec is not None and spec.rope.yarn.original_seq_len == 128 and spec.rope.yarn.factor == 16


def test_two_spellings() -> None:
    both = "extends: toy\nmodel: {dim: 128, hidden_size: %s}"
    note = only(both % 128)
    assert note.code == "DSV207" and note.severity == "note"
    error = only(both % 256)
    assert error.code == "DSV206" and "128 and 256" in error.message and error.labels


# --- writing, schema, hostile input -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", shipped_names())
def test_what_is_written_loads_to_the_same_spec(name: str) -> None:
    sets = ["layers.reads.4.topk=2", "runtime.capture={every: 3}", "moe.route_scale=0.1", "mhc.eps=1e-7"]
    spec = load(name, sets=sets).spec
    assert spec is not None
    loaded = load_text(to_yaml(spec))
    assert loaded.spec == spec and loaded.diagnostics == ()
    assert to_yaml(loaded.spec) == to_yaml(spec)  # type: ignore[arg-type]
    assert max(map(len, to_yaml(spec).splitlines())) <= 120


@pytest.mark.parametrize("name", ["a", "null", "true", "NaN", "Infinity", "on", "1e5", "123", "0x1F", "a-b_c.d", "-x"])
def test_names_are_written_as_text(name: str) -> None:
    spec = load("toy").spec
    assert spec is not None
    spec = spec.model_copy(update={"name": name})
    loaded = load_text(to_yaml(spec))
    assert (loaded.spec == spec) is (name != "-x")


def test_long_ratio_maps_are_wrapped() -> None:
    ratios = [0, 2] * 60
    sets = ["model.n_layers=120", f"layers.compress_ratios={ratios}", "placement.layer_ends=[120]"]
    spec = load("toy", sets=sets).spec
    assert spec is not None
    assert load_text(to_yaml(spec)).spec == spec
    assert max(map(len, to_yaml(spec).splitlines())) <= 120


def test_schema_file_is_fresh() -> None:
    shipped = resources.files("dsv41c.specs").joinpath("spec.schema.json").read_text()
    assert shipped == to_text(), "run: python -m dsv41c.compiler.spec.json_schema > specs/spec.schema.json"


def test_schema_accepts_what_the_tool_accepts(toy: dict[str, Any]) -> None:
    validator = jsonschema.Draft7Validator(spec_schema())
    validator.validate(toy)
    validator.validate({"extends": "toy", "layers": {"kv_source_layer_ids": [2, 5], "reads": {"4": {"topk": 2}}}})
    validator.validate({"extends": "toy", "engram": None, "layers": {"engram_layers": None}, "runtime": {}})
    aliased = copy.deepcopy(toy)
    aliased["model"]["hidden_size"] = aliased["model"].pop("dim")
    aliased["rope"]["rope_scaling"] = aliased["rope"].pop("yarn")
    aliased["rope"]["rope_scaling"]["rope_factor"] = aliased["rope"]["rope_scaling"].pop("factor")
    aliased["layers"]["compress_ratios"] = [0, 0, 2, 2, 2, 1, 1, 1]
    assert findings(json.dumps(aliased)) == []
    validator.validate(aliased)


def test_schema_refuses_and_describes(toy: dict[str, Any]) -> None:
    schema = spec_schema()
    validator = jsonschema.Draft7Validator(schema)
    for change in ({"dimm": 2}, {"dim": "x"}, {"dim": 0}):
        assert not validator.is_valid({"extends": "toy", "model": change})
    del toy["model"]["dim"]
    assert not validator.is_valid(toy)
    for name, definition in schema["$defs"].items():
        assert definition["description"], name
        assert all(item["description"] for item in definition["properties"].values()), name
    assert all(item["description"] for item in schema["properties"].values())
    layers = schema["$defs"]["Layers"]["properties"]
    assert layers["kv_source_layer_ids"]["title"] == layers["kv_source_layers"]["title"] == "layers.kv_source_layers"
    jsonschema.Draft7Validator.check_schema(schema)


_VALUES = st.none() | st.booleans() | st.integers(-3, 70) | st.floats(-2, 2) | st.text(max_size=5)
_ANY = st.recursive(_VALUES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner))
_PATHS = [(section, key) for section in SECTIONS for key in SECTIONS[section].model_fields]


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(_PATHS), _ANY)
def test_no_value_raises(path: tuple[str, str], value: object) -> None:
    loaded = load_text(json.dumps({"extends": "toy", path[0]: {path[1]: value}}))
    assert loaded.spec is not None or has_errors(loaded.diagnostics)
    for finding in loaded.diagnostics:
        assert finding.span and finding.help and finding.message


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=30) | st.builds("{}={}".format, st.sampled_from(["a.b", "model", "layers.reads.1"]), st.text()))
def test_no_override_raises(text: str) -> None:
    load("toy", sets=[text])


@settings(max_examples=100, deadline=None)
@given(_ANY)
def test_no_document_raises(value: object) -> None:
    load_text(json.dumps(value))
    load_text(json.dumps({name: value for name in ("layers", "model", "extends", "name", "format", "runtime")}))
