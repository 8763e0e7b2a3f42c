"""Reading manifests that anybody may have written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv41c.compiler.plan import compile_spec
from dsv41c.compiler.spec import load
from dsv41c.diagnostics import UserFault
from dsv41c.runtime.manifest import FORMAT
from dsv41c.runtime.manifest_text import parse, read

TOY = compile_spec(load("toy"))
TEXT = TOY.files["manifest.json"]
NATIVE = compile_spec(load("toy", target="cuda")).files["manifest.json"]
GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "contradictions.txt"


def findings(data):
    """What a manifest gives, nothing if it is fine."""
    try:
        parse(data if isinstance(data, bytes) else json.dumps(data).encode(), "manifest.json")
    except UserFault as fault:
        assert all(finding.span.file == "manifest.json" for finding in fault.diagnostics)
        return fault.diagnostics
    return ()


def parsed(data):
    """The codes that a manifest gives, none if it is fine."""
    return sorted({finding.code for finding in findings(data)})


def test_what_is_no_manifest():
    for data in (b"", b"[]", b"nonsense", b"\xff\xfe", b"{" * 100_000, b"[" * 100_000, b'{"a": NaN}', b"1", b"null"):
        assert parsed(data) == ["DSV801"]
    # Manifests but for one thing that another reader would let pass.
    assert parsed(TEXT.replace("{", '{"name": "other",', 1).encode()) == ["DSV801"]
    assert parsed(TEXT.replace('"norm_eps": 1e-20', '"norm_eps": Infinity', 1).encode()) == ["DSV801"]
    assert parsed(b'{"format": ' + b"9" * 10_000 + b"}") == ["DSV801"]
    assert parsed({"format": "dsv41c.spec/1"}) == ["DSV801"]
    assert parsed({"format": 7}) == ["DSV801"]


def test_a_manifest_that_is_too_large(tmp_path, monkeypatch):
    (tmp_path / "manifest.json").write_text(TEXT)
    assert read(tmp_path) == TOY.manifest
    monkeypatch.setattr("dsv41c.runtime.manifest_text.MAX_MANIFEST_BYTES", 1000)
    with pytest.raises(UserFault, match="DSV801"):
        read(tmp_path)


def test_versions():
    assert parsed(TEXT.replace(FORMAT, "dsv41c.plan/2.0").encode()) == ["DSV802"]
    assert parsed(TEXT.replace(FORMAT, "dsv41c.plan/1.7").encode()) == []
    newer = json.loads(TEXT) | {"format": "dsv41c.plan/1.7", "colour": "blue"}
    newer["ops"][3]["cost"] = 7
    newer["ops"][3]["more"] = {"deep": [1]}
    newer["runtime"]["speed"] = "high"
    assert parsed(newer) == []
    assert parsed(newer | {"format": "dsv41c.plan/1.0"}) == ["DSV803"]


def test_plans_of_older_minor_versions_read_as_they_were_meant():
    older = json.loads(TEXT) | {"format": "dsv41c.plan/1.0"}
    del older["memory"], older["buffers"]
    for region in older["regions"]:
        del region["calls"]
    manifest = parse(json.dumps(older).encode(), "manifest.json")
    assert manifest.regions == TOY.manifest.regions and manifest.ops == TOY.manifest.ops


def test_the_version_that_made_a_plan_is_named():
    with pytest.raises(UserFault, match=r"made by dsv41c 9\.1"):
        parse(json.dumps({"format": "dsv41c.plan/9.0", "tool": "9.1"}).encode(), "manifest.json")


def test_malformed_entries_are_named_by_path():
    content = json.loads(TEXT)
    content["ops"][3]["stage"] = "0"
    content["ops"][4].pop("span")
    content["values"][0]["colour"] = 1
    content["model"]["dim"] = 1.5
    with pytest.raises(UserFault) as caught:
        parse(json.dumps(content).encode(), "manifest.json")
    messages = [finding.message for finding in caught.value.diagnostics]
    for path in ("ops[3].stage", "ops[4].span", "values[0].colour"):
        assert any(f"`{path}`" in message for message in messages)
    assert {finding.code for finding in caught.value.diagnostics} == {"DSV803"}


def test_a_million_faults_are_not_listed():
    content = json.loads(TEXT) | {"ops": [0] * 100_000}
    with pytest.raises(UserFault) as caught:
        parse(json.dumps(content).encode(), "manifest.json")
    assert len(caught.value.diagnostics) <= 25
    wide = json.loads(TEXT)
    wide["ops"][0]["reads"] = {str(n): n for n in range(100_000)}
    assert parsed(wide) == ["DSV803"]


def first(content, kind):
    return next(op for op in content["ops"] if op["kind"] == kind)


def state(content, kind):
    return next(value for value in content["values"] if value["kind"] == kind and ".before" in value["id"])


def table(content):
    return next(weight for weight in content["weights"] if weight["role"] == "engram_table")


INCONSISTENT = {
    "unknown kind of op": lambda c: first(c, "mix").update(kind="mixer"),
    "port missing": lambda c: first(c, "norm")["reads"].pop("x"),
    "port unknown": lambda c: first(c, "norm")["reads"].update(y="ids"),
    "value unknown": lambda c: first(c, "norm")["reads"].update(x="nothing"),
    "kind of value": lambda c: first(c, "collapse")["reads"].update(pre="ids"),
    "weight unknown": lambda c: first(c, "norm")["weights"].update(weight="nothing"),
    "weight missing": lambda c: first(c, "norm")["weights"].clear(),
    "attribute missing": lambda c: first(c, "norm")["attrs"].clear(),
    "endless iterations": lambda c: first(c, "mix")["attrs"].update(iterations=10**9),
    "huge attribute": lambda c: first(c, "select_topk")["attrs"].update(k=1 << 60),
    "op twice": lambda c: c["ops"].append(c["ops"][0]),
    "value twice": lambda c: c["values"].append(c["values"][0]),
    "value written twice": lambda c: c["ops"][4]["writes"].update(c["ops"][4]["writes"] | {"normed": "normed@L1.attn"}),
    "hostile id": lambda c: c["values"][0].update(id="x\n; import os"),
    "hostile function": lambda c: c["regions"][0].update(function="__import__"),
    "function twice": lambda c: c["regions"][1].update(function="embed"),
    "region op unknown": lambda c: c["regions"][1]["ops"].append("nothing"),
    "region lacks an op": lambda c: c["regions"][1]["ops"].pop(),
    "region reads less": lambda c: c["regions"][1]["reads"].pop(),
    "region writes more": lambda c: c["regions"][1]["writes"].append("logits"),
    "regions out of order": lambda c: c["regions"].reverse(),
    "region before what it reads": lambda c: c["regions"].insert(1, c["regions"].pop(3)),
    "no regions": lambda c: c.update(regions=[]),
    "no row of a prompt": lambda c: c["regions"][-1].update(tail_rows=0),
    "endless rows of a prompt": lambda c: c["regions"][-1].update(tail_rows=1 << 40),
    "fewer rows than a ring keeps": lambda c: c["regions"][-2].update(tail_rows=15),
    "fewer rows than attention reads": lambda c: c["regions"][-3].update(tail_rows=30),
    "fewer rows than are compressed": lambda c: c["regions"][-4].update(tail_rows=500),
    "every row from a few": lambda c: c["regions"][-2].update(tail_rows=None),
    "path that escapes": lambda c: c["files"][0].update(path="../../etc/passwd"),
    "absolute path": lambda c: c["files"][0].update(path="/etc/passwd"),
    "stage file escapes": lambda c: c["stages"][0].update(file="../stage_0.py"),
    "file not listed": lambda c: c["files"].pop(),
    "stages miss layers": lambda c: c["stages"][0].update(end_layer=7),
    "no stages": lambda c: c.update(stages=[]),
    "device of another family": lambda c: c["stages"][0].update(device="cuda:0"),
    "op on no stage": lambda c: c["ops"][0].update(stage=5),
    "absurd pool": lambda c: state(c, "compress_kv").update(shape=[1 << 39, 64], bytes=(1 << 39) * 128),
    "pool beyond the context": lambda c: state(c, "compress_kv").update(shape=[10_000, 64], bytes=1_280_000),
    "window of another size": lambda c: state(c, "window_kv").update(shape=[17, 64], bytes=17 * 128),
    "bytes that lie": lambda c: state(c, "window_kv").update(bytes=1),
    "negative size": lambda c: state(c, "window_kv").update(shape=[16, -64], bytes=-2048),
    "symbolic pool": lambda c: state(c, "window_kv").update(shape=["T", 64]),
    "symbol unknown": lambda c: c["values"][-1].update(shape=["B", "T", "context/0"]),
    "storage unknown": lambda c: state(c, "window_kv").update(storage="nothing"),
    "storage in a circle": lambda c: state(c, "window_kv").update(storage="window_kv@L0"),
    "dtype unknown": lambda c: c["values"][0].update(dtype="f8"),
    "scope": lambda c: c["values"][0].update(scope="session"),
    "endless sessions": lambda c: c["runtime"].update(max_sessions=1 << 40),
    "sessions beyond any memory": lambda c: c["runtime"].update(max_sessions=1 << 30),
    "no sessions": lambda c: c["runtime"].update(max_sessions=0),
    "no buckets": lambda c: c["runtime"].update(decode_buckets=[]),
    "negative token": lambda c: c["tokens"].update(bos=-1),
    "no engram": lambda c: c.update(engram=None),
    "constants missing": lambda c: c["engram"]["layers"][0]["primes"].pop(),
    "prime of zero": lambda c: c["engram"]["layers"][0]["primes"].__setitem__(0, 0),
    "multiplier beyond 64 bits": lambda c: c["engram"]["layers"][0]["multipliers"].__setitem__(0, 1 << 63),
    "weight of no size": lambda c: c["weights"][0].update(shape=[0]),
    "weights without end": lambda c: c["weights"][0].update(count=1 << 50),
    "weight dtype": lambda c: c["weights"][0].update(dtype="i4"),
    "encoding unknown": lambda c: c["weights"][0].update(accepted=["q4_k"]),
    "table in blocks of rows": lambda c: table(c).update(stored="fp8_32x32"),
    "memory that lies": lambda c: c["memory"][0].update(total=1),
    "memory of another device": lambda c: c["memory"].append(c["memory"][0]),
    "buffer of another name": lambda c: c["buffers"][0].update(name="tokens"),
    "buffer without a reader": lambda c: c["buffers"][-1].update(readers=[]),
    "rope attributes": lambda c: next(k for k in c["constants"] if k["id"] == "rope.window").update(attrs={}),
}


def calls(content):
    """The calls of layer 2, by kind."""
    return {call["kind"]: call for call in content["regions"][3]["calls"]}


CALLS = {
    "call of an unknown kind": lambda c: calls(c)["compress"].update(kind="squeeze"),
    "call of another kind": lambda c: calls(c)["compress"].update(kind="norm"),
    "fused call of another kind": lambda c: calls(c)["ffn"].update(kind="attention_output"),
    "call that lacks an op": lambda c: calls(c)["ffn"]["ops"].pop(),
    "call of an op of another region": lambda c: calls(c)["compress"].update(ops=["layers.5.attn.compress"]),
    "op in two calls": lambda c: c["regions"][3]["calls"].append(calls(c)["compress"]),
    "ops wired otherwise": lambda c: (
        calls(c)["ffn"]["ops"].__setitem__(2, calls(c)["attention_input"]["ops"][2])
        or calls(c)["attention_input"]["ops"].__setitem__(2, "layers.2.ffn.norm")
    ),
    "hidden value that is read": lambda c: next(v for v in c["values"] if v["id"] == "normed@L2.ffn")["readers"].append(
        "layers.3.attn.norm"
    ),
}


def test_contradictions_are_found_and_named(update_golden):
    """Each edit gives its own sentences, which the golden file holds for review."""
    lines = []
    for name, edit in (INCONSISTENT | CALLS).items():
        content = json.loads(NATIVE if name in CALLS else TEXT)
        edit(content)
        found = findings(content)
        assert {finding.code for finding in found} == {"DSV804"}, name
        lines += [f"{name}:", *(f"    {finding.message}" for finding in found)]
    text = "\n".join(lines) + "\n"
    if update_golden:
        GOLDEN.write_text(text)
    assert GOLDEN.read_text() == text


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_no_change_of_a_manifest_gives_an_exception(data):
    """Any value of a manifest replaced by another: refused with a code, or fine, never an exception."""
    content = json.loads(data.draw(st.sampled_from([TEXT, NATIVE])))
    place = content
    while True:
        keys = sorted(place) if isinstance(place, dict) else range(len(place))
        if not keys:
            break
        key = data.draw(st.sampled_from(list(keys)))
        deeper = place[key]
        if not isinstance(deeper, dict | list) or data.draw(st.integers(0, 4)) == 0:
            values = st.one_of(
                st.none(), st.integers(), st.text(max_size=5), st.floats(), st.just([]), st.just({}), st.booleans()
            )
            place[key] = data.draw(values)
            break
        place = deeper
    assert set(parsed(content)) <= {"DSV801", "DSV802", "DSV803", "DSV804"}


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200))
def test_no_bytes_give_an_exception(data):
    assert parsed(data) == ["DSV801"]
