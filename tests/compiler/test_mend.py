"""`validate --fix`: slips are mended byte for byte, decisions are left alone, nothing is written unless asked for."""

import os
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv41c.compiler.checks import check
from dsv41c.compiler.mend import mend
from dsv41c.compiler.source.edits import apply
from dsv41c.compiler.spec import load
from dsv41c.diagnostics import Diagnostic, Edit, Span


def judge(text):
    return check(load("-", instead=text))


def mended(text):
    return mend("<stdin>", text, judge(text), judge)


FLASH_RATIOS = "0,0," + "2," * 18 + ",".join("1" * 20)
SLIPS = {
    "a key": ("runtime: {max_sessoins: 2} # two", "runtime: {max_sessions: 2} # two"),
    "a key in quotes": ('runtime: {"max_sessoins": 2}', 'runtime: {"max_sessions": 2}'),
    "a key in its other spelling": ("layers: {kv_source_layer_idz: [2, 5]}", "layers: {kv_source_layer_ids: [2, 5]}"),
    "a section": ("runtme:\n  max_sessions: 2", "runtime:\n  max_sessions: 2"),
    "a key in a section that is misspelt": ("runtme: {max_sessoins: 2}", "runtime: {max_sessions: 2}"),
    "a key of reads": ("layers: {reads: {6: {comprss_kv: 5}}}", "layers: {reads: {6: {compress_kv: 5}}}"),
    "no space": ("runtime: {max_sessions:2}", "runtime: {max_sessions: 2}"),
    "a word": ("engram: {storage: Maped}", "engram: {storage: mapped}"),
    "a word in quotes": ("engram: {storage: 'maped'}", "engram: {storage: 'mapped'}"),
    "a number in quotes": ('model: {dim: "128"}', "model: {dim: 128}"),
    "a whole number with a fraction": ("model: {n_layers: 8.0}", "model: {n_layers: 8}"),
    "a list of one": ("runtime: {decode_buckets: 2 }", "runtime: {decode_buckets: [2] }"),
    "a text for a list": (
        "placement: {devices: cpu:0, layer_ends: [8]}",
        "placement: {devices: [cpu:0], layer_ends: [8]}",
    ),
    "a list without brackets": (
        "layers:\n  kv_source_layers: 2, 5 # both",
        "layers:\n  kv_source_layers: [2, 5] # both",
    ),
    "a list in quotes": ("layers: {kv_source_layers: '2, 5'}", "layers: {kv_source_layers: [2, 5]}"),
    "a number for a name": ("name: 41", 'name: "41"'),
    "order": ("layers: {kv_source_layers: [5,  2]}", "layers: {kv_source_layers: [2,  5]}"),
    "order in a block": (
        "layers:\n  index_source_layers:\n  - 2\n  - 5\n  - 4\n  - 7",
        "layers:\n  index_source_layers:\n  - 2\n  - 4\n  - 5\n  - 7",
    ),
    "engram layers with their rows": (
        "layers: {engram_layers: [4, 1]}\nengram: {num_embeddings: [630, 462]}",
        "layers: {engram_layers: [1, 4]}\nengram: {num_embeddings: [462, 630]}",
    ),
    "draft entries": (
        "model: {n_mtp_layers: 3}\nlayers: {compress_ratios: [0, 0, 2, 2, 2, 1, 1, 1, 0, 0 ]}",
        "model: {n_mtp_layers: 3}\nlayers: {compress_ratios: [0, 0, 2, 2, 2, 1, 1, 1 ]}",
    ),
    "draft entries in a block": (
        "layers:\n  compress_ratios:\n" + "".join(f"  - {ratio}\n" for ratio in "0022211100") + "mhc: {streams: 4}",
        "layers:\n  compress_ratios:\n" + "".join(f"  - {ratio}\n" for ratio in "00222111") + "mhc: {streams: 4}",
    ),
    "tabs": (
        "runtime:\n\tmax_sessions: 2\n\tcapture:\n\t\tevery: 2",
        "runtime:\n  max_sessions: 2\n  capture:\n    every: 2",
    ),
}
DECISIONS = {
    "a word whose digits differ": "numerics: {compute: f16}",
    "another encoding": "weights: {experts: fp8_32}",
    "a key far from any": "runtime: {sessions: 2}",
    "a key of another section": "model: {head_dim: 64}",
    "a layer twice": "layers: {index_source_layers: [2, 4, 4, 5, 7]}",
    "comments beside entries": "layers:\n  kv_source_layers:\n  - 5 # the second\n  - 2",
    "engram layers whose rows are elsewhere": "layers: {engram_layers: [4, 1]}",
    "engram layers whose rows then differ": "layers: {engram_layers: [4, 1]}\nengram: {num_embeddings: [462, 630]}",
    "engram rows that are not valid": "layers: {engram_layers: [4, 1]}\nengram: {num_embeddings: [630, x]}",
    "a list that is short": "layers: {compress_ratios: [0, 0, 2, 2, 2, 1, 1]}",
    "a draft layer with a ratio": "model: {n_mtp_layers: 1}\nlayers: {compress_ratios: [0, 0, 2, 2, 2, 1, 1, 1, 1]}",
    "what may be a window layer": "layers: {compress_ratios: [0, 0, 2, 2, 2, 2, 2, 0, 0]}",
    "tabs and spaces": "runtime:\n  max_sessions: 2\nindexer:\n\ttopk: 8",
    "a slip that hides a fault": "runtme: {max_sessions: 0}",
    "a value that is given elsewhere too": "runtime: {max_sessoins: 2, max_sessions: 4}",
}


