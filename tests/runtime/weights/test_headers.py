"""Headers: what a checkpoint may look like, and that nothing else is believed."""

import json
import os
import struct

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dsv41c.codes import TABLE
from dsv41c.diagnostics import UserFault
from dsv41c.runtime.weights.headers import open_checkpoint, read_checkpoint

from ...cost import calls  # noqa: TID252 (tests are no installed package)

ONE = {"a": ("F32", [2], b"\0" * 8)}


def found(path):
    return [d.code for d in read_checkpoint(path).diagnostics]


def test_golden_checkpoint_is_sound(tiny_folder):
    checkpoint = open_checkpoint(tiny_folder)
    assert len(checkpoint.tensors) == 821
    assert checkpoint.bytes == 4750180
    table = checkpoint.tensors["layers.4.engram.embed.weight"]
    assert (table.dtype, table.shape, table.size) == ("F8_E4M3", (630, 32), 630 * 32)


def test_single_file_and_folder_without_index(tmp_path, plans):
    plans.write(tmp_path / "x.safetensors", ONE)
    assert set(open_checkpoint(tmp_path).tensors) == {"a"}
    assert set(open_checkpoint(tmp_path / "x.safetensors").tensors) == {"a"}


def test_links_are_followed(tmp_path, plans):
    """Download caches hold a folder of links to files elsewhere."""
    (tmp_path / "blobs").mkdir()
    (tmp_path / "snapshot").mkdir()
    plans.write(tmp_path / "blobs" / "1f2e", ONE)
    (tmp_path / "snapshot" / "model.safetensors").symlink_to("../blobs/1f2e")
    assert set(open_checkpoint(tmp_path / "snapshot").tensors) == {"a"}


@pytest.mark.parametrize("prefix", ["", "model.", "language_model.", "language_model.model."])
def test_prefixes(tmp_path, plans, prefix):
    names = ["embed.weight", "layers.0.attn.wq_a.weight"]
    plans.write(tmp_path / "x.safetensors", {prefix + name: ("F32", [2], b"\0" * 8) for name in names})
    checkpoint = open_checkpoint(tmp_path)
    assert sorted(checkpoint.tensors) == names
    assert checkpoint.prefix == prefix
    assert checkpoint.tensors[names[0]].stored == prefix + names[0]


def test_mixed_prefixes_are_refused(tmp_path, plans):
    names = ("model.embed.weight", "layers.0.attn.wq_a.weight")
    plans.write(tmp_path / "x.safetensors", {name: ("F32", [2], b"\0" * 8) for name in names})
    assert found(tmp_path) == ["DSV710"]


def test_two_spellings_are_refused(tmp_path, plans):
    names = ("model.embed.weight", "embed.weight")
    plans.write(tmp_path / "x.safetensors", {name: ("F32", [2], b"\0" * 8) for name in names})
    (diagnostic,) = read_checkpoint(tmp_path).diagnostics
    assert diagnostic.code == "DSV710" and "two spellings" in diagnostic.message


def test_towers_may_be_spelled_their_own_way(tmp_path, plans):
    names = ("model.embed.weight", "vision.norm.weight", "mtp.0.norm.weight")
    plans.write(tmp_path / "x.safetensors", {name: ("F32", [2], b"\0" * 8) for name in names})
    assert found(tmp_path) == []


def _one(**changes):
    return {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **changes}}


MALFORMED = {
    "empty": b"",
    "short": b"\x08\0\0",
    "endless length": struct.pack("<Q", 1 << 63) + b"{}",
    "100 MB and one": struct.pack("<Q", 100_000_001) + b"{}",
    "not utf-8": struct.pack("<Q", 4) + b'{"\xff"',
    "not json": struct.pack("<Q", 2) + b"{]",
    "byte order mark": struct.pack("<Q", 5) + b"\xef\xbb\xbf{}",
    "list": struct.pack("<Q", 2) + b"[]",
    "number of 5,000 digits": struct.pack("<Q", 5007) + b'{"a": ' + b"9" * 5000 + b"}",
    "nesting": struct.pack("<Q", 100_000) + b"[" * 100_000,
    "repeated name": struct.pack("<Q", 15) + b'{"a":1, "a": 2}',
}


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_files(tmp_path, case):
    (tmp_path / "x.safetensors").write_bytes(MALFORMED[case])
    assert found(tmp_path) == ["DSV703" if case in ("empty", "short") else "DSV701"]


