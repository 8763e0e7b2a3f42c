"""The golden checkpoint in every layout that is read: equal weights, bit by bit, and equal logits."""

import json

import pytest
import torch
from golden_tiny import ORACLE, TINY, ids, plan

from dsv41c.compiler import compile_spec, load
from dsv41c.compiler.plan import write_plan
from dsv41c.kernels.catalog import WEIGHT_ROLES
from dsv41c.kernels.reference.encodings import Packed, dense
from dsv41c.runtime.engine import Engine
from dsv41c.runtime.plan import load_plan
from dsv41c.runtime.repack import repack
from dsv41c.runtime.synth import synth
from dsv41c.runtime.weights.bind import Experts, bind
from dsv41c.runtime.weights.headers import open_checkpoint, read_checkpoint
from dsv41c.runtime.weights.match import match
from dsv41c.runtime.weights.names import SCALE_SUFFIXES
from dsv41c.runtime.weights.variants import DECLARATIONS, TRANSFORMS, VARIANTS, known, official_name, spelled

from . import other_layouts as layouts
from .test_shards import INNER, WIDTHS, split

PROMPT, STEPS = 12, 2
MXFP8 = ("linear: fp8_32x32", "linear: fp8_row32")


@pytest.fixture
def write(tmp_path, plans):
    """Write tensors as a checkpoint of one file, with declarations in its index; gives its folder."""

    def written(tensors, declared=None):
        plans.write(tmp_path / "x.safetensors", tensors)
        plans.write_index(tmp_path, {"x.safetensors": list(tensors)})
        index = tmp_path / "model.safetensors.index.json"
        index.write_text(json.dumps({**json.loads(index.read_text()), "metadata": declared or {}}))
        (tmp_path / "tokenizer.json").write_bytes((TINY / "tokenizer.json").read_bytes())
        return tmp_path

    return written


def logits(compiled, folder):
    """Logits of a prompt and of decode steps behind it."""
    engine = Engine(compiled, folder)
    session = engine.open()
    prompt = session.feed(ids()[:PROMPT])
    steps = [engine.decode({session: token})[session] for token in ids()[PROMPT : PROMPT + STEPS]]
    return [prompt, *steps]


@pytest.fixture(scope="module")
def expected():
    return logits(plan(), TINY)


def declared(order):
    return {"dsv41c.gate_up": order}


LAYOUTS = {
    "stacked": (layouts.stacked, {}),
    "stacked, named bare": (lambda d: layouts.stacked(d, endings=("", "_scale")), {}),
    "stacked, as F4": (lambda d: layouts.as_f4(layouts.stacked(d)), {}),
    "stacked, as U8": (lambda d: layouts.as_f4(layouts.stacked(d), "U8"), {}),
    "gate and up": (layouts.gate_up, {}),
    "gate and up, declared": (layouts.gate_up, declared("gate_up")),
    "up and gate": (lambda d: layouts.gate_up(d, gate="w3", up="w1"), declared("up_gate")),
    "alternating": (lambda d: layouts.gate_up(d, layouts.alternating), declared("gate_up_interleaved")),
    "alternating, up first": (
        lambda d: layouts.as_f4(layouts.gate_up(d, layouts.alternating, gate="w3", up="w1")),
        declared("up_gate_interleaved"),
    ),
    "Transformers": (layouts.transformers, {}),
    "vLLM": (layouts.vllm, {}),
    "rows of codes and scales": (layouts.rows_of_codes_and_scales, {}),
    "all at once": (
        lambda d: layouts.rows_of_codes_and_scales(layouts.gate_up(d, layouts.alternating)),
        declared("gate_up_interleaved"),
    ),
}


@pytest.mark.parametrize("case", LAYOUTS)
def test_weights_are_equal(case, write, tiny_data):
    make, said = LAYOUTS[case]
    changed = make(tiny_data)
    assert changed.keys() != tiny_data.keys()
    one, other = bind(plan().manifest, TINY), bind(plan().manifest, write(changed, said))
    assert one.keys() == other.keys()
    assert other.matching.unused_count == 10
    for name in one:
        assert same(one[name], other[name]), name


