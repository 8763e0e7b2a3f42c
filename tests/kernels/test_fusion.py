"""Fused kinds: wiring that hangs together, signatures that follow from it, and composed kernels that are their ops."""

import subprocess
import sys

import pytest
import torch

from dsv41c.kernels.catalog import CARRIERS, FAMILIES, OPS
from dsv41c.kernels.fusion import ARCHITECTURES, CALLS, FUSED, NATIVE, NATIVE_VARIANT
from dsv41c.kernels.reference import embed, mix, norm
from dsv41c.kernels.reference.encodings import Stacked, dense, encode_fp4_32, encode_fp8_32x32
from dsv41c.kernels.reference.linear import linear
from dsv41c.kernels.reference.moe import experts, experts_static, route
from dsv41c.kernels.reference.output import output
from dsv41c.kernels.registry import kernels_for
from dsv41c.kernels.step import Step

HERE = Step(torch.tensor([0]), torch.tensor([0]), 8)


@pytest.mark.parametrize("kind", FUSED.values(), ids=FUSED)
def test_wiring_covers_every_required_port_from_what_is_there(kind):
    assert len(set(kind.covers)) == len(kind.covers)
    for place, op in enumerate(kind.covers):
        for port in OPS[op].reads:
            source, name = kind.wires.get((op, port.name), ("", ""))
            assert port.optional or name, f"{op}.{port.name} is fed by nothing"
            if source:
                assert source in kind.covers[:place]
                assert name in [write.name for write in OPS[source].writes]
    assert {op for op, _ in kind.wires} <= set(kind.covers)
    for op, port in kind.leaves.values():
        assert port in [write.name for write in OPS[op].writes]
        assert op in kind.covers


@pytest.mark.parametrize("kind", FUSED.values(), ids=FUSED)
def test_ports_that_one_read_feeds_are_of_one_kind(kind):
    for read in kind.signature.reads:
        fed = [port for op, name in kind.feeds(read.name) for port in OPS[op].reads if port.name == name]
        assert {port.kind for port in fed} == {read.kind}
        assert len({port.optional for port in fed}) == 1


def test_signatures():
    def names(ports):
        return " ".join(port.name + "?" * port.optional for port in ports)

    shown = {name: (names(kind.signature.reads), names(kind.signature.writes)) for name, kind in FUSED.items()}
    assert shown == {
        "attention_input": ("streams pre", "pre post comb normed query query_latent window_rows"),
        "attention_output": (
            "query window_kv window_rows compress_kv? topk? streams post comb",
            "window_kv streams",
        ),
        "attention_output_shard": (
            "query window_kv window_rows compress_kv? topk? streams post comb",
            "window_kv streams",
        ),
        "ffn": ("streams pre", "pre streams"),
        "ffn_shard": ("streams pre", "pre streams"),
        "index_candidates": ("index_query index_weight index_k", "candidates topk"),
        "index_select": ("index_query index_weight index_k candidates?", "topk"),
        "logits": ("streams pre", "logits"),
    }
    entry = FUSED["attention_input"].signature
    assert entry.weights[:5] == ("mix_fn", "mix_scale", "mix_base", "norm_weight", "query_rope")
    assert entry.attrs[:5] == ("mix_iterations", "mix_eps", "mix_norm_eps", "norm_eps", "query_heads")
    assert FUSED["logits"].signature.weights == ("norm_weight", "head_head")
    assert FUSED["ffn"].signature.optional_attrs == ()
    assert FUSED["attention_output_shard"].signature.optional_attrs == ("output_shards",)


def test_calls_are_ops_and_fused_kinds_and_native_ones_are_calls():
    assert set(CALLS) == {*OPS, *FUSED} - CARRIERS.keys()
    assert set(NATIVE) == set(FAMILIES)
    for family, kinds in NATIVE.items():
        assert set(kinds) <= set(CALLS)
        assert bool(kinds) == (family in NATIVE_VARIANT) == (family in ARCHITECTURES)


