"""Random valid specs never fail, and one mistake gives one finding."""

from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dsv41c.compiler.build import build
from dsv41c.compiler.checks import check, check_graph
from dsv41c.compiler.ir import parse
from dsv41c.compiler.passes import Program, run
from dsv41c.compiler.spec import load
from dsv41c.report import render

from ...mutations import MUTATIONS  # noqa: TID252 (tests are no installed package)
from ...strategies import loaded, mutated, specs  # noqa: TID252

QUIET = {"deadline": None, "suppress_health_check": list(HealthCheck)}


def shown(found):
    return "\n" + render(found, {}, "concise")


@settings(max_examples=40, **QUIET)
@given(specs())
def test_valid_specs_have_no_findings(spec):
    given_spec = loaded(spec)
    found = check(given_spec)
    assert {each.code for each in found} <= {"DSV410"}, shown(found)
    graph = build(given_spec.spec, given_spec.spans)
    assert {each.code for each in check_graph(graph)} <= {"DSV410"}
    assert str(parse(str(graph))) == str(graph)
    run(Program(given_spec.spec, given_spec.spans, graph), verify=True)


@pytest.mark.parametrize("name", MUTATIONS)
@settings(max_examples=10, **QUIET)
@given(data=st.data())
def test_one_mistake_gives_one_finding(name, data):
    spec = data.draw(mutated(name))
    found = check(loaded(spec))
    errors = [each for each in found if each.severity == "error"]
    assert len(errors) == 1, shown(found)
    assert errors[0].help and errors[0].span


@settings(max_examples=40, **QUIET)
@given(st.data())
def test_two_mistakes_give_findings_and_no_exception(data):
    spec = data.draw(mutated())
    for _ in range(2):
        again = MUTATIONS[data.draw(st.sampled_from(sorted(MUTATIONS)))]
        with suppress(ValueError, IndexError, KeyError):  # mutations are for valid specs
            spec = again(data.draw, spec) or spec
    found = check(loaded(spec))
    assert render(found, {}, "json")


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=6,
)


@settings(max_examples=40, **QUIET)
@given(specs(), st.data())
def test_no_value_anywhere_gives_an_exception(spec, data):
    section = data.draw(st.sampled_from(sorted(key for key in spec if isinstance(spec[key], dict))))
    key = data.draw(st.sampled_from(sorted(spec[section])))
    spec[section][key] = data.draw(JUNK)
    render(check(loaded(spec)), {}, "text")


def _unknown_key(spec):
    spec["layers"]["colour"] = "blue"


def _carried_read(spec):
    spec["layers"].setdefault("reads", {}).setdefault("0", {})["pre"] = 0


def _unknown_width(spec):
    spec["attention"]["colour"] = "blue"


@pytest.mark.parametrize(
    ("beside", "code"), [(_unknown_key, "DSV201"), (_carried_read, "DSV211"), (_unknown_width, "DSV201")]
)
@settings(max_examples=40, **QUIET)
@given(data=st.data())
def test_a_mistake_beside_another_does_not_hide_it(beside, code, data):
    spec = data.draw(mutated())
    alone = [each.code for each in check(loaded(spec)) if each.severity == "error"]
    beside(spec)
    found = check(loaded(spec))
    assert sorted(each.code for each in found if each.severity == "error") == sorted([*alone, code]), shown(found)


def test_what_rests_on_a_wrong_list_is_not_said():
    spec = "extends: toy\nlayers: {kv_source_layers: none, index_source_layers: [2, 2], engram_layers: [4, 1]}\n"
    found = check(load("-", stdin=lambda: spec))
    assert [each.code for each in found] == ["DSV203", "DSV302", "DSV303"], shown(found)
