"""Names and values that try to be something else where they are shown: control codes, workflow commands, links."""

import json
import re
import unicodedata
from pathlib import Path

import pytest

from dsv41c.compiler.cli import main
from dsv41c.report import FORMATS

HOSTILE = {
    "a colour": "\x1b[31mred\x1b[0m",
    "a title": "\x1b]0;pwned\x07",
    "a cursor": "a\rb\x08\x9b2K",
    "a bidi override": "\u202egpj.exe\u2066",
    "a line": "a\n::error::pwned",
    "a command": "::set-output name=x::y",
    "percent signs": "%0A::warning::pwned%0D",
    "a link": "[click](https://example.org)",
    "a separator": "a\u2028b\u0085c",
    "a property": "a,line=1:b",
}
# Where a text of a spec is shown: as keys of several depths, as values of several types.
PLACES = {
    "a key": "extends: toy\n{}: 1\n",
    "a key of a section": "extends: toy\nruntime: {{{}: 1}}\n",
    "a key of reads": "extends: toy\nlayers: {{reads: {{{}: {{topk: 2}}}}}}\n",
    "a kind of reads": "extends: toy\nlayers: {{reads: {{3: {{{}: 2}}}}}}\n",
    "a range": "extends: toy\nlayers: {{compress_ratios: {{{}: 2}}}}\n",
    "a value": "extends: toy\nmodel: {{dim: {}}}\n",
    "a word": "extends: toy\nnumerics: {{compute: {}}}\n",
    "a name": "extends: toy\nname: {}\n",
    "a device": "extends: toy\nplacement: {{devices: [{}]}}\n",
    "a base": "extends: {}\n",
    "a tag": "extends: toy\nname: !<x{}> y\n",
    "a key twice": "extends: toy\n{0}: 1\n{0}: 2\n",
}


def is_harmless(text):
    """Nothing in a text moves a cursor or turns writing around, line ends apart."""
    return not [each for each in text if each != "\n" and unicodedata.category(each) in ("Cc", "Cf", "Cs", "Zl", "Zp")]


def looked_at(form, out):
    """What a format promises of its lines, whatever is in them."""
    assert is_harmless(out), ascii(out)
    if form == "github":
        assert all(re.match(r"::(error|warning|notice) (file|title)=[^:]*::", line) for line in out.splitlines())
    if form == "concise":
        assert all(re.search(r"(^|:\d+: )DSV\d{3} ", line) for line in out.splitlines())
    if form in ("json", "sarif"):
        json.loads(out)
    if form == "sarif":
        texts = [result["message"]["text"] for result in json.loads(out)["runs"][0]["results"]]
        assert texts and not any(re.search(r"(?<!\\)\]\(", text) for text in texts)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("place", PLACES)
def test_what_a_spec_holds_is_shown_as_text(place, form, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name, text in HOSTILE.items():
        quoted = json.dumps(text)
        Path("spec.yaml").write_text(
            PLACES[place].format(quoted if place != "a tag" else "%1B%5B31m"), encoding="utf-8"
        )
        code = main(["validate", "spec.yaml", "--format", form])
        said = capsys.readouterr()
        assert code == 1 or (code, name, place) == (0, "", ""), (name, said)
        looked_at(form, said.out)
        assert is_harmless(said.err)


COMMANDS = (
    ("validate", "{}"),
    ("validate", "./{}.yaml"),
    ("validate", "toy", "--set", "{}=1"),
    ("validate", "toy", "--set", "name={}"),
    ("validate", "toy", "--target", "{}"),
    ("validate", "toy", "--format", "{}"),
    ("validate", "toy", "--checkpoint", "{}"),
    ("compile", "toy", "-o", "{}/plan"),
    ("graph", "toy", "--select", "{}"),
    ("graph", "toy", "-o", "{}/graph"),
    ("explain", "{}"),
    ("inspect", "{}"),
    ("import", "{}"),
    ("run", "{}", "--checkpoint", "{}", "--ids", "1"),
    ("estimate", "{}"),
    ("{}",),
    ("validate", "--{}"),
)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_what_is_typed_is_shown_as_text(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for text in HOSTILE.values():
        code = main([word.format(text) for word in command])
        said = capsys.readouterr()
        assert code in (1, 2), said.err
        assert is_harmless(said.out) and is_harmless(said.err), ascii(said.err)


@pytest.mark.parametrize("form", FORMATS)
def test_what_files_are_called_is_shown_as_text(form, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for text in HOSTILE.values():
        name = f"{text.replace('/', '_')}.yaml"
        Path(name).write_text("extends: toy\nruntime: {max_sessoins: 2}\n")
        assert main(["validate", f"./{name}", "toy", "--format", form]) == 1
        said = capsys.readouterr()
        looked_at(form, said.out)
        assert is_harmless(said.err)
        if form == "sarif":
            result = json.loads(said.out)["runs"][0]["results"][0]
            uri = result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
            assert re.fullmatch(r"[A-Za-z0-9._~%/-]+", uri)


def test_names_of_tensors_are_shown_as_text(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    header = {text: {"dtype": text, "shape": [1], "data_offsets": [0, 4]} for text in HOSTILE.values()}
    data = json.dumps(header).encode()
    Path("model.safetensors").write_bytes(len(data).to_bytes(8, "little") + data + bytes(4))
    for form in FORMATS:
        assert main(["validate", "toy", "--checkpoint", "model.safetensors", "--format", form]) == 1
        said = capsys.readouterr()
        assert is_harmless(said.out) and is_harmless(said.err)