UNSOUND = {
    "entry no object": ({"a": 3}, "DSV701"),
    "metadata no object": ({"__metadata__": 1, **_one()}, "DSV701"),
    "no dtype": (_one(dtype=None), "DSV702"),
    "six-bit float": (_one(dtype="F6_E2M3"), "DSV702"),
    "negative": (_one(shape=[-2]), "DSV701"),
    "fraction": (_one(shape=[2.0]), "DSV701"),
    "truth": (_one(shape=[True]), "DSV701"),
    "no list": (_one(shape="2"), "DSV701"),
    "rank": (_one(shape=[1] * 1000), "DSV701"),
    "huge": (_one(shape=[1 << 61, 1 << 61]), "DSV704"),
    "backwards": (_one(data_offsets=[8, 0]), "DSV701"),
    "three offsets": (_one(data_offsets=[0, 4, 8]), "DSV701"),
    "too small": (_one(data_offsets=[0, 4]), "DSV704"),
    "half a byte": (_one(dtype="F4", shape=[3], data_offsets=[0, 8]), "DSV704"),
    "hole": (_one(data_offsets=[8, 16]), "DSV704"),
    "rest": (_one(shape=[1], data_offsets=[0, 4]), "DSV704"),
    "overlap": ({**_one(), "b": {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]}}, "DSV704"),
    "same bytes": ({**_one(), "b": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}, "DSV704"),
    "line break in a name": ({"a\nb": _one()["a"]}, "DSV701"),
    "half a surrogate": ({"\ud800": _one()["a"]}, "DSV701"),
}


@pytest.mark.parametrize("case", UNSOUND)
def test_unsound_entries(tmp_path, plans, case):
    entries, code = UNSOUND[case]
    size = 16 if case == "hole" else 12 if case == "overlap" else 8
    (tmp_path / "x.safetensors").write_bytes(plans.frame(entries) + b"\0" * size)
    assert found(tmp_path) == [code]


def test_unknown_dtype_names_tensor_dtype_and_shard(tmp_path, plans):
    (tmp_path / "x.safetensors").write_bytes(plans.frame(_one(dtype="F6_E2M3")) + b"\0" * 8)
    (diagnostic,) = read_checkpoint(tmp_path).diagnostics
    assert all(word in diagnostic.message for word in ("`a`", "F6_E2M3", "x.safetensors"))