def same(one, other):
    if isinstance(one, Experts):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, Packed):
        pairs = zip(one[:2], other[:2], strict=True)
        return one.encoding == other.encoding and all(
            torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in pairs
        )
    if hasattr(one, "rows"):
        rows = torch.arange(462)
        return torch.equal(one.rows(rows), other.rows(rows))
    return torch.equal(one, other)


@pytest.mark.parametrize("case", ["Transformers", "vLLM", "all at once"])
def test_logits_are_equal(case, write, tiny_data, expected):
    make, said = LAYOUTS[case]
    found = logits(plan(), write(make(tiny_data), said))
    assert all(map(torch.equal, found, expected))


def test_mxfp8_logits_are_equal(write, tiny_data, expected):
    found = logits(plan(ORACLE, MXFP8), write(layouts.mxfp8(tiny_data)))
    assert all(map(torch.equal, found, expected))


def test_plain_experts_in_one_tensor(write, tiny_data, expected):
    """A re-export as BF16: the values are bf16 ones, so nothing is lost."""
    decoded = dict(tiny_data)
    for layer in range(10):
        for expert in range(8):
            for matrix in ("w1", "w2", "w3"):
                place = f"layers.{layer}.ffn.experts.{expert}.{matrix}."
                (_, shape, raw), (_, grid, scale) = tiny_data[place + "weight"], tiny_data[place + "scale"]
                parts = [torch.frombuffer(bytearray(each), dtype=torch.uint8) for each in (raw, scale)]
                packed = Packed(parts[0].view(shape), parts[1].view(grid), "fp4_32")
                values = dense(packed, torch.bfloat16)
                decoded[place + "weight"] = ("BF16", list(values.shape), values.view(torch.uint8).numpy().tobytes())
                decoded[place + "scale"] = ("BF16", [0], b"")
    merged = {n: t for n, t in layouts.gate_up(decoded).items() if not n.endswith("_scale_inv")}
    assert all(map(torch.equal, logits(plan(), write(merged)), expected))


@pytest.mark.parametrize("count", [WIDTHS, INNER])
def test_parts_of_shards_are_equal(count, write, tiny_data):
    """Rows that alternate with another matrix's, cut along rows and along columns."""
    merged = layouts.rows_of_codes_and_scales(layouts.gate_up(tiny_data, layouts.alternating))
    folder, manifest = write(merged, declared("gate_up_interleaved")), split(plan().manifest, count)
    for shard in range(count):
        one, other = bind(manifest, TINY, shard), bind(manifest, folder, shard)
        assert all(same(one[name], other[name]) for name in one)


def test_a_random_checkpoint_in_mxfp8_runs(tmp_path):
    """Linears and experts: written, bound, repacked with rows in turn, run."""
    found = compile_spec(load("toy", sets=("weights.linear=fp8_row32", "weights.experts=fp8_row32")))
    write_plan(found, tmp_path / "plan")
    synth(found.manifest, {}, tmp_path / "old")
    repack(found.manifest, tmp_path / "old", tmp_path / "new", experts="interleaved")
    assert open_checkpoint(tmp_path / "new").tensors["layers.0.ffn.experts.0.w1.weight"].pitch == 2 * 128
    compiled = load_plan(tmp_path / "plan")
    for old, new in zip(*(logits(compiled, tmp_path / name) for name in ("old", "new")), strict=True):
        assert torch.equal(old, new) and bool(old.isfinite().all())


def test_mxfp8_is_not_32x32_blocks(plans, tmp_path):
    """A 64 x 64 matrix of equal codes under scales 1, 2, 4, 8: by block, and by 32 columns of a row."""
    sizes = {"dim": 64, "streams": 2, "groups": 1, "o_lora_rank": 64}
    name = "layers.0.attn.wo_b."
    quarters = torch.tensor([[1, 2], [4, 8]], dtype=torch.float32)
    by_block = quarters.repeat_interleave(32, 0).repeat_interleave(32, 1)
    by_row = torch.tensor([[1, 2], [4, 8]] * 32, dtype=torch.float32).repeat_interleave(32, 1)
    codes = ("F8_E4M3", [64, 64], b"\x38" * 4096)  # all 1.0
    for stored, shape, exponents, expected in (
        ("fp8_32x32", [2, 2], b"\x7f\x80\x81\x82", by_block),
        ("fp8_row32", [64, 2], b"\x7f\x80\x81\x82" * 32, by_row),
    ):
        plans.write(tmp_path / "x.safetensors", {name + "weight": codes, name + "scale": ("F8_E8M0", shape, exponents)})
        for declared_as in ("fp8_32x32", "fp8_row32"):
            one = plans.manifest([plans.entry("wo_b", sizes, 0, stored={**plans.STORED, "linear": declared_as})])
            if declared_as == stored:
                assert torch.equal(bind(one, tmp_path)["layers.0.wo_b"], expected)
            else:
                (finding,) = match(one, read_checkpoint(tmp_path)).diagnostics
                assert finding.code == "DSV725" and f"it is that of {stored}" in finding.message
    assert not torch.equal(by_block, by_row)