@pytest.mark.parametrize("variant", ["reference", "static"])
def test_every_family_composes_every_fused_kind(variant):
    for family in FAMILIES:
        for name in FUSED:
            assert callable(getattr(kernels_for(family, variant), name))


def test_a_composed_kernel_is_its_ops():
    torch.manual_seed(0)
    streams, pre = torch.randn(1, 3, 2, 8).bfloat16(), torch.rand(1, 3, 2)
    weight, table = torch.rand(8), torch.randn(5, 8)
    logits = kernels_for("cpu").logits(HERE, streams, pre, weight, table, norm_eps=1e-6)
    want = embed.head(norm.norm(mix.collapse(streams, pre), weight, eps=1e-6), table)
    assert torch.equal(logits, want)


def test_a_composed_kernel_refuses_other_arguments():
    logits = kernels_for("cpu").logits
    with pytest.raises(TypeError, match="takes 4 arguments behind `step`: streams, pre, norm_weight, head_head"):
        logits(HERE, 1, 2, 3, norm_eps=1e-6)
    with pytest.raises(TypeError, match="does not take these keywords: eps"):
        logits(HERE, 1, 2, 3, 4, eps=1e-6)


def test_packed_and_bf16_weights_give_what_dense_ones_give():
    torch.manual_seed(1)
    x = torch.randn(1, 3, 64).bfloat16()
    packed = encode_fp8_32x32(torch.randn(40, 64))
    whole = dense(packed, torch.bfloat16)
    assert torch.equal(linear(x, packed), linear(x, whole))
    wo_b = encode_fp8_32x32(torch.randn(16, 40))
    heads = x.reshape(1, 3, 2, 32)
    grouped = encode_fp8_32x32(torch.randn(40, 32))
    want = output(heads, dense(grouped, x.dtype), dense(wo_b, x.dtype), groups=2, activation_quant="none")
    assert torch.equal(output(heads, grouped, wo_b, groups=2, activation_quant="none"), want)
    gate = torch.randn(6, 64).bfloat16()
    assert torch.equal(embed.head(x, gate), embed.head(x, gate.float()))
    options = {"active": 2, "score_func": "sqrtsoftplus", "gate_temp": 1.0, "route_scale": 1.0}
    for one, other in zip(
        route(x, gate, torch.zeros(6), **options), route(x, gate.float(), torch.zeros(6), **options), strict=True
    ):
        assert torch.equal(one, other)


def test_stacked_experts_are_a_sequence_of_packed_ones():
    torch.manual_seed(2)
    parts = [[encode_fp4_32(torch.randn(64, 64)) for _ in range(4)] for _ in range(3)]
    stacks = [Stacked(torch.stack([p.codes for p in part]), torch.stack([p.scale for p in part])) for part in parts]
    assert len(stacks[0]) == 4
    assert stacks[0][-1].codes.data_ptr() == stacks[0].codes[3].data_ptr()
    assert [item.encoding for item in stacks[0][1:3]] == ["fp4_32"] * 2
    assert len(list(stacks[0])) == 4
    x, ids = torch.randn(1, 3, 64).bfloat16(), torch.tensor([[[0, 3], [1, 0], [2, 3]]])
    weights = torch.rand(1, 3, 2)
    for kernel in (experts, experts_static):
        one = kernel(x, weights, ids, *stacks, limit=1.0, activation_quant="none")
        assert torch.equal(one, kernel(x, weights, ids, *parts, limit=1.0, activation_quant="none"))


def test_the_registry_imports_no_triton_and_fusion_no_torch():
    code = "import sys, dsv41c.kernels.registry; assert 'triton' not in sys.modules, 'triton'"
    subprocess.run([sys.executable, "-c", code], check=True)
    code = "import sys, dsv41c.kernels.fusion; assert 'torch' not in sys.modules, 'torch'"
    subprocess.run([sys.executable, "-c", code], check=True)
