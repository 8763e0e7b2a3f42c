"""What the command line says to somebody who is nearly right, and what it never overwrites."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]  # of conftest.py
TINY = Path(__file__).resolve().parents[1] / "golden" / "tiny" / "config.json"


# --- places to write ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("argv", [("compile", "toy"), ("graph", "toy"), ("synth", "toy"), ("import", str(TINY))])
def test_folders_to_hold_a_result_are_never_made(run: Run, tmp_path: Path, argv: tuple[str, ...]):
    ran = run(*argv, "-o", "a/b/c")
    assert ran[:2] == (2, "")
    assert "error[DSV154]" in ran.err
    assert "make it first: mkdir -p a/b" in ran.err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "argv",
    [
        ("compile", "toy", "-o", ""),
        ("graph", "toy", "-o", ""),
        ("synth", "toy", "-o", ""),
        ("import", str(TINY), "-o", ""),
        ("inspect", ""),
        ("validate", "toy", "--checkpoint", ""),
        ("run", "plan", "--checkpoint", "c", "--ids", "1", "--states-out", ""),
    ],
)
def test_an_empty_path_is_no_place(run: Run, argv: tuple[str, ...]):
    ran = run(*argv)
    assert ran[:2] == (2, "")
    assert "the path is empty" in ran.err


def test_import_keeps_what_was_edited_by_hand(run: Run, tmp_path: Path):
    spec = tmp_path / "mine.yaml"
    assert run("import", str(TINY), "-o", "mine.yaml").code == 0
    assert run("import", str(TINY), "-o", "mine.yaml").code == 0, "the same text again loses nothing"
    imported = spec.read_text()
    spec.write_text(imported + "# tuned for hours\n")
    ran = run("import", str(TINY), "-o", "mine.yaml")
    assert ran[:2] == (2, "")
    assert "error[DSV154]" in ran.err
    assert "--force" in ran.err
    assert spec.read_text().endswith("# tuned for hours\n")
    assert run("import", str(TINY), "-o", "mine.yaml", "--force").code == 0
    assert spec.read_text() == imported


# --- options that go together ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("run", "plan", "--checkpoint", "c", "--ids", "1", "--top-p", "0.5"), "--temperature"),
        (("run", "plan", "--checkpoint", "c", "--ids", "1", "--top-p", "1", "--temperature", "0"), "--temperature"),
        (("compile", "toy", "--check"), "`--check` compares with a plan"),
        (("compile", "toy", "--check", "--dry-run"), "`--check` compares with a plan"),
    ],
)
def test_half_of_a_pair_is_refused(run: Run, argv: tuple[str, ...], said: str):
    ran = run(*argv)
    assert ran[:2] == (2, "")
    assert said in ran.err


def test_check_says_where_no_plan_is(run: Run, tmp_path: Path):
    (tmp_path / "notes").mkdir()
    absent, other = run("compile", "toy", "--check", "-o", "nosuch"), run("compile", "toy", "--check", "-o", "notes")
    assert absent[:2] == (1, "")
    assert absent.err == "there is no plan folder nosuch\n"
    assert other[:2] == (1, "")
    assert other.err == "notes is no plan: it has no manifest.json\n"


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("validate", "--json"), "SPEC"),
        (("validate", "toy", "--json", "--frobnicate"), "`--frobnicate` is not an argument of `validate`"),
        (("--json", "valdate", "toy"), "did you mean `validate`?"),
        (("graph", "toy", "--format", "json", "--level"), "expected one argument"),
        (("validate", "--format=json"), "SPEC"),
        (("compile", "toy", "--json"), "-o DIR"),
        (("validate", "-", "-", "--json"), "once"),
        (("validate", "toy", "--fix", "--json"), "`--fix` prints a diff"),
        (("graph", "toy", "--json", "--depth", "1"), "`--depth` counts steps"),
        (("run", "plan", "--json", "--checkpoint", "c", "--ids", "1", "--top-p", "2"), "--top-p"),
        (("explain", "DSV999", "--json"), "is not a code"),
    ],
)
def test_wrong_usage_is_json_where_that_is_asked_for(run: Run, argv: tuple[str, ...], said: str):
    ran = run(*argv)
    assert (ran.code, ran.err) == (2, "")
    [finding] = json.loads(ran.out)["diagnostics"]
    assert (finding["code"], finding["severity"]) == ("DSV158", "error")
    assert said in finding["message"] and "--help" in finding["help"]
    assert all("\n" not in fact["value"] for fact in finding["facts"])


def test_a_word_behind_the_arguments_asks_for_nothing(run: Run):
    ran = run("validate", "--frobnicate", "--", "--json")
    assert (ran.code, ran.out) == (2, "") and "--frobnicate" in ran.err


# --- exit codes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("base", "code"), [("toyy", "DSV220"), ("./absent.yaml", "DSV117")])
def test_what_a_spec_extends_is_part_of_the_input(run: Run, tmp_path: Path, base: str, code: str):
    (tmp_path / "mine.yaml").write_text(f"extends: {base}\n")
    ran = run("validate", "mine.yaml")
    assert ran.code == 1
    assert f"error[{code}]" in ran.out
    assert run("validate", base).code == 2


def test_a_folder_without_a_manifest_is_the_same_to_inspect_and_run(run: Run, tmp_path: Path):
    (tmp_path / "notes").mkdir()
    inspected, ran = run("inspect", "notes"), run("run", "notes", "--checkpoint", "c", "--ids", "1")
    assert inspected == ran
    assert inspected.code == 1
    assert "DSV801" in inspected.err


# --- near misses -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (
            ("compile", "toy.plan", "-o", "other.plan"),
            "`toy.plan` is a plan; the spec it was made of is `toy.plan/spec.yaml`",
        ),
        (("validate", "./toy.plan"), "toy.plan/spec.yaml"),
        (("inspect", "toy"), "this is a spec; make a plan of it: `dsv41c compile toy -o toy.plan`"),
        (("bench", "mine.yaml"), "`dsv41c compile mine.yaml -o mine.plan`"),
        (("inspect", "toy.plan/manifest.json"), "give the plan's folder: `toy.plan`"),
        (("inspect", "toy.plan/spec.yaml"), "give the plan's folder: `toy.plan`"),
        (("inspect", "absent.yaml"), "give the folder that `dsv41c compile SPEC -o FOLDER` made"),
        (("validate", "model"), "`dsv41c import model/config.json`"),
        (("import", "model"), "`model/config.json`"),
        (("validate", "toy.yaml"), "`toy` ships with dsv41c"),
        (("validate", "toy", "--target", "cpu.yaml"), "`cpu` ships with dsv41c"),
        (("graph", "toy", "--select", "layer.3"), "did you mean `layers.3`?"),
        (("graph", "toy", "--select", "L3+"), "did you mean `layers.3`?"),
        (("graph", "toy", "--select", "Layers.2-4"), "did you mean `layers.2-4`?"),
    ],
)
def test_near_misses_lead_on(run: Run, tmp_path: Path, argv: tuple[str, ...], said: str):
    run("compile", "toy", "-o", "toy.plan")
    (tmp_path / "mine.yaml").write_text("extends: toy\n")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_bytes(TINY.read_bytes())
    ran = run(*argv)
    assert ran.code == 2
    assert said in ran.out + ran.err


def test_a_link_that_leads_nowhere_is_not_suggested_itself(run: Run, tmp_path: Path):
    (tmp_path / "mine.yaml").symlink_to("absent.yaml")
    told = run("validate", "mine.yaml").out
    assert "error[DSV117]" in told
    assert "did you mean" not in told


def test_no_layer_is_suggested_that_is_not_there(run: Run):
    assert "layers.30" not in run("graph", "toy", "--select", "layer.30").err


# --- wording ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ['{"a": 1,', '{"a": [1, 2}', '{"a": 1}\n}', "a: [1", "\t{"])
def test_a_config_that_is_cut_short_is_no_json(run: Run, tmp_path: Path, text: str):
    (tmp_path / "config.json").write_text(text)
    ran = run("import", "config.json")
    assert ran[:2] == (1, "")
    assert "error[DSV101]: the config is not valid JSON: " in ran.err
    assert "YAML" not in ran.err


def test_an_empty_config_is_not_told_of_specs(run: Run, tmp_path: Path):
    (tmp_path / "config.json").write_text("")
    assert "help: give the config.json of a model" in run("import", "config.json").err


@pytest.fixture
def toy(run: Run) -> Run:
    """The same, where the toy model's plan and checkpoint lie."""
    assert run("compile", "toy", "-o", "toy.plan").code == 0
    assert run("synth", "toy", "-o", "toy.checkpoint").code == 0
    return run