def _copy(tiny_folder, tmp_path):
    for file in tiny_folder.iterdir():
        if "safetensors" in file.name:
            (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path / "model-00002-of-00002.safetensors"


@pytest.mark.parametrize("cut", ["last byte", "last tensor", "header", "length"])
def test_truncated_shard(tiny_folder, tmp_path, cut):
    shard = _copy(tiny_folder, tmp_path)
    data = shard.read_bytes()
    last = 6144  # the last tensor is an expert of 96 x 64 bytes
    keep = {"last byte": len(data) - 1, "last tensor": len(data) - last, "header": 1000, "length": 3}[cut]
    shard.write_bytes(data[:keep])
    (diagnostic,) = read_checkpoint(tmp_path).diagnostics
    assert diagnostic.code == "DSV703"
    if cut.startswith("last"):
        assert f"header says {len(data)} bytes, file has {keep} ({len(data) - keep} missing)" in diagnostic.message
        assert "first tensor affected: `layers.9.ffn.experts.7.w3.weight`" in diagnostic.message


def test_every_damaged_shard_in_one_report(tiny_folder, tmp_path):
    shard = _copy(tiny_folder, tmp_path)
    first = tmp_path / "model-00001-of-00002.safetensors"
    shard.write_bytes(shard.read_bytes()[:-5])
    first.write_bytes(b"<html>not what you asked for</html>")
    with pytest.raises(UserFault) as fault:
        open_checkpoint(tmp_path)
    assert sorted(d.code for d in fault.value.diagnostics) == ["DSV701", "DSV703"]


BAD_INDEXES = {
    "not json": "{",
    "no map": "{}",
    "map no object": '{"weight_map": []}',
    "empty map": '{"weight_map": {}}',
    "file no text": '{"weight_map": {"a": 3}}',
    "repeated": '{"weight_map": {"a": "x.safetensors", "a": "y.safetensors"}}',
}


@pytest.mark.parametrize("case", BAD_INDEXES)
def test_malformed_index(tmp_path, case):
    (tmp_path / "model.safetensors.index.json").write_text(BAD_INDEXES[case])
    assert found(tmp_path) == ["DSV705"]


@pytest.mark.parametrize(
    "name",
    [
        "/etc/passwd",
        "../x.safetensors",
        "sub/x.safetensors",
        "..",
        "",
        "C:x.safetensors",
        "x\\y.safetensors",
        "\0.safetensors",
    ],
)
def test_index_cannot_leave_its_folder(tmp_path, plans, name):
    folder = tmp_path / "folder"
    (folder / "sub").mkdir(parents=True)
    plans.write(tmp_path / "x.safetensors", ONE)
    plans.write(folder / "sub" / "x.safetensors", ONE)
    plans.write_index(folder, {name: ["a"]})
    checkpoint = read_checkpoint(folder)
    assert [d.code for d in checkpoint.diagnostics] == ["DSV706"]
    assert not checkpoint.tensors


def test_absent_shards(tmp_path, plans):
    plans.write(tmp_path / "x.safetensors", ONE)
    plans.write_index(tmp_path, {"x.safetensors": ["a"], "y.safetensors": ["b"], "z.safetensors": ["c"]})
    checkpoint = read_checkpoint(tmp_path)
    assert [d.code for d in checkpoint.diagnostics] == ["DSV707"]
    assert checkpoint.damaged == {"b", "c"}


def test_index_that_disagrees(tmp_path, plans):
    two = ("F32", [2], b"\0" * 8)
    plans.write(tmp_path / "x.safetensors", {"a": two, "unlisted": two})
    plans.write(tmp_path / "y.safetensors", {"b": two})
    plans.write_index(tmp_path, {"x.safetensors": ["a", "b"], "y.safetensors": ["nowhere"]})
    messages = [d.message for d in read_checkpoint(tmp_path).diagnostics]
    assert len(messages) == 3
    assert "`b` in `y.safetensors`, not `x.safetensors`" in messages[0]
    assert "`nowhere`" in messages[1] and "`unlisted`" in messages[2]


def test_tensor_in_two_shards(tmp_path, plans):
    plans.write(tmp_path / "x.safetensors", ONE)
    plans.write(tmp_path / "y.safetensors", ONE)
    assert found(tmp_path) == ["DSV709"]


@pytest.mark.parametrize("path", ["nothing", "empty", "text.txt", "\0"])
def test_no_checkpoint(tmp_path, path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.txt").write_text("hello")
    assert found(tmp_path / path) == ["DSV700"]
    if path in ("empty", "text.txt"):  # what else would have done
        assert ".safetensors or .gguf file" in read_checkpoint(tmp_path / path).diagnostics[0].message


def test_a_pipe_does_not_hang(tmp_path):
    os.mkfifo(tmp_path / "x.safetensors")
    assert found(tmp_path) == ["DSV701"]


def shards_of(plans, folder, count):
    """Shards of 2,002 tensors, as files without data blocks: 48 are the size of the Flash release."""
    folder.mkdir()
    shards = {}
    for shard in range(count):
        file = f"model-{shard:05d}.safetensors"
        tensors = {f"layers.{shard}.ffn.experts.{n}.w1.weight": ("I8", [2304, 2560], 2304 * 2560) for n in range(2002)}
        header = plans.header(tensors)
        (folder / file).write_bytes(header)
        os.truncate(folder / file, len(header) + 2002 * 2304 * 2560)
        shards[file] = list(tensors)
    plans.write_index(folder, shards)
    return folder


def test_a_release_of_96_000_tensors(tmp_path, plans):
    assert len(open_checkpoint(shards_of(plans, tmp_path / "all", 48)).tensors) == 96_096


def test_reading_grows_with_the_shards(tmp_path, plans):
    one, eight = (shards_of(plans, tmp_path / str(count), count) for count in (1, 8))
    assert calls(lambda: open_checkpoint(eight)) < 10 * calls(lambda: open_checkpoint(one))


def _judge(path):
    """Every finding has a code of the table and can be printed; nothing is raised but UserFault."""
    checkpoint = read_checkpoint(path)
    for diagnostic in checkpoint.diagnostics:
        assert diagnostic.code in TABLE
        diagnostic.message.encode()
    try:
        open_checkpoint(path)
    except UserFault:
        assert checkpoint.diagnostics


relaxed = settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
anything = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
)
entries = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["F32", "F4", "I8", "F8_E8M0", "F6_E2M3"]) | anything,
        "shape": st.lists(st.integers(-1, 1 << 70), max_size=3) | anything,
        "data_offsets": st.lists(st.integers(-1, 64), min_size=2, max_size=2) | anything,
    }
)
names = st.sampled_from(["a", "model.a", "layers.0.x", "__metadata__", "language_model.a"]) | st.text(max_size=6)


@relaxed
@given(st.binary(max_size=64))
def test_fuzz_bytes(tmp_path, data):
    (tmp_path / "x.safetensors").write_bytes(data)
    _judge(tmp_path)


@relaxed
@given(st.dictionaries(names, entries | anything, max_size=5), st.binary(max_size=64))
def test_fuzz_headers(tmp_path, plans, document, data):
    (tmp_path / "x.safetensors").write_bytes(plans.frame(document) + data)
    _judge(tmp_path)


@relaxed
@given(
    anything
    | st.fixed_dictionaries(
        {"weight_map": st.dictionaries(names, st.sampled_from(["x.safetensors", "../x", "y.safetensors"]) | anything)}
    )
)
def test_fuzz_indexes(tmp_path, plans, document):
    plans.write(tmp_path / "x.safetensors", ONE)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(document))
    _judge(tmp_path)
