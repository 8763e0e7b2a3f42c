"""Binding: the right values, in the right dtype, without loss, without loading files whole."""

import os
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file

from dsv41c.diagnostics import UserFault
from dsv41c.kernels.reference.encodings import Packed, dense
from dsv41c.runtime.weights.bind import bind
from dsv41c.runtime.weights.headers import read_checkpoint

WO_B, SCALE = "layers.0.attn.wo_b.weight", "layers.0.attn.wo_b.scale"
EXPERT = "layers.0.ffn.experts.3.w2"
TABLE = "layers.1.engram.embed"
# E2M1 by its definition: sign, two bits of exponent, one of fraction.
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Small tensors; more threads only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def golden(tiny_folder):
    files = sorted(tiny_folder.glob("*.safetensors"))
    return {name: tensor for file in files for name, tensor in load_file(file).items()}


@pytest.fixture
def bound(plans, tiny_folder, changed):
    def make(changes=None, compute="f32", rename=lambda name: name):
        return bind(plans.tiny(tiny_folder, compute), changed(changes or {}, rename))

    return make


def by_block(golden, weight, scale):
    values, scales = golden[weight].float(), golden[scale].float()
    rows, columns = values.shape
    spread = scales.repeat_interleave(32, 0)[:rows].repeat_interleave(32, 1)[:, :columns]
    return values * spread


def raw(tensor):
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


def fault(make, *args, **kwargs):
    with pytest.raises(UserFault) as caught:
        make(*args, **kwargs)
    (diagnostic,) = caught.value.diagnostics
    return diagnostic


def test_values_of_every_kind(bound, golden):
    weights = bound()
    assert torch.equal(weights["layers.0.wo_b"], by_block(golden, WO_B, SCALE))
    assert torch.equal(weights["embed"], golden["embed.weight"].float())
    assert torch.equal(weights["layers.0.hc_attn_fn"], golden["layers.0.hc_attn_fn"])
    codes = golden[EXPERT + ".weight"].view(torch.uint8).int()
    values = E2M1[torch.stack([codes & 15, codes >> 4], -1).flatten(1)]
    values = values * golden[EXPERT + ".scale"].float().repeat_interleave(32, 1)
    expert = weights["layers.0.experts_w2"][3]
    assert isinstance(expert, Packed) and torch.equal(dense(expert, torch.float32), values)
    assert len(weights["layers.0.experts_w2"]) == 8


def test_bf16_compute(bound, golden):
    weights = bound(compute="bf16")
    assert weights["layers.0.wo_b"].dtype == torch.bfloat16
    assert torch.equal(weights["layers.0.wo_b"].float(), by_block(golden, WO_B, SCALE))
    assert weights["head"].dtype == weights["layers.0.attn_norm"].dtype == torch.float32
    assert weights["embed"].dtype == torch.bfloat16


def test_table_rows(bound, golden):
    table = bound()["layers.1.engram_table"]
    ids = torch.tensor([[0, 461, 7], [7, 7, 100]])
    rows = table.rows(ids)
    whole = golden[TABLE + ".weight"].float() * golden[TABLE + ".scale"].float().repeat_interleave(32, 1)
    assert torch.equal(rows, whole[ids]) and rows.shape == (2, 3, 32)
    assert torch.equal(rows.bfloat16().float(), rows)


@pytest.mark.parametrize("suffix", [".scale", ".weight_scale", ".weight_scale_inv"])
@pytest.mark.parametrize("dtype", ["F8_E8M0", "U8"])
def test_spellings_of_scales_are_equal(bound, golden, tiny_data, suffix, dtype):
    _, shape, data = tiny_data[SCALE]
    renamed = SCALE.removesuffix(".scale") + suffix
    weights = bound({SCALE: None, renamed: (dtype, shape, data)})
    assert torch.equal(weights["layers.0.wo_b"], by_block(golden, WO_B, SCALE))


@pytest.mark.parametrize("dtype", ["I8", "U8", "F4"])
def test_packed_dtypes_are_equal(bound, tiny_data, dtype):
    _, (rows, columns), data = tiny_data[EXPERT + ".weight"]
    shape = [rows, columns * 2] if dtype == "F4" else [rows, columns]
    expert = bound({EXPERT + ".weight": (dtype, shape, data)})["layers.0.experts_w2"][3]
    assert torch.equal(dense(expert, torch.float32), dense(bound()["layers.0.experts_w2"][3], torch.float32))


@pytest.mark.parametrize("prefix", ["model.", "language_model.", "language_model.model."])
def test_prefixes_are_equal(bound, prefix):
    plain, wrapped = bound(), bound(rename=lambda name: prefix + name)
    assert torch.equal(plain["layers.0.wo_b"], wrapped["layers.0.wo_b"])


def test_misaligned_data(plans, tiny_folder, tiny_data, tmp_path, golden):
    """A byte in front shifts all that follows; the format promises no alignment."""
    plans.write(tmp_path / "x.safetensors", {"vision.odd": ("U8", [1], b"\0"), **tiny_data})
    weights = bind(plans.tiny(tiny_folder), tmp_path)
    assert torch.equal(weights["layers.0.hc_attn_fn"], golden["layers.0.hc_attn_fn"])


