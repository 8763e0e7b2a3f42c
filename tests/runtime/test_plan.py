"""Reading a plan back: what is ours runs, what is edited or hostile does not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dsv41c.compiler.plan import compile_spec, write_plan
from dsv41c.compiler.spec import load
from dsv41c.diagnostics import UserFault
from dsv41c.kernels.catalog import OPS
from dsv41c.runtime.calls import calls_of
from dsv41c.runtime.faults.locate import locate
from dsv41c.runtime.manifest import sha256
from dsv41c.runtime.plan import load_plan

TOY = compile_spec(load("toy"))


@pytest.fixture
def folder(tmp_path):
    write_plan(TOY, tmp_path / "plan")
    return tmp_path / "plan"


def codes(make, *args, **named):
    with pytest.raises(UserFault) as caught:
        make(*args, **named)
    return sorted({finding.code for finding in caught.value.diagnostics})


# --- a plan of ours ---------------------------------------------------------------------------------------------


class Kernels:
    """Counts calls and returns as many values as the catalogue says; fails at the op that is named."""

    def __init__(self, fail=None):
        self.fail, self.calls = fail, []

    def __getattr__(self, kind):
        def call(*args, **named):
            if kind == self.fail:
                raise RuntimeError("the kernel failed")
            self.calls.append((kind, named))
            ports = [port.name for port in OPS[kind].writes if not port.optional or port.name in named]
            return tuple(f"{kind}.{name}" for name in ports) if len(ports) > 1 else f"{kind}.{ports[0]}"

        return call


class Weights:
    def __getattr__(self, name):
        return name


def test_functions_are_the_regions(folder):
    plan = load_plan(folder)
    assert plan.warnings == () and plan.manifest == TOY.manifest
    assert list(plan.functions) == ["embed", *[f"layers.{n}" for n in range(8)], "head"]
    kernels = Kernels()
    for region in plan.manifest.regions:
        written = plan.functions[region.id](kernels, Weights(), "step", *region.reads)
        assert len(region.writes) == (len(written) if isinstance(written, tuple) else 1)
    kinds = {op.id: op.kind for op in plan.manifest.ops}
    assert [kind for kind, _ in kernels.calls] == [kinds[op] for region in plan.manifest.regions for op in region.ops]


@pytest.mark.parametrize(
    ("region", "kind", "path"),
    [
        ("layers.5", "select_candidates", "layers.5.attn.select_candidates"),
        ("layers.5", "attend", "layers.5.attn.attend"),
        ("layers.0", "mix", "layers.0.attn.mix"),
        ("head", "norm", "final.norm"),
        ("embed", "engram_ids", "engram.ids"),
    ],
)
def test_a_failure_knows_its_line_in_the_spec(folder, region, kind, path):
    plan = load_plan(folder)
    entry = next(entry for entry in plan.manifest.regions if entry.id == region)
    op = next(op for op in plan.manifest.ops if op.id == path)
    with pytest.raises(RuntimeError) as caught:
        plan.functions[region](Kernels(kind), Weights(), "step", *entry.reads)
    calls = calls_of(entry, {op.id: op for op in plan.manifest.ops})
    located = locate(caught.value.__traceback__, calls)
    assert located.op == op and located.call.ops == (op,)
    assert set(located.names) >= {"kernels", "weights", "step"}
    frame = caught.traceback[1]
    assert f"kernels.{kind}(" in str(frame.statement)


def test_a_traceback_of_other_code_has_no_place():
    with pytest.raises(ZeroDivisionError) as caught:
        1 / 0  # noqa: B018
    for traceback in (caught.value.__traceback__, None):
        assert locate(traceback, []).call is None


def test_generated_code_has_no_builtins(folder):
    function = load_plan(folder).functions["layers.0"]
    assert function.__globals__["__builtins__"] == {}


# --- edited files -----------------------------------------------------------------------------------------------


def edit(path: Path, old: str, new: str, *, rehash: bool = False) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    if rehash:
        manifest = json.loads((path.parent / "manifest.json").read_text())
        for entry in manifest["files"]:
            if entry["path"] == path.name:
                entry["sha256"] = sha256(path.read_bytes())
        (path.parent / "manifest.json").write_text(json.dumps(manifest))


def test_an_edited_file_is_refused_or_allowed_with_a_warning(folder):
    edit(folder / "stage_0.py", "iterations=20", "iterations=19")
    assert codes(load_plan, folder) == ["DSV811"]
    plan = load_plan(folder, allow_edited=True)
    assert [warning.code for warning in plan.warnings] == ["DSV812"]
    kernels = Kernels()
    region = plan.manifest.regions[1]
    plan.functions[region.id](kernels, Weights(), "step", *region.reads)
    assert kernels.calls[0][1]["iterations"] == 19


@pytest.mark.parametrize("name", ["README.md", "spec.yaml", "stage_0.py"])
def test_every_file_is_compared(folder, name):
    with (folder / name).open("a") as file:
        file.write("\n# changed\n")
    assert codes(load_plan, folder) == ["DSV811"]


def test_code_that_is_not_what_the_manifest_says_is_refused(folder):
    edit(folder / "stage_0.py", "iterations=20", "iterations=19", rehash=True)
    assert codes(load_plan, folder) == ["DSV814"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("def layer_3(", "def layer_33("),
        ("streams_L2_ffn, pre_L2_ffn, topk_L2,", "pre_L2_ffn, streams_L2_ffn, topk_L2,"),
        ("    return streams_ffn, pre_ffn, window_kv\n", "    return streams_ffn, window_kv\n"),
        ("weights.wq_a", "weights.compressor_wgate"),
    ],
)
def test_functions_must_be_the_regions_even_if_edited(folder, old, new):
    edit(folder / "stage_0.py", old, new)
    assert "DSV814" in codes(load_plan, folder, allow_edited=True)


def test_missing_files(folder):
    (folder / "stage_0.py").unlink()
    assert codes(load_plan, folder) == ["DSV810"]
    (folder / "stage_0.py").mkdir()
    assert codes(load_plan, folder) == ["DSV810"]
    assert codes(load_plan, folder / "nowhere") == ["DSV801"]
    assert codes(load_plan, "bad\0name") == ["DSV801"]


# --- hostile code ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("allow", [False, True])
def test_hostile_code_is_refused_with_the_right_hash_and_never_runs(folder, allow):
    flag = folder.parent / "ran"
    text = f"\nimport pathlib\npathlib.Path({str(flag)!r}).touch()\n"
    edit(folder / "stage_0.py", "\n\n# specs/toy.yaml", f"{text}\n\n# specs/toy.yaml", rehash=True)
    with pytest.raises(UserFault) as caught:
        load_plan(folder, allow_edited=allow)
    (finding,) = caught.value.diagnostics
    assert finding.code == "DSV813" and finding.span.line > 1
    assert not flag.exists()


def test_an_encoding_comment_hides_nothing(folder):
    edit(folder / "stage_0.py", '"""Stage', '# -*- coding: utf-7 -*-\n"""Stage', rehash=True)
    edit(folder / "stage_0.py", "    # token embedding", "    # +AAo-    import os +AAo- token", rehash=True)
    assert load_plan(folder).functions["embed"]