def test_older_blocks_are_refused_by_name(plans, tmp_path):
    sizes = {"dim": 256, "streams": 2, "groups": 1, "o_lora_rank": 256}
    name = "layers.0.attn.wo_b."
    scale = ("F8_E8M0", [2, 2], b"\x7f" * 4)
    plans.write(
        tmp_path / "x.safetensors", {name + "weight": ("F8_E4M3", [256, 256], bytes(65536)), name + "scale": scale}
    )
    (finding,) = match(plans.manifest([plans.entry("wo_b", sizes, 0)]), read_checkpoint(tmp_path)).diagnostics
    assert finding.code == "DSV725" and "128x128 blocks" in finding.message


def judged(folder):
    return match(plan().manifest, read_checkpoint(folder)).diagnostics


def codes(findings):
    return sorted(finding.code for finding in findings)


def test_nibbles_are_declared_and_refused(write, tiny_data):
    found = judged(write(layouts.nibbles_swapped(tiny_data), {"dsv41c.nibbles": "high_first"}))
    assert set(codes(found)) == {"DSV723"} and len(found) == 3
    assert all("repack" in finding.help for finding in found)


@pytest.mark.parametrize(
    "said",
    [{"dsv41c.gate_up": "up"}, {"dsv41c.gate_up": ["gate_up"]}, {"dsv41c.gate_up": 1}, {"dsv41c.gates": "gate_up"}],
)
def test_unknown_declarations(said, write, tiny_data):
    assert codes(judged(write(tiny_data, said))) == ["DSV712"]


def test_declarations_that_contradict(tmp_path, plans):
    for number, order in enumerate(("gate_up", "up_gate")):
        sizes = {f"t{number}": ("U8", [1], 1)}
        raw = plans.header(sizes, {"dsv41c.gate_up": order, "format": "pt"})
        (tmp_path / f"{number}.safetensors").write_bytes(raw + b"\0")
    (finding,) = read_checkpoint(tmp_path).diagnostics
    assert finding.code == "DSV712" and "`gate_up` in `0.safetensors`" in finding.message


MERGED = "layers.0.mlp.experts.gate_up_proj"
INDIVISIBLE = {
    "rank": (MERGED, "U8", [8, 4], "dimensions"),
    "odd": (MERGED, "U8", [8, 3, 2], "halves"),
    "none": (MERGED, "U8", [0, 4, 4], "experts"),
    "endless": (MERGED, "U8", [1 << 40, 0, 4], "experts"),
    "nothing in a row": (MERGED, "U8", [8, 4, 0], None),
    "blocks": ("layers.0.ffn.shared_experts.gate_up_proj.weight", "F8_E4M3", [48, 32], "halves of 24 rows"),
    "half a byte": ("layers.0.ffn.experts.w1", "F4", [2, 3, 1], "do not come apart"),
    "table": ("layers.1.engram.embed.rows", "U8", [4, 32], "33 bytes"),
    "table of floats": ("layers.1.engram.embed.rows", "F32", [4, 33], "33 bytes"),
}


@pytest.mark.parametrize("case", INDIVISIBLE)
def test_indivisible(case, tmp_path, plans):
    name, dtype, shape, text = INDIVISIBLE[case]
    size = int(torch.tensor(shape, dtype=torch.float64).prod() * {"F4": 0.5, "F32": 4}.get(dtype, 1))
    plans.write(tmp_path / "x.safetensors", {name: (dtype, shape, bytes(size))})
    checkpoint = read_checkpoint(tmp_path)
    assert codes(checkpoint.diagnostics) == (["DSV711"] if text else [])
    assert not text or text in checkpoint.diagnostics[0].message
    assert not text or not checkpoint.complete or known(name).transform == "halves" or "rows" in name