def test_reexported_floats(bound, golden):
    """A dequantised checkpoint gives the same values, in F32 and BF16, packed experts and tables included."""
    whole = by_block(golden, WO_B, SCALE)
    expert = dense(bound()["layers.0.experts_w2"][3], torch.float32)
    table = bound()["layers.1.engram_table"].rows(torch.arange(462))
    for name, dtype in (("F32", torch.float32), ("BF16", torch.bfloat16)):
        changes = {SCALE: None, EXPERT + ".scale": None, TABLE + ".scale": None}
        for key, values in ((WO_B, whole), (EXPERT + ".weight", expert), (TABLE + ".weight", table)):
            changes[key] = (name, list(values.shape), raw(values.to(dtype)))
        for compute in ("f32", "bf16"):
            weights = bound(changes, compute)
            assert torch.equal(weights["layers.0.wo_b"].float(), whole)
            assert torch.equal(dense(weights["layers.0.experts_w2"][3], torch.float32), expert)
            assert torch.equal(weights["layers.1.engram_table"].rows(torch.arange(462)), table)


def test_rounding_is_refused(bound, golden):
    values = by_block(golden, WO_B, SCALE)
    values[5, 6] = 1 + 2**-20
    changes = {WO_B: ("F32", [128, 64], raw(values)), SCALE: None}
    assert torch.equal(bound(changes)["layers.0.wo_b"], values)
    diagnostic = fault(bound, changes, "bf16")
    assert diagnostic.code == "DSV731" and "[5, 6]" in diagnostic.message


def _poke(tiny_data, name, at, byte):
    dtype, shape, data = tiny_data[name]
    return {name: (dtype, shape, data[:at] + bytes([byte]) + data[at + 1 :])}


@pytest.mark.parametrize(
    ("name", "byte", "element"),
    [(WO_B, 0x7F, "[1, 2]"), (WO_B, 0xFF, "[1, 2]"), (SCALE, 255, "[1, 0]"), (EXPERT + ".scale", 255, "[1, 0]")],
)
def test_codes_that_are_no_number(bound, tiny_data, name, byte, element):
    shape = tiny_data[name][1]
    at = shape[1] + (2 if element == "[1, 2]" else 0)
    diagnostic = fault(bound, _poke(tiny_data, name, at, byte))
    assert diagnostic.code == "DSV730" and f"`{name}` element {element}" in diagnostic.message


def test_scale_beyond_any_float(bound, tiny_data):
    assert fault(bound, _poke(tiny_data, SCALE, 0, 254)).code == "DSV730"


def test_nan_in_plain_floats(bound, tiny_data):
    dtype, shape, data = tiny_data["norm.weight"]
    diagnostic = fault(bound, {"norm.weight": (dtype, shape, b"\xff\xff" + data[2:])})
    assert diagnostic.code == "DSV730" and "element [0]" in diagnostic.message


def test_nan_in_a_table_is_found_when_its_row_is_read(bound, tiny_data):
    table = bound(_poke(tiny_data, TABLE + ".weight", 32 * 9 + 4, 0x7F))["layers.1.engram_table"]
    table.rows(torch.tensor([8, 10]))
    diagnostic = fault(table.rows, torch.tensor([[8, 9]]))
    assert diagnostic.code == "DSV730" and "row 9" in diagnostic.message


def test_nan_in_experts_is_found_at_use_when_there_are_too_many(bound, tiny_data, monkeypatch):
    monkeypatch.setattr("dsv41c.runtime.weights.bind.EAGER_BYTES", 0)
    experts = bound(_poke(tiny_data, EXPERT + ".scale", 0, 255))["layers.0.experts_w2"]
    assert experts[2] is experts[2]
    assert fault(lambda: experts[3]).code == "DSV730"


def test_findings_come_before_anything_is_mapped(bound, tiny_data, monkeypatch):
    monkeypatch.setattr("dsv41c.runtime.weights.bind.MappedFiles", None)
    assert fault(bound, {SCALE: None}).code == "DSV724"


def test_file_that_shrinks_after_its_header_was_read(plans, tiny_folder, changed):
    path = changed({})
    checkpoint = read_checkpoint(path)
    os.truncate(path, os.path.getsize(path) - 1)
    assert fault(bind, plans.tiny(tiny_folder), checkpoint).code == "DSV732"


BIG_TABLE = """
import resource, sys, torch
sys.path.insert(0, {tests!r})
import hand_made as plans
from dsv41c.runtime.weights.bind import bind
symbols = {{"engram_rows": {rows}, "engram_head_dim": 256}}
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
table = bind(plans.manifest([plans.entry("engram_table", symbols, 1)]), {path!r})["layers.1.engram_table"]
rows = table.rows(torch.randint(0, {rows}, (1000,)))
assert rows.shape == (1000, 256) and not rows.any()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_a_table_of_gigabytes_is_not_loaded(plans, tmp_path):
    """4 GiB of rows, a file without blocks: 1,000 rows cost megabytes."""
    rows = 1 << 24
    tensors = {
        "layers.1.engram.embed.weight": ("F8_E4M3", [rows, 256], rows * 256),
        "layers.1.engram.embed.scale": ("F8_E8M0", [rows, 8], rows * 8),
    }
    head = plans.header(tensors)
    (tmp_path / "x.safetensors").write_bytes(head)
    os.truncate(tmp_path / "x.safetensors", len(head) + rows * 264)
    script = BIG_TABLE.format(tests=os.path.dirname(plans.__file__), rows=rows, path=str(tmp_path))
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert int(run.stdout) < 150_000  # KiB
