"""Fusion: which calls a plan makes, where it makes them, and what stays unfused because it is wired otherwise."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv41c.compiler import passes
from dsv41c.compiler.build import build
from dsv41c.compiler.ir import Op, Value
from dsv41c.compiler.passes import Program
from dsv41c.compiler.passes.fuse import RULES, fuse
from dsv41c.compiler.plan import compile_spec
from dsv41c.compiler.plan.diff import diff
from dsv41c.compiler.spec import Loaded, load
from dsv41c.kernels.catalog import FAMILIES
from dsv41c.kernels.fusion import FUSED, NATIVE
from dsv41c.runtime.manifest_text import parse
from dsv41c.runtime.plan_code import check_module

from ..strategies import loaded as of_data  # noqa: TID252 (tests are no installed package)
from ..strategies import specs  # noqa: TID252

SELECTION = ["index_query", "index_select"]


def program(loaded: Loaded) -> Program:
    assert loaded.spec is not None, loaded.diagnostics
    return passes.run(Program(loaded.spec, loaded.spans, build(loaded.spec, loaded.spans)), verify=True)


def kinds(found: Program, region: str) -> list[str]:
    return [call.op.kind for entry in found.regions if entry.id == region for call in entry.calls]


FLASH = program(load("deepseek-v4.1-flash", target="cuda"))


@pytest.mark.parametrize(
    ("region", "between"),
    [
        ("layers.0", []),
        ("layers.3", []),
        ("layers.8", ["compress", "index_keys", *SELECTION]),
        ("layers.20", ["compress", "index_keys", "index_query", "index_candidates"]),
        ("layers.24", SELECTION),
    ],
)
def test_layers_of_the_released_model(region: str, between: list[str]) -> None:
    assert kinds(FLASH, region) == ["attention_input", *between, "attention_output", "ffn"]


def test_the_other_regions_of_the_released_model() -> None:
    assert kinds(FLASH, "embed") == ["embed", "engram_ids"]
    assert kinds(FLASH, "layers.14")[:3] == ["engram_rows", "engram_gate", "attention_input"]
    assert kinds(FLASH, "head") == ["logits"]
    assert sum(len(region.calls) for region in FLASH.regions) < len(FLASH.graph.ops) / 4


def test_every_rule_is_of_a_kind_with_a_native_kernel() -> None:
    assert set(RULES) <= set(FAMILIES)
    for family, rules in RULES.items():
        assert {rule.kind for rule in rules} == set(FUSED) <= set(NATIVE[family])
        assert all(rule.main in FUSED[rule.kind].covers for rule in rules)


@pytest.mark.parametrize(
    ("target", "sets"),
    [
        ("cpu", ()),
        ("hpu8", ()),
        ("cuda", ("numerics.compute=f32",)),
        ("cuda", ("numerics.activation_quant=fp8",)),
        ("cuda", ("weights.experts=bf16",)),
        ("cuda", ("weights.linear=bf16",)),
    ],
)
def test_what_native_kernels_do_not_take_stays_unfused(target: str, sets: tuple[str, ...]) -> None:
    plan = compile_spec(load("deepseek-v4.1-flash", target=target, sets=sets))
    assert not any(region.calls for region in plan.manifest.regions)
    assert all(kernel.kernel.startswith("reference.") for kernel in plan.manifest.kernels)
    assert "## Kernels" not in plan.files["README.md"]


@pytest.mark.parametrize("target", ["cuda", "rocm8"])
def test_manifest_and_readme_say_which_kernel_serves_which_ops(target: str) -> None:
    plan = compile_spec(load("deepseek-v4.1-flash", target=target))
    served = {kernel.kernel: kernel.ops for kernel in plan.manifest.kernels}
    assert sorted(op for ops in served.values() for op in ops) == sorted(
        op.id for op in plan.manifest.ops if op.kind not in ("transfer", "mirror")
    )
    assert served["triton.logits"] == ["final.collapse", "final.norm", "head"]
    assert len(served["triton.ffn"]) == 40 * 7
    assert "| `triton.compress` | compress | layers 2, 8, 14, 20 |" in plan.files["README.md"]


def test_plans_of_one_spec_differ_in_kernels_and_weights() -> None:
    lines = diff(*(compile_spec(load("toy", target=target)).manifest for target in ("cpu", "cuda"))).lines
    assert any(line.startswith("+ kernel triton.") for line in lines)
    assert any(line.startswith("- kernel reference.") for line in lines)


# --- what is wired otherwise ------------------------------------------------------------------------------------------


def changed(op_id: str, port: str, value: str, *more: Op) -> Program:
    """The released model with one read of one op another value, and more ops in layer 3."""
    graph = FLASH.graph
    ops = [
        replace(op, reads=tuple((name, value if name == port else old) for name, old in op.reads))
        if op.id == op_id
        else op
        for op in (*graph.ops, *more)
    ]
    like = graph.values["attended@L3"]
    written = (
        *graph.written,
        *(Value(v, like.kind, like.shape, like.dtype, like.span) for o in more for v in o.write_ids),
    )
    regions = tuple(
        replace(region, ops=(*region.ops, *(op.id for op in more)) if region.id == "layers.3" else region.ops, calls=())
        for region in FLASH.regions
    )
    return fuse(replace(FLASH, graph=replace(graph, ops=tuple(ops), written=written), regions=regions))


WHOLE = ["attention_input", "attention_output", "ffn"]
SINGLE = {
    "attention_input": list(FUSED["attention_input"].covers),
    "attention_output": list(FUSED["attention_output"].covers),
    "ffn": list(FUSED["ffn"].covers),
}


@pytest.mark.parametrize(
    ("op", "port", "value", "without"),
    [
        # The pre-mix of its own sublayer instead of the carried one.
        ("layers.3.ffn.collapse", "pre", "pre@L3.ffn", "ffn"),
        ("layers.3.attn.collapse", "pre", "pre@L3.attn", "attention_input"),
        # Coefficients of another sublayer.
        ("layers.3.ffn.expand", "comb", "comb@L3.attn", "ffn"),
        # Mixed from other streams than are collapsed.
        ("layers.3.attn.mix", "streams", "streams@L1.ffn", "attention_input"),
        # The ring is read after it is written.
        ("layers.3.attn.attend", "window_kv", "window_kv@L3", "attention_output"),
        # Something that would be hidden is read by another layer.
        ("layers.4.attn.query", "x", "normed@L3.ffn", "ffn"),
        ("layers.9.attn.query", "x", "sublayer_out@L3.attn", "attention_output"),
    ],
)
def test_a_graph_wired_otherwise_stays_unfused(op: str, port: str, value: str, without: str) -> None:
    expected = [kind for part in WHOLE for kind in (SINGLE[part] if part == without else [part])]
    assert sorted(kinds(changed(op, port, value), "layers.3")) == sorted(expected)


def test_a_call_that_would_have_no_place_in_the_order_is_not_fused() -> None:
    """What the sublayer expands onto is made from the ring that the sublayer writes: attend, then that, then expand."""
    late = Op(
        "layers.3.attn.again",
        "attend",
        3,
        (("query", "query@L3"), ("window_kv", "window_kv@L3"), ("window_rows", "window_rows@L3")),
        (("attended", "again@L3"),),
        (),
        (),
        FLASH.graph.ops[0].span,
    )
    found = kinds(changed("layers.3.attn.expand", "streams", "again@L3", late), "layers.3")
    assert "attention_output" not in found and found.count("attend") == 2 and {"attention_input", "ffn"} <= set(found)


# --- random specs -----------------------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(specs(), st.sampled_from(["cuda", "rocm"]))
def test_random_specs_fuse_to_plans_that_hold_together(spec: dict[str, object], family: str) -> None:
    """Every call of the code is one of the manifest, every op is called once, every value is there when it is read."""
    text = json.dumps(spec).replace("cpu:", f"{family}:")
    found = of_data(json.loads(text))
    plan = compile_spec(found, verify=True)
    assert parse(plan.files["manifest.json"].encode(), "manifest.json") == plan.manifest
    for stage in plan.manifest.stages:
        _, functions = check_module(plan.files[stage.file])
        for function in functions:
            region = next(r for r in plan.manifest.regions if (r.stage, r.function) == (stage.index, function.name))
            assert [call.kind for call in function.calls] == [call.kind for call in region.calls] or not region.calls
            assert {op for call in region.calls for op in call.ops} <= set(region.ops)