@pytest.mark.parametrize("slip", SLIPS)
def test_slips_are_mended(slip):
    before, after = (f"extends: toy\n{text}\n" for text in SLIPS[slip])
    result = mended(before)
    assert result.after == after and not judge(after)
    assert result.gone == tuple(judge(before))
    assert mended(after).gone == ()


@pytest.mark.parametrize("what", DECISIONS)
def test_decisions_are_left_alone(what):
    text = f"extends: toy\n{DECISIONS[what]}\n"
    result = mended(text)
    assert judge(text) and (result.after, result.gone) == (text, ())


def test_the_released_models_list_with_some_draft_entries():
    text = f"extends: deepseek-v4.1-flash\nlayers: {{compress_ratios: [{FLASH_RATIOS},0,0]}}\n"
    assert mended(text).after == text.replace(",0,0]", "]")


def test_a_byte_order_mark_and_line_ends():
    assert mended("\ufeffextends: toy\r\nruntime: {max_sessoins: 2}\r\n# end").after == (
        "extends: toy\r\nruntime: {max_sessions: 2}\r\n# end"
    )


def test_one_that_does_harm_does_not_keep_others_from_being_mended():
    text = "extends: toy\nruntme: {max_sessions: 0}\nengram: {storage: maped}\nnumerics: {kv_cache: pakced}\n"
    assert mended(text).after == text.replace("maped", "mapped").replace("pakced", "packed")


def test_edits_that_overlap_or_lie_outside_are_not_made():
    assert apply("abc", [Edit(Span("f", 1, 1, 1, 3), "x"), Edit(Span("f", 1, 2, 1, 4), "y")]) is None
    assert apply("abc", [Edit(Span("f", 2, 1, 2, 2), "x")]) is None
    assert apply("abc", [Edit(Span("f", 1, 3, 1, 6), "x")]) is None
    assert apply("a\r\nb", [Edit(Span("f", 2, 1, 2, 2), "x"), Edit(Span("f", 1, 2, 1, 2), "y")]) == "ay\r\nx"
    foreign = Diagnostic("DSV201", "x", fix=(Edit(Span("other", 1, 1, 1, 2), "y"),))
    assert mend("f", "a", [foreign], lambda _: []).after == "a"