def test_one_of_a_thing_is_singular(toy: Run, tmp_path: Path):
    ran = toy("run", "toy.plan", "--checkpoint", "toy.checkpoint", "--ids", "0", "-n", "0", "--compare", "reference")
    assert ran.code == 0
    assert "1 token read" in ran.err
    assert "in 1 step:" in ran.err
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    assert "`mine` holds 1 file and is not a plan" in toy("compile", "toy", "-o", "mine").err


def test_findings_about_a_checkpoint_say_in_which_folder(toy: Run, tmp_path: Path):
    folder = tmp_path / "toy.checkpoint"
    (folder / "model-00002-of-00002.safetensors").unlink()
    ran = toy("validate", "toy", "--checkpoint", "toy.checkpoint")
    assert ran.code == 1
    assert " --> toy.checkpoint/model.safetensors.index.json:1:1" in ran.out
    first = folder / "model-00001-of-00002.safetensors"
    first.write_bytes(first.read_bytes()[:-1])
    ran = toy("validate", "toy", "--checkpoint", "./toy.checkpoint/", "--json")
    places = {finding["span"]["file"] for finding in json.loads(ran.out)["diagnostics"] if finding["span"]}
    assert places == {"toy.checkpoint/model.safetensors.index.json", f"toy.checkpoint/{first.name}"}


