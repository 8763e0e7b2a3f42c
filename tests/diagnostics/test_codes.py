"""Every code has an explanation, what shows it, and the same mended: two specs, or a pair of triggers.

`TRIGGERS[code]` of the files in `triggers/` are two functions of an empty folder: the first returns or raises findings
(or returns what has them as `diagnostics`) that hold the code, the second does the same work as it should be.
"""

import importlib.util
import re
from pathlib import Path

import pytest

from dsv41c.codes import GROUPS, TABLE
from dsv41c.codes.situations import SITUATIONS
from dsv41c.compiler.checks import CHECKS, check
from dsv41c.compiler.spec import load
from dsv41c.diagnostics import Diagnostic, UserFault
from dsv41c.report import FORMATS, render


def _triggers():
    found = {}
    for file in sorted((Path(__file__).parent / "triggers").glob("*.py")):
        spec = importlib.util.spec_from_file_location(f"dsv41c_triggers_{file.stem}", file)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        assert not found.keys() & module.TRIGGERS.keys(), f"{file.name} repeats a trigger"
        found |= module.TRIGGERS
    return found


TRIGGERS = _triggers()
UNKIND = re.compile(r"\b(illegal|invalid|just|please|simply|sorry|obviously)\b", re.IGNORECASE)
SHOWN = [code for code, entry in TABLE.items() if entry.bad]


def given_by(trigger, folder):
    """The findings that a trigger returns or raises, and the texts they point into, if it is a load of some.

    What else a trigger may return is no finding.
    """
    try:
        result = trigger(folder)
    except UserFault as fault:
        result = fault.diagnostics
    found = getattr(result, "diagnostics", result)
    listed = [each for each in found if isinstance(each, Diagnostic)] if isinstance(found, list | tuple) else []
    return listed, getattr(result, "sources", {})


def findings(text, folder):
    file = folder / "spec.yaml"
    file.write_text(text, encoding="utf-8")
    loaded = load(str(file))
    return check(loaded), loaded.sources


@pytest.mark.parametrize("code", TABLE)
def test_code_is_complete(code):
    entry = TABLE[code]
    assert re.fullmatch(r"DSV[1-9]\d\d", code)
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", entry.name)
    assert entry.severity in ("error", "warning", "note")
    assert entry.summary and not entry.summary.endswith(".") and "\n" not in entry.summary
    assert len(entry.explanation) > 40
    assert not UNKIND.search(entry.summary + entry.explanation), entry.explanation
    assert bool(entry.bad) == bool(entry.good), "bad and good come together"
    assert bool(entry.bad) != (code in TRIGGERS), f"{code} has an example, or else a trigger"
    assert bool(entry.bad) != (code in SITUATIONS), f"{code} has an example, or else says how it comes about"


def test_codes_are_unique_and_triggers_known():
    codes = [entry.code for group in GROUPS for entry in group.CODES]
    assert len(codes) == len(set(codes))
    names = [entry.name for entry in TABLE.values()]
    assert sorted(names) == sorted(set(names))
    assert not TRIGGERS.keys() - TABLE.keys()


@pytest.mark.parametrize("code", SHOWN)
def test_bad_example_gives_the_code(code, tmp_path):
    found, sources = findings(TABLE[code].bad, tmp_path)
    assert {each.code for each in found} == {code}, render(found, sources)
    _well_worded(found, sources)


@pytest.mark.parametrize("code", SHOWN)
def test_good_example_gives_nothing(code, tmp_path):
    found, sources = findings(TABLE[code].good, tmp_path)
    assert not found, render(found, sources)


@pytest.mark.parametrize("code", TRIGGERS)
def test_trigger_gives_the_code(code, tmp_path):
    found, sources = given_by(TRIGGERS[code][0], tmp_path)
    assert code in {each.code for each in found}
    _well_worded([each for each in found if each.code == code], sources)


@pytest.mark.parametrize("code", TRIGGERS)
def test_mended_trigger_gives_nothing(code, tmp_path):
    found, sources = given_by(TRIGGERS[code][1], tmp_path)
    assert not found, render(found, sources)


def _well_worded(found, sources):
    for each in found:
        assert each.help, f"{each.code} shows no way out"
        assert each.span is None or each.span.line >= 1
        for text in (each.message, each.help, *(label.text for label in each.labels), *each.notes):
            assert text and "\n" not in text
            assert not text.endswith((".", "!")), text
            assert not text[0].isupper() or re.match(r"[A-Z]{2}|KV\b", text), text
            assert not UNKIND.search(text), text
            assert text.count("`") % 2 == 0, text
        assert not re.match(r"(add|change|choose|give|remove|set|use|write)\b", each.message), "help belongs in `help`"
        assert all(name and value for name, value in each.facts)
    for form in FORMATS:
        assert render(found, sources, form)


def test_checks_emit_only_what_they_declare():
    """Each code of the groups of checks is declared by a check, and each declared code exists."""
    declared = {code for each in CHECKS for code in each.codes} | {"DSV505"}
    assert declared <= TABLE.keys()
    assert {code for code in TABLE if code[3] in "345"} == declared
    names = [each.name for each in CHECKS]
    assert len(names) == len(set(names))