# --- any slips at once ------------------------------------------------------------------------------------------------

LINES = (
    "extends: toy",
    "name: mine            # a name",
    "runtime: {max_context: 256,  max_sessions: 2, capture: all}",
    "layers:",
    "  kv_source_layers: [2, 5]   # who compresses",
    "  index_source_layers: [ 2,4,5, 7 ]",
    "  compress_ratios: [0, 0, 2, 2, 2, 1, 1, 1]",
    "numerics: {kv_cache: packed}   # 字 and é",
    "engram: {storage: host}",
)
WORDS = ("max_context", "kv_source_layers", "index_source_layers", "compress_ratios", "kv_cache", "packed")
FORMS = (("256", '"256"'), ("[2, 5]", "[5, 2]"), (" 2,4,5, 7", " 2,5,4, 7"), ("1, 1]", "1, 1,0, 0]"))


@st.composite
def slipped(draw):
    """A sound text with some lines spoiled: letters swapped or lost, numbers quoted, entries swapped, zeros behind."""
    changes = draw(st.lists(st.sampled_from(FORMS), max_size=3, unique=True))
    for word in draw(st.lists(st.sampled_from(WORDS), max_size=3, unique=True)):
        at = draw(st.integers(1, len(word) - 2))
        swapped = word[:at] + word[at + 1] + word[at] + word[at + 2 :]
        changes.append((word, draw(st.sampled_from((swapped, word[:at] + word[at + 1 :])))))
    lines = list(LINES)
    for old, new in changes:
        lines = [line.replace(old, new) for line in lines]
    return draw(st.sampled_from(("\n", "\r\n"))), lines


def parts(line):
    return set(re.findall(r"\w+|\W", line))


@settings(max_examples=40, deadline=None)
@given(slipped())
def test_each_line_is_mended_whole_or_left(spoiled):
    """What comes out of a slip is the sound line itself, comments, blanks and line ends among it; and it stays so."""
    end, lines = spoiled
    text = end.join(lines)
    result = mended(text)
    for now, slip, sound in zip(result.after.split(end), lines, LINES, strict=True):
        assert parts(now) <= parts(slip) | parts(sound)
        assert now.partition("#")[1:] == sound.partition("#")[1:]
    assert len(judge(result.after)) == len(judge(text)) - len(result.gone)
    again = mended(result.after)
    assert (again.after, again.gone) == (result.after, ())


# --- the command line -------------------------------------------------------------------------------------------------

BAD = "extends: toy\r\nruntime: {max_sessoins: 2}   # two"
GOOD = BAD.replace("sessoins", "sessions")


def test_a_diff_is_shown_and_nothing_written(run, tmp_path: Path):
    Path("a b.yaml").write_text(BAD, newline="")
    ran = run("validate", "a b.yaml", "toy", "--fix")
    assert ran.code == 1 and Path("a b.yaml").read_bytes() == BAD.encode()
    assert ran.out.splitlines()[:3] == ["--- a b.yaml", "+++ a b.yaml", "@@ -1,2 +1,2 @@"]
    assert f"\n+{GOOD.splitlines()[1]}\n\\ No newline at end of file\n" in ran.out
    assert "error[DSV201]" in ran.err and "1 of 1 finding can be mended" in ran.err and "specs/toy.yaml: ok" in ran.err


def test_files_are_written_where_that_is_asked_for(run, tmp_path: Path):
    Path("a.yaml").write_text(BAD, newline="")
    Path("a.yaml").chmod(0o640)
    Path("link.yaml").symlink_to("a.yaml")
    Path("b.yaml").write_text("extends: toy\nruntime: {max_sessoins: 2}\nnumerics: {compute: f16}\n")
    ran = run("validate", "link.yaml", "b.yaml", "--fix", "--write", "--format", "concise")
    assert ran.code == 1 and ran.out == 'b.yaml:3:21: DSV205 `numerics.compute` is "f16", expected `f32` or `bf16`\n'
    assert Path("link.yaml").is_symlink() and Path("a.yaml").read_bytes() == GOOD.encode()
    assert Path("a.yaml").stat().st_mode & 0o777 == 0o640
    assert ran.err == "link.yaml: 1 finding mended\nb.yaml: 1 finding mended\nlink.yaml: ok\n"
    assert sorted(os.listdir()) == ["a.yaml", "b.yaml", "link.yaml"]


