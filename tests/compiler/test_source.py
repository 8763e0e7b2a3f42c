"""Text to data and spans: scalars, traps, limits, and that nothing but UserFault is ever raised."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv41c.compiler.source import MAX_DEPTH, POISON, Node, Spans, dotted, parse, shown, to_data
from dsv41c.diagnostics import Span, UserFault


def data(text: str | bytes) -> object:
    document = parse(text, "t")
    assert document.diagnostics == ()
    return to_data(document.root)


def codes(text: str | bytes) -> list[tuple[str, int, int]]:
    """Code and place of every finding of a text."""
    try:
        found = parse(text, "t").diagnostics
    except UserFault as fault:
        found = fault.diagnostics
    return [(finding.code, finding.span.line, finding.span.column) for finding in found if finding.span]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-6", 1e-6),
        ("1e-20", 1e-20),
        (".5", 0.5),
        ("1.", 1.0),
        ("-3", -3),
        ("+7", 7),
        ("010", 10),
        ("0x1F", 31),
        ("0o17", 15),
        ("9223372036854775807", 2**63 - 1),
        ("on", "on"),
        ("off", "off"),
        ("yes", "yes"),
        ("12:30", "12:30"),
        ("1_000", "1_000"),
        ("2020-01-01", "2020-01-01"),
        ("'1'", "1"),
        ('"true"', "true"),
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("cpu:0", "cpu:0"),
        ("٣", "٣"),
    ],
)
def test_scalars_are_those_of_yaml_1_2(text: str, value: object) -> None:
    assert data(f"a: {text}") == {"a": value}
    assert type(data(f"a: {text}")["a"]) is type(value)  # type: ignore[index]


def test_keys_are_text_whatever_they_look_like() -> None:
    assert data("{0-1: 0, 2: 2, true: 1, null: 3}") == {"0-1": 0, "2": 2, "true": 1, "null": 3}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: 1\nb: [1, 2\nc: 3", [("DSV101", 3, 2)]),
        (b"a: 1\nb: \xff", [("DSV102", 2, 4)]),
        ("a: 1".encode("utf-16"), [("DSV102", 1, 1)]),
        ("a: 1\nb: x\x07y", [("DSV103", 2, 5)]),
        ("a: \ud800", [("DSV103", 1, 4)]),
        ("a: 1\u2028b: 2", [("DSV103", 1, 5)]),
        ("\ufeffa: 1", [("DSV104", 1, 1)]),
        ("a:\n\tb: 1", [("DSV105", 2, 1)]),
        ("a: 1\nb: {c: 1, c: 2}\na: 2", [("DSV106", 2, 11), ("DSV106", 3, 1)]),
        ('{"a": 1, "a": 2}', [("DSV106", 1, 10)]),
        ("a: !!python/object/apply:os.system [ls]", [("DSV107", 1, 4)]),
        ("!!map {a: !!str 1}", [("DSV107", 1, 1), ("DSV107", 1, 11)]),
        ("a: {<<: {b: 1}}", [("DSV108", 1, 5)]),
        ("[a]: 1", [("DSV109", 1, 1)]),
        ("{{ x }}: 1", [("DSV109", 1, 1)]),
        ("a: &x b\n*x : 1", [("DSV109", 2, 1)]),
        ("a: 1\n---\nb: 2", [("DSV110", 2, 1)]),
        ("a: " + "[" * 40, [("DSV112", 1, 35)]),
        ("a: " + "9" * 5000, [("DSV114", 1, 4)]),
        ("a: 9223372036854775808", [("DSV114", 1, 4)]),
        ("a: 0x" + "F" * 20, [("DSV114", 1, 4)]),
        ("a: [.nan, -.inf, 1e999, NaN, -Infinity]", [("DSV115", 1, c) for c in (5, 11, 18, 25, 30)]),
        ("a: &x [*x]", [("DSV116", 1, 8)]),
        ("a: *x", [("DSV116", 1, 4)]),
        ("", [("DSV118", 1, 1)]),
        ("# nothing\n\n", [("DSV118", 1, 1)]),
    ],
)
def test_each_trap_is_a_finding_at_its_place(text: str | bytes, expected: list[tuple[str, int, int]]) -> None:
    assert codes(text) == expected


def test_reading_goes_on_after_a_bad_value() -> None:
    document = parse("a: 1e999\nb: 10000000000000000000000\nc: 3", "t")
    assert to_data(document.root) == {"a": POISON, "b": POISON, "c": 3}
    assert [finding.code for finding in document.diagnostics] == ["DSV115", "DSV114"]


def test_alias_bombs_are_stopped() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 9)]
    assert [code for code, *_ in codes("\n".join(lines))] == ["DSV113"]
    nested = "a0: &a0 [x]\n" + "\n".join(f"a{i}: &a{i} [*a{i - 1}]" for i in range(1, 60))
    assert [code for code, *_ in codes(nested)] == ["DSV112"]


def test_limits_are_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    assert codes("[" * MAX_DEPTH + "]" * MAX_DEPTH) == []
    assert codes("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1))[0][0] == "DSV112"
    monkeypatch.setattr("dsv41c.compiler.source.compose.MAX_NODES", 3000)
    assert codes("[" + "1," * 2999 + "]") == []
    assert codes("[" + "1," * 3000 + "]")[0][0] == "DSV113"


def test_aliases_work() -> None:
    assert data("a: &x {b: [1, 2]}\nc: *x") == {"a": {"b": (1, 2)}, "c": {"b": (1, 2)}}


def test_spans_of_values_and_keys() -> None:
    spans = Spans(parse("layers:\n  kv: [2, 8,\n    14]\n  x: {a: é1}  # c\nreads: {24: {topk: 3}}\n", "f.yaml").root)
    assert spans.value(("layers", "kv", 1)) == Span("f.yaml", 2, 11, 2, 12)
    assert spans.value(("layers", "kv", 2)) == Span("f.yaml", 3, 5, 3, 7)
    assert spans.value(("layers", "kv")) == Span("f.yaml", 2, 7, 3, 8)
    assert spans.key(("layers", "kv")) == Span("f.yaml", 2, 3, 2, 5)
    assert spans.value(("layers", "x", "a")) == Span("f.yaml", 4, 10, 4, 12)
    assert spans.value(("layers",)) == Span("f.yaml", 2, 3, 4, 13)
    assert spans.value(("reads", 24, "topk")) == spans.value(("reads", "24", "topk")) == Span("f.yaml", 5, 20, 5, 21)


def test_spans_fall_back_to_the_nearest_parent() -> None:
    spans = Spans(parse("a: {b: 1}", "t").root)
    assert spans.value(("a", "c", 3)) == spans.value(("a",))
    assert spans.key(("a", "c")) == spans.key(("a",)) == Span("t", 1, 1, 1, 2)
    assert spans.value(("z",)) == spans.value(())
    assert spans.has(("a", "b")) and not spans.has(("a", "c"))


def test_what_messages_show_is_printable_and_short() -> None:
    assert shown("a\x1b[31m\u202e") == '"a\\u001b[31m\\u202e"'
    assert len(shown("x" * 500)) == 60
    assert len(shown(tuple(range(500)))) == 60
    assert dotted(("layers", "kv", 2, "a\nb")) == "layers.kv[2].a\\nb"


@settings(max_examples=300, deadline=None)
@given(
    st.text(max_size=60) | st.text(alphabet="{}[]:,-&*!|>'\"%@` \n\tab01<#?.~", max_size=60) | st.binary(max_size=60)
)
def test_no_input_raises_anything_but_user_fault(source: str | bytes) -> None:
    try:
        document = parse(source, "t")
    except UserFault as fault:
        assert fault.diagnostics
        assert all(finding.span and finding.help for finding in fault.diagnostics)
    else:
        to_data(document.root)
        Spans(document.root)


_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63) + 1, 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


def _tuples(value: object) -> object:
    if isinstance(value, dict):
        return {key: _tuples(item) for key, item in value.items()}
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


@settings(max_examples=200, deadline=None)
@given(_JSON)
def test_json_reads_as_json(value: object) -> None:
    text = json.dumps(value, ensure_ascii=False)
    try:
        document = parse(text, "t")
    except UserFault as fault:
        # Characters that YAML does not take unescaped, and what a lone string would be cut to.
        assert {finding.code for finding in fault.diagnostics} <= {"DSV101", "DSV103"}
        return
    if not document.diagnostics:
        assert to_data(document.root) == _tuples(value)
    assert {finding.code for finding in document.diagnostics} <= {"DSV108"}


def test_nodes_compare_by_value_and_place() -> None:
    assert parse("a: 1", "t").root == parse("a: 1", "t").root
    assert isinstance(parse("[1]", "t").root, Node)
