"""The text of every code, as people read it, in `golden/GROUP.md`: what is, what was expected, the way out.

`pytest tests/diagnostics --update-golden` writes the files anew. Read the difference as somebody who meets the finding
for the first time, before you keep it.
"""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from dsv41c.codes import GROUPS
from dsv41c.compiler.checks import check
from dsv41c.compiler.mend import mend
from dsv41c.compiler.spec import load
from dsv41c.report import render

from .test_codes import TRIGGERS, findings, given_by

GOLDEN = Path(__file__).parent / "golden"
MOST = 3  # findings of one code that are shown
# What differs from machine to machine, and from run to run.
VARIES = ((re.compile(r"(?<=has )[0-9.]+ [GMT]iB"), "N GiB"), (re.compile(r"\b0x[0-9a-f]{6,}\b"), "ADDRESS"))


def told(code, folder):
    """The finding of a code's failing example, places in the folder by their names alone."""
    if code.bad:
        found, sources = findings(code.bad, folder)
        gone = mend(found[0].span.file, code.bad, found, lambda new: check(load("-", instead=new))).gone
        found = [each if each in gone else replace(each, fix=()) for each in found]
    else:
        found, sources = given_by(TRIGGERS[code.code][0], folder)
        sources = {**load("toy").sources, **sources}
        found = [each for each in found if each.code == code.code][:MOST]
    text = render(found, sources).rpartition("\n\n")[0].replace(f"{folder}/", "").replace(str(folder), "FOLDER")
    for pattern, stands_for in VARIES:
        text = pattern.sub(stands_for, text)
    return text


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group.__name__.rpartition(".")[2])
def test_golden_text(group, tmp_path, update_golden):
    parts = [f"# {group.__doc__.splitlines()[0]}\n"]
    for code in group.CODES:
        folder = tmp_path / code.code
        folder.mkdir()
        parts.append(f"## {code.code} {code.name}\n\n```text\n{told(code, folder)}\n```\n")
    text, file = "\n".join(parts), GOLDEN / f"{group.__name__.rpartition('.')[2]}.md"
    if update_golden:
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8")