def test_a_value_of_another_shape_is_told_with_both(toy: Run, tmp_path: Path):
    stage = tmp_path / "toy.plan" / "stage_0.py"
    stage.write_text(re.sub(r"\bk=8\b", "k=4", stage.read_text(), count=1))
    ids = ",".join(map(str, range(18)))
    command = ("run", "toy.plan", "--checkpoint", "toy.checkpoint", "--ids", ids, "-n", "0", "--allow-edited")
    ran = toy(*command, "--compare", "reference")
    assert ran.code == 1
    assert "`topk@L2` is int64 [1, 18, 4], and the reference's is int64 [1, 18, 8]" in ran.err
    ran = toy(*command, "--compare", "reference", "--json")
    first = json.loads(ran.out, parse_constant=pytest.fail)["comparison"]["first_outside"]
    assert first["distance"] is None
    assert first["forms"] == ["int64 [1, 18, 4]", "int64 [1, 18, 8]"]


def test_on_a_terminal_what_takes_a_while_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    from dsv41c.compiler.cli.console import Console
    from dsv41c.compiler.cli.run import _announce

    assert _announce(Console()) is None, "nobody watches"
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    announce = _announce(Console())
    assert announce is not None
    for part in ("load", "prefill", "decode", "write"):  # the later ones would stand in the middle of the text
        announce(part)
    assert capsys.readouterr().err == "loading the weights ...\nreading the prompt ...\n"


def test_counts_of_one_in_what_a_session_refuses(run: Run, tmp_path: Path):
    from dsv41c.compiler import compile_spec, load
    from dsv41c.runtime.refusals import no_room, no_slot

    manifest = compile_spec(load("toy", sets=["runtime.max_sessions=1"])).manifest
    assert no_room(manifest, 512, 1)[0].message == "no room for 1 token: the session holds 512 of 512, 0 more fit"
    assert no_slot(manifest, 0)[0].message == "the one session is open"
