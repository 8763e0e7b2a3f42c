"""Repacked checkpoints: the same values in other places, written whole or not at all."""

import json
import math
import random
import resource
import shutil
import tracemalloc
from collections import namedtuple
from itertools import pairwise

import pytest
import torch
from golden_tiny import ORACLE, TINY, plan
from safetensors.torch import load_file

from dsv41c.diagnostics import UserFault
from dsv41c.runtime.device.tensors import stacked
from dsv41c.runtime.repack import checkpoint as module
from dsv41c.runtime.repack import copy, repack
from dsv41c.runtime.repack.check import compare
from dsv41c.runtime.weights import row_source
from dsv41c.runtime.weights.bind import bind
from dsv41c.runtime.weights.headers import open_checkpoint, read_checkpoint
from dsv41c.runtime.weights.match import match

from . import other_layouts as layouts
from .test_variants import logits, same

EXPERTS = ("stacked", "gate_up", "interleaved", "separate")
SIDE_FILES = {"config.json", "tokenizer.json", "tokenizer_config.json"}


@pytest.fixture(scope="module")
def expected():
    return logits(plan(), TINY)


def raw(folder):
    """Every tensor as the format's own reader gives it: {name: (shape, bytes)}."""
    found = {}
    for file in folder.glob("*.safetensors"):
        found |= {
            n: (list(t.shape), t.contiguous().view(torch.uint8).numpy().tobytes()) for n, t in load_file(file).items()
        }
    return found


def bytes_of(tensors):
    return {name: (list(shape), data) for name, (_, shape, data) in tensors.items()}


@pytest.mark.parametrize("experts", EXPERTS)
def test_values_stay(experts, tmp_path, expected):
    report = repack(plan().manifest, TINY, tmp_path / "new", experts=experts)
    elements = sum(t.numel() * (2 if t.dtype == torch.int8 else 1) for t in _dense().values())
    assert report.compared == elements and report.read == 821
    assert {file.name for file in (tmp_path / "new").iterdir()} >= SIDE_FILES
    one, other = bind(plan().manifest, TINY), bind(plan().manifest, tmp_path / "new")
    assert all(same(one[name], other[name]) for name in one)
    assert all(map(torch.equal, logits(plan(), tmp_path / "new"), expected))


def _dense():
    found = {name: t for file in TINY.glob("*.safetensors") for name, t in load_file(file).items()}
    return {name: t for name, t in found.items() if not name.endswith(".scale")}


def test_bytes_are_where_they_are_said_to_be(tmp_path, tiny_data):
    """The whole result, made another way, byte by byte."""
    wanted = {
        "stacked": layouts.stacked(tiny_data),
        "gate_up": layouts.gate_up(tiny_data, base="layers.{layer}.ffn.experts.", endings=(".weight", ".scale")),
        "interleaved": layouts.gate_up(
            tiny_data, layouts.alternating, base="layers.{layer}.ffn.experts.", endings=(".weight", ".scale")
        ),
        "separate": tiny_data,
    }
    for experts, tensors in wanted.items():
        repack(plan().manifest, TINY, tmp_path / experts, experts=experts, check=False)
        named = {name.replace("down_proj", "w2"): t for name, t in layouts.rows_of_codes_and_scales(tensors).items()}
        assert raw(tmp_path / experts) == bytes_of(named), experts


@pytest.mark.parametrize("experts", EXPERTS[:3])
def test_there_and_back(experts, tmp_path, tiny_data):
    repack(plan().manifest, TINY, tmp_path / "new", experts=experts)
    repack(plan().manifest, tmp_path / "new", tmp_path / "back", experts="separate", tables="separate")
    assert raw(tmp_path / "back") == bytes_of(tiny_data)