def test_only_what_is_given_is_mended(run, tmp_path: Path):
    Path("base.yaml").write_text("extends: toy\nlayers: {kv_source_layers: [5, 2]}\n")
    Path("a.yaml").write_text("extends: base.yaml\n")
    ran = run("validate", "a.yaml", "--fix", "--write")
    assert ran.code == 1 and "[5, 2]" in Path("base.yaml").read_text()
    assert "base.yaml:2:32: DSV303 is not mended, since it is not in a.yaml\n" in ran.err
    assert "mends it" not in ran.out


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("--write", "toy"), "`--write` goes with `--fix`"),
        (("--fix", "--write", "-"), "standard input cannot be written"),
        (("--fix", "--format", "sarif", "toy"), "`--fix` prints a diff"),
    ],
)
def test_options_that_do_not_go_together(run, argv, said):
    ran = run("validate", *argv)
    assert ran.code == 2 and said in ran.err and not ran.out


def test_a_file_that_changes_meanwhile_is_left_alone(run, tmp_path: Path, monkeypatch):
    Path("a.yaml").write_text(BAD, newline="")
    expected = "dsv41c.compiler.cli.mending.expect_writable"
    monkeypatch.setattr(expected, lambda path: Path(path).write_text("mine"))
    ran = run("validate", "a.yaml", "--fix", "--write")
    assert ran.code == 2 and "DSV154" in ran.err and "changed while" in ran.err
    assert Path("a.yaml").read_text() == "mine"


def test_other_forms_carry_only_edits_that_help(run, tmp_path: Path):
    Path("a.yaml").write_text("extends: toy\nruntime: {max_sessoins: 2}\nindexer: {tokp: 0}\n")
    ran = run("validate", "a.yaml", "--json")
    assert ran.out.count('"text": "max_sessions"') == 1 and '"text": "topk"' not in ran.out
    compiled = run("compile", "a.yaml", "-o", "plan", "--json")
    assert '"text"' not in compiled.out  # nobody has tried them there


def test_a_spec_and_what_it_extends_are_mended_together(run, tmp_path: Path):
    texts = {
        "base.yaml": "extends: toy\nruntime: {max_sessoins: 2}\n",
        "a.yaml": "extends: ./base.yaml\nmodel: {n_layer: 8}\n",
    }
    for name, text in texts.items():
        Path(name).write_text(text)
    shown = run("validate", "a.yaml", "base.yaml", "--fix", "--format", "concise")
    assert shown.code == 1 and shown.out.count("@@") == 4
    assert shown.err.count("DSV201") == 2 and "2 of 2 findings can be mended" in shown.err
    assert "is not mended" not in shown.err
    ran = run("validate", "a.yaml", "base.yaml", "--fix", "--write")
    assert (ran.code, ran.out) == (0, "")
    assert ran.err == "a.yaml: 1 finding mended\nbase.yaml: 1 finding mended\na.yaml: ok\nbase.yaml: ok\n"


def test_as_many_can_be_mended_as_the_diff_mends(run, tmp_path: Path):
    Path("a.yaml").write_text("extends: toy\nruntime: {max_sessoins: 2, max_sessoins: 3}\n")
    ran = run("validate", "a.yaml", "--fix")
    assert "+runtime: {max_sessions: 2, max_sessoins: 3}" in ran.out
    assert "1 of 2 findings can be mended" in ran.err  # the key is not there twice any more
