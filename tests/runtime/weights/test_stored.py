"""Weights that a plan for native kernels wants as stored: packed or bf16, and looked at as closely as decoded ones."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file

from dsv41c.compiler import compile_spec, load
from dsv41c.diagnostics import UserFault
from dsv41c.kernels.catalog import WEIGHT_ROLES
from dsv41c.kernels.fusion import STORED_ROLES, WIDE_ROLES
from dsv41c.kernels.reference.encodings import Packed, Stacked, dense
from dsv41c.runtime.device.tensors import on_device, stacked, tensors_of
from dsv41c.runtime.weights.bind import bind

WO_B, SCALE = "layers.0.attn.wo_b.weight", "layers.0.attn.wo_b.scale"


@pytest.fixture
def manifest(plans, tiny_folder):
    found = plans.tiny(tiny_folder, "bf16")
    wanted = [
        weight.model_copy(update={"dtype": "stored"}) if weight.role in STORED_ROLES else weight
        for weight in found.weights
    ]
    return found.model_copy(update={"weights": wanted})


@pytest.fixture
def bound(manifest, changed):
    return lambda changes=None: bind(manifest, changed(changes or {}))


def raw(tensor):
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


def code(bound, changes):
    with pytest.raises(UserFault) as caught:
        bound(changes)
    (finding,) = caught.value.diagnostics
    return finding.code


def test_compiled_plans_want_so_where_native_kernels_run_them():
    for target, expected in (("cuda", "stored"), ("rocm8", "stored"), ("cpu", None), ("hpu8", None)):
        weights = compile_spec(load("deepseek-v4.1-flash", target=target)).manifest.weights
        found = {weight.role: weight.dtype for weight in weights}
        assert set(STORED_ROLES) <= found.keys() <= WEIGHT_ROLES.keys()
        for role in STORED_ROLES:
            assert (found[role] == "stored") == (expected == "stored"), role
        assert found["embed"] == ("f32" if target == "cpu" else "bf16")
        assert found["attn_norm"] == found["hc_ffn_fn"] == found["gate_bias"] == found["compressor_norm"] == "f32"


def test_matrices_stay_packed_and_mean_what_is_decoded(bound, plans, tiny_folder):
    stored, decoded = bound(), bind(plans.tiny(tiny_folder, "bf16"), tiny_folder)
    for name in stored:
        if name.rpartition(".")[2] in STORED_ROLES:
            kept = stored[name]
            assert isinstance(kept, Packed) == (WEIGHT_ROLES[name.rpartition(".")[2]].stored == "linear"), name
            assert torch.equal(dense(kept, torch.bfloat16), decoded[name].bfloat16()), name
    assert stored["layers.0.wo_b"].codes.dtype == stored["layers.0.wo_b"].scale.dtype == torch.uint8
    assert stored["head"].dtype == stored["layers.0.gate"].dtype == torch.bfloat16


def test_floats_of_a_reexport_become_bf16_but_for_wide_roles(bound, tiny_folder):
    plain = {name: t for file in tiny_folder.glob("*.safetensors") for name, t in load_file(file).items()}
    values = dense(bound()["layers.0.wo_b"], torch.float32)
    head = plain["head.weight"].float() + 2**-20
    changes = {
        SCALE: None,
        WO_B: ("F32", list(values.shape), raw(values)),
        "head.weight": ("F32", list(head.shape), raw(head)),
    }
    found = bound(changes)
    assert found["layers.0.wo_b"].dtype == torch.bfloat16 and torch.equal(found["layers.0.wo_b"].float(), values)
    assert "head" in WIDE_ROLES and torch.equal(found["head"], head)
    values[3, 4] = 1 + 2**-20
    assert code(bound, changes | {WO_B: ("F32", list(values.shape), raw(values))}) == "DSV731"


@pytest.mark.parametrize(
    ("name", "byte", "expected"),
    [
        (WO_B, 0x7F, "DSV730"),
        (WO_B, 0xFF, "DSV730"),
        (SCALE, 255, "DSV730"),
        (SCALE, 254, "DSV730"),
        (SCALE, 0, "DSV731"),
    ],
)
def test_codes_that_are_no_bf16_number_are_refused(bound, tiny_data, name, byte, expected):
    dtype, shape, data = tiny_data[name]
    assert code(bound, {name: (dtype, shape, bytes([byte]) + data[1:])}) == expected


def test_a_large_scale_that_overflows_nothing_is_taken(bound, tiny_data):
    """Scales beyond what any code could bear are looked at with the codes that are there."""
    dtype, shape, data = tiny_data[SCALE]
    codes = tiny_data[WO_B]
    changes = {SCALE: (dtype, shape, bytes([247]) + data[1:]), WO_B: (*codes[:2], bytes(len(codes[2])))}
    assert isinstance(bound(changes)["layers.0.wo_b"], Packed)


def test_experts_on_a_device_are_one_piece(bound):
    experts = bound()["layers.0.experts_w2"]
    piece = stacked(experts, torch.device("cpu"))
    assert isinstance(piece, Stacked) and len(piece) == len(experts)
    for one, other in zip(piece, experts, strict=True):
        assert torch.equal(one.codes, other.codes) and torch.equal(one.scale, other.scale)
    moved = on_device({"experts": experts, "again": piece}, torch.device("meta"))
    assert all(isinstance(moved[name], Stacked) for name in moved)
    assert [tensor.device.type for tensor in tensors_of(moved.values())] == ["meta"] * 4


def test_other_experts_are_a_list(bound):
    one = bound()["layers.0.experts_w2"][0]
    plain = dense(one, torch.bfloat16)
    for experts in ([], [plain, plain], [one, plain], [one, Packed(one.codes[:1], one.scale[:1], "fp4_32")]):
        assert isinstance(on_device({"w": experts}, torch.device("meta"))["w"], list)
