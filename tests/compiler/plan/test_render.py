"""The templates, by themselves and on whole specs: what is generated can be read, parsed, and is format-clean."""

from __future__ import annotations

import ast
import dataclasses
import subprocess
import sys
from pathlib import Path

import jinja2
import jinja2.meta
import pytest

from dsv41c.compiler import passes
from dsv41c.compiler.build import build
from dsv41c.compiler.plan import code, compile_spec
from dsv41c.compiler.plan.describe import plan_model
from dsv41c.compiler.plan.model import (
    BlockModel,
    BoundaryModel,
    BufferModel,
    CollectiveModel,
    FunctionModel,
    KernelModel,
    MemoryModel,
    PlanModel,
    StageModel,
    StateModel,
    StepModel,
    TailModel,
)
from dsv41c.compiler.plan.render import environment, render
from dsv41c.compiler.spec import load
from dsv41c.diagnostics import Span
from dsv41c.runtime.manifest import identifier, weight_identifier
from dsv41c.runtime.plan_code import check_module

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "toy.plan"
FOUR = """placement: {devices: ["rocm:0", "rocm:1", "rocm:2", "rocm:3"], layer_ends: [10, 20, 30, 40]}"""

STEP = StepModel("a, b", "query", ("step", "x", "weights.rope"), "line", "  # spec.yaml:3:1")
TINY = PlanModel(
    name="tiny",
    tool="0",
    numerics="Computes",
    limits="Holds",
    capture="`runtime.capture` is off",
    devices="cpu:0",
    stages=(
        StageModel(
            file="stage_0.py",
            title="Stage 0.",
            generated=("Generated.",),
            functions=(
                FunctionModel(
                    position="spec.yaml:1:1",
                    summary="layers[0]: ratio 1",
                    name="layer_0",
                    parameters=("kernels", "weights", "step", "x"),
                    parameters_layout="hug",
                    headline="Layer 0: experts.",
                    doc=("    Reads: x.", "    Writes: a."),
                    blocks=(
                        BlockModel("query", (STEP, dataclasses.replace(STEP, layout="column", comment=""))),
                        BlockModel("again", (dataclasses.replace(STEP, layout="hug"),)),
                    ),
                    results=("a", "b"),
                    results_layout="column",
                ),
            ),
            index=0,
            device="cpu:0",
            layers="0",
            state_bytes="0 B",
            live_bytes="0 B",
        ),
    ),
    boundaries=(BoundaryModel("0 -> 1", "topk@L0", "chunk", "8", "layer 1"),),
    shards=2,
    collectives=(CollectiveModel("all_gather", "logits", "head", "16"),),
    of_each="in each process",
    states=(StateModel("topk", "selected", "0", "8 B"),),
    window=4,
    tails=(TailModel("layer 0", "the last 8"),),
    kernels=(KernelModel("triton.ffn", "mix, collapse", "layers 0-3"),),
    memory=(MemoryModel("cpu:0", "7 B", "8 B", "15 B"),),
    buffers=(BufferModel("ids", "[B, 1]", "i64", "token ids", "embed"),),
)
TINY_CODE = '''

# spec.yaml:1:1  layers[0]: ratio 1
def layer_0(
    kernels, weights, step, x
):
    """Layer 0: experts.

    Reads: x.
    Writes: a.
    """
    # query
    a, b = kernels.query(step, x, weights.rope)  # spec.yaml:3:1
    a, b = kernels.query(
        step,
        x,
        weights.rope,
    )

    # again
    a, b = kernels.query(
        step, x, weights.rope
    )  # spec.yaml:3:1

    return (
        a,
        b,
    )
'''


def test_templates_render_from_a_model_written_by_hand():
    files = render(TINY)
    assert files["stage_0.py"].endswith(TINY_CODE)
    ast.parse(files["stage_0.py"])
    assert "| 0 -> 1 | `topk@L0` | chunk | 8 | layer 1 |" in files["README.md"]


def test_a_plan_of_one_stage_says_nothing_of_boundaries():
    text = render(dataclasses.replace(TINY, boundaries=(), kernels=(), memory=(), buffers=()))["README.md"]
    assert (
        not [word for word in ("crosses", "## Kernels", "## Memory", "## Static") if word in text]
        and "\n\n\n" not in text
    )


@pytest.mark.parametrize(("template", "model"), [("plan/stage.py.j2", StageModel), ("plan/README.md.j2", PlanModel)])
def test_templates_use_only_fields_of_the_model(template, model):
    source = environment().loader.get_source(environment(), template)[0]
    used = jinja2.meta.find_undeclared_variables(environment().parse(source))
    assert used <= {field.name for field in dataclasses.fields(model)}


def test_every_template_is_rendered_here():
    names = {name for name in environment().list_templates() if name.startswith("plan/")}
    assert names == {"plan/stage.py.j2", "plan/README.md.j2", "plan/macros.j2"}


def test_an_undefined_name_is_an_error():
    with pytest.raises(jinja2.UndefinedError):
        environment().from_string("{{ nothing }}").render()


