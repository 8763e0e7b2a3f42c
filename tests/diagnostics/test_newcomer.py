"""What people get wrong in their first specs: each mistake is one finding, whose text (`golden/newcomer.md`) leads on.

Each comes with the same text after doing what the finding says, which then is sound.
"""

from pathlib import Path

import pytest

from dsv41c.compiler.checks import check
from dsv41c.compiler.spec import load
from dsv41c.report import render

GOLDEN = Path(__file__).parent / "golden" / "newcomer.md"
SPEC = """\
extends: toy
model: {n_layers: 6}
layers:
  compress_ratios: [0, 0, 2, 2, 1, 1]
  kv_source_layers: [2, 4]
  index_source_layers: [2, 4, 5]
  candidate_source_layer: 4
  engram_layers: [1, 4]
placement: {layer_ends: [6]}
"""
KV, INDEX, CANDIDATE = SPEC.splitlines()[4:7]
RATIOS = "0, 0, " + "2, " * 18 + ", ".join("1" * 20)
FLASH = "extends: deepseek-v4.1-flash\nlayers: {{compress_ratios: [{}]}}\n"


def small(*changes):
    """The spec above with some lines changed."""
    text = SPEC
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    return text


MISTAKES = {
    "a typo in a key": (small(("{n_layers: 6}", "{n_layers: 6, vocab_sise: 512}")), small()),
    "a section that is misspelt": (small(("placement:", "placemnet:")), small()),
    "a key given twice": (small(("placement:", "model: {n_layers: 6}\nplacement:")), small()),
    "a map where a number belongs": (small(("{n_layers: 6}", "{n_layers: {backbone: 6}}")), small()),
    "a key indented too far": (
        "extends: toy\nruntime:\n  max_context: 64\n    max_sessions: 2\n",
        "extends: toy\nruntime:\n  max_context: 64\n  max_sessions: 2\n",
    ),
    "a key that hangs below another": (
        "extends: toy\nruntime:\n  max_context:\n    max_sessions: 2\n",
        "extends: toy\nruntime:\n  max_context: 64\n  max_sessions: 2\n",
    ),
    "a key indented by one": (small((KV, KV[1:])), small()),
    "no space behind a colon": (
        "extends: toy\nruntime:\n  max_context: 64\n  max_sessions:2\n",
        "extends: toy\nruntime:\n  max_context: 64\n  max_sessions: 2\n",
    ),
    "no colon": ("extends: toy\nruntime:\n  max_sessions 2\n", "extends: toy\nruntime:\n  max_sessions: 2\n"),
    "no brackets": (small(("[2, 4]\n", "2, 4\n")), small()),
    "no space behind a dash": (small((KV, "  kv_source_layers:\n    -2\n    -4")), small()),
    "a bracket that is not closed": (small((KV, KV[:-1])), small()),
    "quotes that are not closed": ('extends: toy\nname: "mine\n', 'extends: toy\nname: "mine"\n'),
    "no brackets around a device": (
        "extends: toy\nplacement: {devices: cuda:0}\n",
        'extends: toy\nplacement: {devices: ["cuda:0"]}\n',
    ),
    "a device without its number": (
        "extends: toy\nplacement: {devices: [cuda]}\n",
        'extends: toy\nplacement: {devices: ["cuda:0"]}\n',
    ),
    "no extends": (SPEC.removeprefix("extends: toy\n"), small()),
    "a target as a base": ("extends: rocm8\n", "extends: deepseek-v4.1-flash\n"),
    "a config instead of a spec": ('{"model_type": "deepseek_v41", "text_config": {"num_hidden_layers": 40}}\n', None),
    "a list for 39 of 40 layers": (FLASH.format(RATIOS[3:]), FLASH.format(RATIOS)),
    "a list with 2 of 3 draft layers": (FLASH.format(RATIOS + ", 0, 0"), FLASH.format(RATIOS)),
    "a list with 4 draft layers of 3": (FLASH.format(RATIOS + ", 0, 0, 0, 0"), FLASH.format(RATIOS + ", 0, 0, 0")),
    "a draft layer with a ratio": (FLASH.format(RATIOS + ", 0, 0, 1"), FLASH.format(RATIOS + ", 0, 0, 0")),
    "sources out of order": (small((KV, "  kv_source_layers: [4, 2]")), small()),
    "a source twice": (small((KV, "  kv_source_layers: [2, 2, 4]")), small()),
    "a source on a window layer": (small((KV, "  kv_source_layers: [0, 4]")), small()),
    "a source behind the last layer": (small((KV, "  kv_source_layers: [2, 6]")), small()),
    "a KV source that does not select": (small((INDEX, "  index_source_layers: [4, 5]")), small()),
    "a candidate source that is no KV source": (small((CANDIDATE, "  candidate_source_layer: 5")), small()),
    "a candidate source on a window layer": (small((CANDIDATE, "  candidate_source_layer: 0")), small()),
    "an engram layer twice": (small(("[1, 4]", "[1, 1]")), small()),
    "readers before the first source": (
        small((KV, "  kv_source_layers: [3, 4]"), (INDEX, "  index_source_layers: [3, 4, 5]")),
        small(),
    ),
    "two spellings that disagree": (small((KV, f"{KV}\n  kv_source_layer_ids: [2, 5]")), small()),
    "two spellings that agree": (small((KV, f"{KV}\n  kv_source_layer_ids: [2, 4]")), small()),
    "a key nearly right": (small(("kv_source_layers:", "kv_sources_layer:")), small()),
}


def judged(text):
    loaded = load("-", instead=text)
    return check(loaded), loaded.sources


@pytest.mark.parametrize("mistake", MISTAKES)
def test_each_mistake_is_one_finding(mistake):
    found, sources = judged(MISTAKES[mistake][0])
    assert len(found) == 1, render(found, sources)
    assert found[0].span.file == "<stdin>" and found[0].help


@pytest.mark.parametrize("mistake", [name for name, (_, mended) in MISTAKES.items() if mended])
def test_what_the_finding_says_mends_it(mistake):
    found, sources = judged(MISTAKES[mistake][1])
    assert not found, render(found, sources)


def test_two_mistakes_are_two_findings_in_one_run():
    found, _ = judged(small(("{n_layers: 6}", "{n_layers: 6, dimm: 3}"), (CANDIDATE, "  candidate_source_layer: 5")))
    assert [each.code for each in found] == ["DSV201", "DSV407"]


def test_the_other_spelling_alone_is_the_same_spec():
    alone = load("-", instead=small(("kv_source_layers:", "kv_source_layer_ids:")))
    assert not check(alone) and alone.spec == load("-", instead=SPEC).spec


def test_golden_text(update_golden):
    parts = ["# What people get wrong in their first specs\n"]
    for mistake, (text, _) in MISTAKES.items():
        found, sources = judged(text)
        parts.append(f"## {mistake}\n\n```text\n{render(found, sources)[:-1]}\n```\n")
    written = "\n".join(parts)
    if update_golden:
        GOLDEN.write_text(written, encoding="utf-8")
    assert written == GOLDEN.read_text(encoding="utf-8")