def test_from_other_names_and_nibbles(tmp_path, plans, tiny_data):
    """A checkpoint as Transformers names it, with the high nibble first, which no kernel reads."""
    old = tmp_path / "old"
    old.mkdir()
    tensors = layouts.nibbles_swapped(layouts.transformers(tiny_data, layouts.alternating))
    plans.write(old / "x.safetensors", tensors)
    plans.write_index(old, {"x.safetensors": list(tensors)})
    index = old / "model.safetensors.index.json"
    said = {"dsv41c.nibbles": "high_first", "dsv41c.gate_up": "gate_up_interleaved"}
    index.write_text(json.dumps({**json.loads(index.read_text()), "metadata": said}))
    with pytest.raises(UserFault):
        bind(plan().manifest, old)
    repack(plan().manifest, old, tmp_path / "new")
    one, other = bind(plan().manifest, TINY), bind(plan().manifest, tmp_path / "new")
    assert all(same(one[name], other[name]) for name in one)


def test_a_layer_is_read_in_one_piece(tmp_path):
    """What 8 reads of experts were is one, of bytes that follow each other; a table's row is one too."""
    for experts in EXPERTS[:3]:
        repack(plan().manifest, TINY, tmp_path / experts, experts=experts)
        bound = bind(plan().manifest, tmp_path / experts)
        for matrix, has_whole in (("w1", experts == "stacked"), ("w2", True)):
            found = bound[f"layers.3.experts_{matrix}"]
            assert (found.whole is not None) == has_whole
            piece = stacked(found, torch.device("cpu"))
            for expert, item in enumerate(found):
                assert same(item, piece[expert])
            if has_whole:
                assert found.whole.codes.is_contiguous() and found.whole.scale.is_contiguous()
        table = open_checkpoint(tmp_path / experts).tensors
        codes, scale = (table[f"layers.4.engram.embed.{part}"] for part in ("weight", "scale"))
        assert codes.pitch == scale.pitch == 33 and scale.offset == codes.offset + 32


def test_a_row_of_a_table_is_one_read(tmp_path, monkeypatch):
    """Codes and scales of a row from the disk: two reads of the release's files, one of repacked ones."""
    repack(plan().manifest, TINY, tmp_path / "new")
    reads, ids = [], torch.tensor([5, 461, 0])
    whole = row_source.os.preadv
    monkeypatch.setattr(row_source.os, "preadv", lambda *given: reads.append(given) or whole(*given))
    disk, rows = plan(ORACLE, ("storage: mapped", "storage: disk")).manifest, {}
    for folder, wanted in ((TINY, 2), (tmp_path / "new", 1)):
        table = bind(disk, folder)["layers.1.engram_table"]
        reads.clear()
        rows[wanted] = table.rows(ids)
        assert len(reads) == wanted * len(ids)
    assert torch.equal(rows[1], rows[2])


def test_faults_in_a_merged_tensor_are_found_before_it_is_copied(tmp_path):
    repack(plan().manifest, TINY, tmp_path / "new", experts="stacked", check=False)
    header = open_checkpoint(tmp_path / "new").tensors["layers.3.ffn.experts.5.w1.scale"]
    with open(tmp_path / "new" / header.file, "r+b") as file:
        file.seek(header.offset)
        file.write(b"\xff")
    with pytest.raises(UserFault) as caught:
        bind(plan().manifest, tmp_path / "new")
    assert "(expert 5)` element [0, 0] is 255" in caught.value.diagnostics[0].message


