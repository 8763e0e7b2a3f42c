"""Cuts: lists renumbered, sources kept or named, hash constants those of the whole model; text, exit codes, files."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dsv41c.compiler.checks import check
from dsv41c.compiler.checks.view import View
from dsv41c.compiler.cut import cut
from dsv41c.compiler.engram_hash import hash_constants
from dsv41c.compiler.importing import import_config
from dsv41c.compiler.importing.hf_config import to_hf_config
from dsv41c.compiler.layer_map import SHARED_KINDS
from dsv41c.compiler.plan import compile_spec
from dsv41c.compiler.spec import Spec, load
from dsv41c.compiler.spec.write import to_yaml
from dsv41c.diagnostics import Diagnostic, UserFault

from ..strategies import loaded, specs  # noqa: TID252 (tests are no installed package)

Run = Callable[..., Any]  # of conftest.py
FLASH = "deepseek-v4.1-flash"


def again(spec: Spec) -> Spec:
    """The spec that its text gives, which has to validate."""
    back = load("-", stdin=lambda: to_yaml(spec).encode())
    assert {found.code for found in check(back)} <= {"DSV410"}, check(back)
    assert back.spec == spec
    return spec


def constants(spec: Spec) -> dict[int, Any]:
    """By the layer that it was in the first model: multipliers, primes and offsets."""
    assert spec.engram is not None
    layers = spec.layers.engram_layers
    found = hash_constants(spec.engram, layers, spec.engram.hash_layers, spec.engram.num_embeddings)
    return {
        first: (each.multipliers, each.primes, each.offsets)
        for first, each in zip(spec.engram.hash_layers or layers, found, strict=True)
    }


def refused(ref: str, layers: list[int], experts: int | None = None) -> tuple[Diagnostic, ...]:
    with pytest.raises(UserFault) as fault:
        cut(load(ref), layers, experts)
    return fault.value.diagnostics


def test_a_cut_of_the_released_model_has_its_widths() -> None:
    whole = load(FLASH).spec
    assert whole is not None and whole.engram is not None
    spec = again(cut(load(FLASH), [20, 0, 1, 2, 3, 21], 8).spec)
    assert spec.model.n_layers == 6 and spec.model.n_mtp_layers == 0 and spec.model.dim == 5120
    layers = spec.layers
    assert layers.compress_ratios == (0, 0, 2, 2, 1, 1)
    assert layers.kv_source_layers == layers.index_source_layers == (2, 4)
    assert layers.candidate_source_layer == 4 and layers.engram_layers == (1,)
    assert spec.engram is not None and spec.engram.hash_layers == (1,) and spec.engram.num_embeddings == (384006168,)
    assert spec.moe.n_routed_experts == 8 and spec.placement.layer_ends == (6,)
    manifest = compile_spec(load("-", stdin=lambda: to_yaml(spec).encode())).manifest
    shapes = {weight.id: (weight.shape, weight.count) for weight in manifest.weights}
    assert shapes["layers.4.experts_w1"] == ([2304, 5120], 8) and shapes["layers.5.gate"] == ([8, 5120], 1)


def test_hash_constants_stay_those_of_the_whole_model() -> None:
    whole = load(FLASH).spec
    assert whole is not None
    expected = constants(whole)
    spec = again(cut(load(FLASH), [2, 3, 14, 15]).spec)
    assert spec.layers.engram_layers == (2,) and spec.engram is not None and spec.engram.hash_layers == (14,)
    assert constants(spec) == {14: expected[14]}
    # And a cut of a cut: the numbers are the first model's.
    once = load("-", stdin=lambda: to_yaml(cut(load(FLASH), [1, 2, 8, 14]).spec).encode())
    twice = again(cut(once, [0, 1, 3]).spec)
    assert twice.engram is not None and twice.engram.hash_layers == (1, 14)
    assert constants(again(cut(once, [3]).spec)) == {14: expected[14]}
    assert constants(twice) == expected


def test_rows_that_belong_to_no_layer_are_a_finding() -> None:
    sets = ["layers.engram_layers=[4]", "engram.num_embeddings=[631]", "engram.hash_layers=[4]"]
    (found,) = check(load("toy", sets=sets))
    assert found.code == "DSV307"
    assert not check(load("toy", sets=[sets[0], "engram.num_embeddings=[630]", sets[2]]))
    sets[1] = f"engram.num_embeddings=[{1 << 40}]"  # beyond every prime that is looked at: refused, and soon
    assert [each.code for each in check(load("toy", sets=sets))] == ["DSV307"]


def test_a_lost_source_is_named_with_who_loses_it_and_the_nearest_cut() -> None:
    (found,) = refused(FLASH, [0, 1, *range(21, 31)])
    assert found.code == "DSV240"
    assert found.facts == (
        ("layers 21-23 read", "compress_kv@L20, topk@L20"),
        ("layers 24, 28 read", "compress_kv@L20, index_k@L20, candidates@L20"),
        ("layers 25-27, 29-30 read", "compress_kv@L20"),
    )
    assert found.help == "keep layer 20 too: --layers 0-1,20-30"
    (found,) = refused(FLASH, [25])  # its selection is of 24, which scores the keys of 20
    assert found.help == "keep layers 20, 24 too: --layers 20,24-25"


def test_other_layers_and_numbers_of_experts() -> None:
    assert [found.code for found in refused("toy", [0, 8], 9)] == ["DSV241", "DSV242"]
    assert [found.code for found in refused("toy", [], 1)] == ["DSV241", "DSV242"]


def test_stages_keep_their_devices() -> None:
    sets = ['placement.devices=["cpu:0", "cpu:1", "cpu:2"]', "placement.layer_ends=[2, 5, 8]"]
    placement = again(cut(load("toy", sets=sets), [0, 5, 6]).spec).placement
    assert placement.devices == ("cpu:0", "cpu:2") and placement.layer_ends == (1, 3)


def test_the_config_of_a_cut_gives_it_again(tmp_path: Path) -> None:
    spec = cut(load("toy"), [0, 2, 3, 4], 4).spec
    file = tmp_path / "config.json"
    file.write_text(json.dumps(to_hf_config(spec)))
    text = import_config(str(file), name=spec.name).text
    assert text is not None
    back = load("-", stdin=text.encode).spec
    assert back is not None and spec.engram is not None and spec.engram.hash_layers == (4,)
    for section in ("model", "tokens", "layers", "attention", "rope", "indexer", "mhc", "moe", "engram", "weights"):
        assert getattr(back, section) == getattr(spec, section), section


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(specs(buckets=1 << 12), st.data())
def test_a_cut_validates_or_names_a_lost_source(spec: dict[str, Any], data: st.DataObject) -> None:
    whole = loaded(spec)
    count = spec["model"]["n_layers"]
    kept = sorted(data.draw(st.sets(st.integers(0, count - 1), min_size=1)))
    flow = View.of(whole).flow
    assert whole.spec is not None and flow is not None
    reads = {(kind, layer): flow.reads[kind].get(layer) for kind in SHARED_KINDS for layer in kept}
    missing = {source for source in reads.values() if source is not None and source not in kept}
    try:
        found = cut(whole, kept)
    except UserFault as fault:
        (finding,) = fault.diagnostics
        assert finding.code == "DSV240" and missing
        said = " ".join(value for _, value in finding.facts)
        assert all(f"@L{source}" in said for source in missing)
        return
    assert not missing
    short = again(found.spec)
    after = View.of(load("-", stdin=lambda: to_yaml(short).encode())).flow
    assert after is not None
    for (kind, layer), source in reads.items():  # every layer reads of the layer that it read of before
        now = after.reads[kind].get(kept.index(layer))
        assert now == (None if source is None else kept.index(source)), (kind, layer)
    if whole.spec.engram is not None and short.engram is not None:
        assert constants(short).items() <= constants(whole.spec).items()


# --- the command ------------------------------------------------------------------------------------------------------


def test_the_spec_goes_to_stdout_or_a_file(run: Run, tmp_path: Path) -> None:
    ran = run("cut", "toy", "--layers", "0-3,5", "--experts", "4")
    assert ran.code == 0 and ran.out.startswith(
        "# Cut from toy: layers 0-3, 5 of 8, the first 4 of 8 routed experts.\n"
    )
    assert run("cut", "toy", "--layers", "0-3,5", "--experts", "4", "-o", "small.yaml").code == 0
    assert (tmp_path / "small.yaml").read_text() == ran.out
    assert run("validate", "small.yaml").code == 0
    other = run("cut", "toy", "--layers", "0", "-o", "small.yaml")
    assert other.code == 2 and "DSV154" in other.err
    told = json.loads(run("cut", "toy", "--layers", "0-3,5", "--experts", "4", "--json").out)
    assert told == {"format": "dsv41c.cut/1.0", "layers": [0, 1, 2, 3, 5], "experts": 4, "spec": ran.out}


@pytest.mark.parametrize("layers", ["", "2-0", "x", "1,,2", "-1", "1-", "0-9999999"])
def test_layers_that_are_none(run: Run, layers: str) -> None:
    ran = run("cut", "toy", f"--layers={layers}")
    assert ran.code == 2 and "--layers" in ran.err


def test_a_refused_cut_writes_nothing(run: Run, tmp_path: Path) -> None:
    ran = run("cut", "toy", "--layers", "0,3", "-o", "small.yaml")
    assert ran.code == 1 and "DSV240" in ran.err and not list(tmp_path.iterdir())
    assert run("cut", "toy", "--layers", "0", "--checkpoint", ".").code == 2