def test_interleaved_blocks_are_refused(plans, tmp_path):
    """Rows of two FP8 matrices in turn under scales of 32 x 32 blocks: a scale would be of both."""
    sizes = {"dim": 64, "experts": 1, "inter_dim": 64}
    place = "layers.0.mlp.experts.gate_up_proj"
    tensors = {place: ("F8_E4M3", [1, 128, 64], bytes(8192)), place + "_scale": ("F8_E8M0", [1, 4, 2], b"\x7f" * 8)}
    raw = plans.header({n: (d, s, len(b)) for n, (d, s, b) in tensors.items()}, declared("gate_up_interleaved"))
    (tmp_path / "x.safetensors").write_bytes(raw + b"".join(data for _, _, data in tensors.values()))
    stored = {**plans.STORED, "experts": "fp8_32x32"}
    entries = [plans.entry(role, sizes, 0, stored=stored) for role in ("experts_w1", "experts_w3")]
    found = match(plans.manifest(entries), read_checkpoint(tmp_path)).diagnostics
    assert codes(found) == ["DSV723", "DSV723"] and "share a scale" in found[0].message


def test_number_of_merged_experts(write, tiny_data):
    more = {
        name: (dtype, [9, *shape[1:]], raw + raw[: len(raw) // 8])
        if ".experts." in name and len(shape) == 3
        else (dtype, shape, raw)
        for name, (dtype, shape, raw) in layouts.stacked(tiny_data).items()
    }
    (finding,) = judged(write(more))
    assert finding.code == "DSV728" and "9 experts" in finding.message


def test_a_merged_tensor_and_its_parts_together(write, tiny_data):
    both = layouts.stacked(tiny_data) | {
        name: tensor for name, tensor in tiny_data.items() if name.startswith("layers.0.ffn.experts.3.")
    }
    (finding,) = judged(write(both))
    assert finding.code == "DSV710" and "layers.0.ffn.experts.w1.weight (expert 3)" in finding.message


def test_a_fault_in_a_merged_tensor_names_the_part(write, tiny_data):
    """One scale of NaN, in the up matrix of an expert whose rows lie between the gate's."""
    changed = layouts.gate_up(tiny_data, layouts.alternating)
    name = "layers.3.mlp.experts.gate_up_proj_scale_inv"
    dtype, shape, raw = changed[name]
    at = 5 * 192 * 4 + (2 * 7 + 1) * 4 + 2  # expert 5, row 7 of up, scale 2
    assert shape == [8, 192, 4]
    folder = write(
        {**changed, name: (dtype, shape, raw[:at] + b"\xff" + raw[at + 1 :])}, declared("gate_up_interleaved")
    )
    with pytest.raises(Exception) as caught:
        bind(plan().manifest, folder)
    (finding,) = caught.value.diagnostics
    assert f"`{name} (expert 5, w3)` element [7, 2] is 255" in finding.message


def test_table_of_names_is_sound():
    """Every name stands for official tensors of the catalogue, none for two things; official ones are their own."""
    names = [name for variant in VARIANTS for name in spelled(variant.name)]
    assert len(names) == len(set(names))
    for variant in VARIANTS:
        assert variant.transform in TRANSFORMS
        assert all(role in WEIGHT_ROLES or "bias_vl" in role for role in variant.roles)
        assert (len(variant.roles) == 2) == ("halves" in variant.transform)
        for name in spelled(variant.name):
            numbered = name.replace("{layer}", "3").replace("{expert}", "7")
            officials = [official_name(role).replace("{layer}", "3") for role in variant.roles]
            found = known(numbered)
            assert found.transform == variant.transform
            assert [each.replace("{expert}", "7") for each in found.officials] == [
                each.replace("{expert}", "7") for each in officials
            ]
    for role in WEIGHT_ROLES.values():
        own = role.name.replace("{layer}", "3").replace("{expert}", "7")
        assert known(own) is None or known(own) == ((own,), "same")
        if own.endswith(".weight"):
            for suffix in SCALE_SUFFIXES:
                scale = own.removesuffix(".weight") + suffix
                assert known(scale) is None or known(scale).officials == (scale,)
    assert all(len(values) > 1 for values in DECLARATIONS.values())