# --- whole plans ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def plans(tmp_path_factory):
    path = tmp_path_factory.mktemp("specs") / "four.yaml"
    path.write_text(f"extends: deepseek-v4.1-flash\n{FOUR}\nnumerics: {{activation_quant: fp8}}\n")
    found = {name: compile_spec(load(name)) for name in ("toy", "deepseek-v4.1-flash", str(path))}
    return found | {"cuda": compile_spec(load("deepseek-v4.1-flash", target="cuda"))}


def test_generated_code_has_the_forms_that_are_accepted(plans):
    for plan in plans.values():
        for stage in plan.manifest.stages:
            _, functions = check_module(plan.files[stage.file])
            regions = [region for region in plan.manifest.regions if region.stage == stage.index]
            assert [function.name for function in functions] == [region.function for region in regions]


def test_generated_code_is_format_clean_and_lints(plans, tmp_path):
    for number, plan in enumerate(plans.values()):
        for name, text in plan.files.items():
            if name.endswith(".py"):
                (tmp_path / f"{number}_{name}").write_text(text)
    root = Path(__file__).resolve().parents[3]
    for verb in (["format", "--check"], ["check", "--select", "E,W,F,I,D1"]):
        command = [sys.executable, "-m", "ruff", *verb, "--config", str(root / "pyproject.toml"), str(tmp_path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr


def test_no_line_is_long_and_no_path_is_absolute(plans):
    for plan in list(plans.values())[:2]:
        for name, text in plan.files.items():
            if name.endswith(".py"):
                assert max(map(len, text.splitlines())) <= 120
            assert str(Path.cwd()) not in text


def test_one_code_for_a_layer_wherever_it_runs(plans):
    whole, four = plans["deepseek-v4.1-flash"].files, list(plans.values())[2].files
    assert "def layer_25(kernels, weights, step, streams_L24_ffn, pre_L24_ffn, topk_L24, compress_kv_L20" in (
        " ".join(four["stage_2.py"].split())
    )
    assert "topk_L28" in whole["stage_0.py"] and "_S3" not in four["stage_3.py"]


def test_golden(update_golden):
    files = compile_spec(load("toy")).files
    if update_golden:
        GOLDEN.mkdir(exist_ok=True)
        for path in GOLDEN.iterdir():
            path.unlink()
        for name, text in files.items():
            (GOLDEN / name).write_text(text, encoding="utf-8")
    assert sorted(files) == sorted(path.name for path in GOLDEN.iterdir())
    for name, text in files.items():
        assert (GOLDEN / name).read_text(encoding="utf-8") == text, f"{name}: see --update-golden"


# --- hostile texts ----------------------------------------------------------------------------------------------------

HOSTILE = [
    '"""; import os; os.system("touch /tmp/pwned"); """',
    "a\nimport os",
    "a\r\nimport os",
    "back\\",
    "`code` | pipe",
    "{{ 7 * 7 }}{% for x in y %}",
    "\u2028\u202e\x00",
    "' + exit() + '",
]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_cannot_break_out(name):
    """Even where the schema would let such a name through, and where a file is called so."""
    loaded = load("toy")
    spec = loaded.spec.model_copy(update={"name": name})

    class Positions:
        def value(self, path):
            return Span(name, 3, 1)

    program = passes.run(passes.Program(spec, Positions(), build(spec, loaded.spans)))
    ops = tuple(dataclasses.replace(op, span=Span(name, 3, 1)) for op in program.graph.ops)
    regions = tuple(dataclasses.replace(region, span=Span(name, 4, 1)) for region in program.regions)
    program = dataclasses.replace(program, graph=dataclasses.replace(program.graph, ops=ops), regions=regions)
    files = render(plan_model(program, "0" * 64))
    tree, functions = check_module(files["stage_0.py"])
    plain = compile_spec(load("toy")).files["stage_0.py"]
    assert len(functions) == 10 and len(tree.body) == 11
    assert len(files["stage_0.py"].splitlines()) >= len(plain.splitlines())
    assert "49" not in files["README.md"].splitlines()[0]
    assert code.shown(name) in files["README.md"].splitlines()[0]


def test_identifiers():
    names = {
        ("topk@L4", 4): "topk",
        ("topk@L4", 5): "topk_L4",
        ("topk@L4", 40): "topk_L4",
        ("topk@L4.S1", 5): "topk_L4",
        ("pre@L4.attn", 4): "pre_attn",
        ("streams@L3.ffn.S2", 4): "streams_L3_ffn",
        ("window_kv@L4.before", 4): "window_kv_before",
        ("window_kv@L40.before", 4): "window_kv_L40_before",
        ("token_history.before.S1", None): "token_history_before",
        ("streams@embed", 0): "streams_embed",
        ("collapsed@final", None): "collapsed_final",
    }
    for (value, layer), expected in names.items():
        assert identifier(value, layer) == expected
    with pytest.raises(ValueError):
        identifier("topk@L4; import os", 4)
    assert weight_identifier("layers.4.wq_a") == "wq_a"
    assert weight_identifier("rope.compress") == "rope_compress"
    assert weight_identifier("final_norm") == "final_norm"


def test_literals_are_python():
    for value in (1, -3, 1e-20, 0.0, "plain", 'do"ble', "sin'gle", "new\nline", "back\\slash"):
        assert ast.literal_eval(code.literal(value)) == value