def test_files_by_stage_and_size(tmp_path):
    two = plan(ORACLE, ('["cpu:0"], layer_ends: [10]', '["cpu:0", "cpu:0"], layer_ends: [4, 10]'))
    report = repack(two.manifest, TINY, tmp_path / "new", shard_bytes=400_000)
    found = open_checkpoint(tmp_path / "new")
    assert report.shards == len(found.files) > 10
    for file in found.files:
        inside = [tensor for tensor in found.tensors.values() if tensor.file == file]
        layers = {int(t.name.split(".")[1]) for t in inside if t.name.startswith("layers.") and "bias_vl" not in t.name}
        assert not (layers & set(range(4)) and layers & set(range(4, 10)))
        assert sum(t.size for t in inside) <= 400_000 or len({t.stored.partition(" ")[0] for t in inside}) == 1
    index = json.loads((tmp_path / "new" / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == report.bytes and len(index["weight_map"]) == report.tensors


def test_data_is_aligned(tmp_path):
    repack(plan().manifest, TINY, tmp_path / "new")
    for file in (tmp_path / "new").glob("*.safetensors"):
        data = file.read_bytes()
        start = 8 + int.from_bytes(data[:8], "little")
        assert start % 4096 == 0
        entries = json.loads(data[8:start])
        for name, entry in entries.items():
            if name != "__metadata__":
                begin, end = entry["data_offsets"]
                assert begin % math.gcd(end - begin, 4096) == 0, name


def test_experts_that_are_stored_unlike_stay_as_they_are(tmp_path, changed, tiny_data):
    """A matrix of one expert as BF16: its layer's matrix cannot be one tensor, the others are."""
    name = "layers.3.ffn.experts.2.w1."
    values = bind(plan().manifest, TINY)["layers.3.experts_w1"][2]
    plain = torch.zeros(values.codes.shape[0], values.codes.shape[1] * 2, dtype=torch.bfloat16)
    path = changed({name + "scale": None, name + "weight": ("BF16", list(plain.shape), bytes(plain.nbytes))})
    for experts in EXPERTS[:3]:
        repack(plan().manifest, path, tmp_path / experts, experts=experts)
        found = raw(tmp_path / experts)
        assert name + "weight" in found and "layers.3.ffn.experts.w2.weight" in found
        bound = bind(plan().manifest, tmp_path / experts)["layers.3.experts_w1"]
        assert torch.equal(bound[2], plain) and same(bound[3], bind(plan().manifest, TINY)["layers.3.experts_w1"][3])


def test_fp8_experts_share_no_block(tmp_path, plans):
    """Gate and up in 32 x 32 blocks may follow each other, but not alternate; nor follow with half a block."""
    for rows, encoding, kept in (
        (64, "fp8_32x32", {"gate_up"}),
        (48, "fp8_32x32", set()),
        (64, "fp8_row32", {"gate_up", "interleaved"}),
    ):
        old = tmp_path / f"{rows}{encoding}"
        old.mkdir()
        sizes = {"dim": 64, "experts": 2, "inter_dim": rows}
        stored = {**plans.STORED, "experts": encoding}
        manifest = plans.manifest([plans.entry(f"experts_{w}", sizes, 0, stored=stored) for w in ("w1", "w2", "w3")])
        tensors = {}
        for expert in range(2):
            for matrix, shape in (("w1", [rows, 64]), ("w2", [64, rows]), ("w3", [rows, 64])):
                grid = [-(-shape[0] // 32) if encoding == "fp8_32x32" else shape[0], -(-shape[1] // 32)]
                place = f"layers.0.ffn.experts.{expert}.{matrix}."
                tensors[place + "weight"] = (
                    "F8_E4M3",
                    shape,
                    random.Random(place).randbytes(shape[0] * shape[1]).replace(b"\x7f", b"\0").replace(b"\xff", b"\0"),
                )
                tensors[place + "scale"] = ("F8_E8M0", grid, bytes(120 + n % 9 for n in range(grid[0] * grid[1])))
        plans.write(old / "x.safetensors", tensors)
        for experts in EXPERTS[:3]:
            new = tmp_path / f"{rows}{encoding}{experts}"
            repack(manifest, old, new, experts=experts)
            assert ("layers.0.ffn.experts.gate_up_proj.weight" in raw(new)) == (experts in kept)
            one, other = bind(manifest, old), bind(manifest, new)
            assert all(same(one[name], other[name]) for name in one)


def codes(caught):
    return [finding.code for finding in caught.value.diagnostics]


def fails(tmp_path, code, **options):
    """Repacking fails with a code, and leaves nothing behind."""
    before = sorted(tmp_path.iterdir())
    with pytest.raises(UserFault) as caught:
        repack(plan().manifest, options.pop("old", TINY), tmp_path / "new", **options)
    assert codes(caught) == [code] and sorted(tmp_path.iterdir()) == before
    return caught.value.diagnostics[0]


def test_a_full_disk_leaves_nothing(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, hard))
    try:
        assert "cannot be written" in fails(tmp_path, "DSV751").message
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_small_disk_is_told_before(tmp_path, monkeypatch):
    usage = namedtuple("usage", "free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(4_000_000))
    monkeypatch.setattr(module, "_write", None)
    assert "takes 4.6 MiB and the disk has 3.8 MiB free" in fails(tmp_path, "DSV751").message


def test_a_source_that_changes(tmp_path, monkeypatch):
    old = tmp_path / "old"
    shutil.copytree(TINY, old)
    whole = module._write

    def shorten(*arguments):
        last = max(old.glob("*.safetensors"))
        last.write_bytes(last.read_bytes()[:-100])
        whole(*arguments)

    monkeypatch.setattr(module, "_write", shorten)
    assert "ends at byte" in fails(tmp_path, "DSV732", old=old).message


def test_a_source_that_goes(tmp_path, monkeypatch):
    old = tmp_path / "old"
    shutil.copytree(TINY, old)
    whole = module._write

    def remove(*arguments):
        for file in old.glob("*.safetensors"):
            file.unlink()
        whole(*arguments)

    monkeypatch.setattr(module, "_write", remove)
    with pytest.raises(UserFault) as caught:
        repack(plan().manifest, old, tmp_path / "new")
    assert codes(caught) == ["DSV732"] and not (tmp_path / "new").exists()


@pytest.mark.parametrize("there", ["file", "full folder", "link"])
def test_nothing_is_replaced(there, tmp_path):
    new = tmp_path / "new"
    if there == "file":
        new.write_text("mine")
    elif there == "link":
        (tmp_path / "elsewhere").mkdir()
        new.symlink_to(tmp_path / "elsewhere")
    else:
        new.mkdir()
        (new / "mine").write_text("mine")
    fails(tmp_path, "DSV751")


def test_a_checkpoint_that_does_not_fit_the_plan(tmp_path, changed):
    fails(tmp_path, "DSV720", old=changed({"head.weight": None}))


def test_every_changed_byte_is_found(tmp_path):
    """One bit anywhere in the result."""
    repack(plan().manifest, TINY, tmp_path / "new", experts="interleaved", check=False)
    found = read_checkpoint(TINY)
    matching = match(plan().manifest, found)
    assert compare(found, matching, tmp_path / "new", swapped=False) > 4_000_000
    places = random.Random(7)
    for _ in range(12):
        file = places.choice(sorted((tmp_path / "new").glob("*.safetensors")))
        data = bytearray(file.read_bytes())
        start = 8 + int.from_bytes(data[:8], "little")
        at = places.randrange(start, len(data))
        data[at] ^= 1 << places.randrange(8)
        whole = file.read_bytes()
        file.write_bytes(data)
        with pytest.raises(UserFault) as caught:
            compare(found, matching, tmp_path / "new", swapped=False)
        assert codes(caught) == ["DSV756"]
        file.write_bytes(whole)


def test_a_check_that_fails_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(copy, "swapped", lambda codes: codes)
    whole = module.outputs
    monkeypatch.setattr(module, "outputs", lambda *a: [(s, o._replace(runs=o.runs[::-1])) for s, o in whole(*a)])
    assert "differs in rows" in fails(tmp_path, "DSV756").message


def test_memory_is_that_of_a_piece(tmp_path, monkeypatch):
    monkeypatch.setattr(copy, "PIECE", 1 << 16)
    manifest = plan().manifest
    found = read_checkpoint(TINY)
    tracemalloc.start()
    try:
        repack(manifest, found, tmp_path / "new", check=False)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    headers = 1_500_000  # what is known of 821 tensors, and the JSON of it
    assert peak < headers + 8 * (1 << 16), peak


def test_progress_ends_at_the_whole(tmp_path):
    told = []
    report = repack(plan().manifest, TINY, tmp_path / "new", progress=lambda *now: told.append(now))
    for what in ("writing", "comparing"):
        steps = [done for name, done, total in told if name == what and total == report.bytes]
        assert all(one <= other for one, other in pairwise(steps)) and steps
    assert ("writing", report.bytes, report.bytes) in told
