"""GGUF headers and split sets: what is sound is read, and nothing else is believed, whatever the bytes say."""

import os
import random
import struct
import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
from gguf import GGUFReader

from dsv41c.diagnostics import has_errors
from dsv41c.runtime.weights.gguf import header as of_header
from dsv41c.runtime.weights.gguf import reader as of_reader
from dsv41c.runtime.weights.gguf.header import RawTensor, read_file
from dsv41c.runtime.weights.headers import read_checkpoint

from . import gguf_made as made

U32, STRING, ARRAY, U8, F32, U64 = 4, 8, 9, 0, 6, 10
MUTATIONS = int(os.environ.get("DSV41C_TEST_MUTATIONS", "1500"))


def text(value):
    data = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(data)) + data


def key(name, kind, value):
    return text(name) + struct.pack("<I", kind) + value


def tensor(name="token_embd.weight", dims=(32, 2), kind=0, offset=0):
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


ARCH = key("general.architecture", STRING, text("deepseek41"))


TENSORS = (tensor(),)


def file(keys=(ARCH,), tensors=TENSORS, data=256, *, version=3, counts=None, alignment=32, start=b"GGUF"):
    """Bytes of a file made by hand: the same layout, by other code than the package's."""
    number = counts or (len(tensors), len(keys))
    head = start + struct.pack("<IQQ", version, *number) + b"".join(keys) + b"".join(tensors)
    return head + b"\0" * (-len(head) % alignment) + b"\1" * data


def read(folder, data, name="x.gguf"):
    (folder / name).write_bytes(data)
    return read_file(folder, name)


def one(found):
    (finding,) = found.findings
    return finding.code, finding.message


def test_a_file_by_hand_is_read_as_the_package_reads_it(tmp_path):
    keys = (
        ARCH,
        key("general.alignment", U32, struct.pack("<I", 64)),
        key("a", ARRAY, struct.pack("<IQ3Q", U64, 3, 1, 2, 1 << 63)),
        key("b", ARRAY, struct.pack("<IQ", STRING, 2) + text("x") + text("ü")),
        key("c", F32, struct.pack("<f", 0.1)),
        key("d", U8, b"\7"),
    )
    tensors = (tensor("one", (32, 3), 2, 0), tensor("two", (3,), 0, 64), tensor("three", (2, 3, 4), 30, 128))
    found = read(tmp_path, file(keys, tensors, 128 + 48, alignment=64))
    assert not found.findings and found.readable
    theirs = GGUFReader(tmp_path / "x.gguf")
    for tensor_, other in zip(found.tensors, theirs.tensors, strict=True):
        assert (tensor_.name, list(tensor_.dims), tensor_.type.name) == (
            other.name,
            list(other.shape),
            other.tensor_type.name,
        )
        assert (tensor_.offset, tensor_.size) == (other.data_offset, other.n_bytes)
    for name, value in found.keys.items():
        told = list(value.data) if value.is_array else value.data
        assert told == theirs.fields[name].contents()


BROKEN = {
    "other magic": (file(start=b"GGML"), "DSV760", "byte 0: begins with"),
    "version 1": (file(version=1), "DSV760", "version 1; read are 2 and 3"),
    "big-endian": (file(version=3 << 24), "DSV760", "version 3 in big-endian order"),
    "endless tensors": (file(counts=(1 << 60, 1)), "DSV760", "tensors; 1,048,576 are allowed"),
    "endless keys": (file(counts=(1, 1 << 60)), "DSV760", "keys; 65,536 are allowed"),
    "more tensors than there are": (file(data=0, counts=(5, 1), alignment=1), "DSV703", "ends inside its header"),
    "a key twice": (file((ARCH, ARCH)), "DSV760", "`general.architecture` is there twice"),
    "a key without a name": (file((ARCH, key("", U32, b"\0" * 4))), "DSV760", "is empty or unprintable"),
    "a long name": (file((ARCH, key("k" * 2000, U32, b"\0" * 4))), "DSV760", "claims 2,000 bytes; 1,024 are allowed"),
    "a name that is no text": (file((ARCH, key(b"\xff\xfe", U32, b"\0" * 4))), "DSV760", "is not UTF-8"),
    "an endless text": (
        file((ARCH, text("k") + struct.pack("<IQ", STRING, 1 << 62))),
        "DSV760",
        "claims 4,611,686,018,427,387,904 bytes",
    ),
    "a text beyond the file": (file((ARCH, text("k") + struct.pack("<IQ", STRING, 90_000))), "DSV703", "takes 90,000"),
    "an unknown type": (file((ARCH, key("k", 13, b""))), "DSV760", "type 13, which the format does not have"),
    "an array of arrays": (
        file((ARCH, key("k", ARRAY, struct.pack("<IQ", ARRAY, 1 << 40)))),
        "DSV760",
        "arrays hold numbers or strings",
    ),
    "an endless array": (
        file((ARCH, key("k", ARRAY, struct.pack("<IQ", U64, 1 << 61)))),
        "DSV760",
        "are allowed in all",
    ),
    "endless strings": (file((ARCH, key("k", ARRAY, struct.pack("<IQ", STRING, 1 << 61)))), "DSV703", "claims"),
    "no alignment": (
        file((ARCH, key("general.alignment", U32, struct.pack("<I", 0)))),
        "DSV760",
        "`general.alignment` is 0, which is no power of two",
    ),
    "a crooked alignment": (file((ARCH, key("general.alignment", U32, struct.pack("<I", 48)))), "DSV760", "is 48"),
    "an alignment that is a text": (file((ARCH, key("general.alignment", STRING, text("x")))), "DSV760", "is x"),
    "no dimensions": (file(tensors=(tensor(dims=()),)), "DSV760", "has 0 dimensions"),
    "many dimensions": (file(tensors=(tensor(dims=(1,) * 5),)), "DSV760", "has 5 dimensions"),
    "a tensor twice": (
        file(tensors=(tensor(), tensor(offset=256)), data=512),
        "DSV709",
        "`token_embd.weight` is there twice",
    ),
    "a private type": (file(tensors=(tensor(kind=43),)), "DSV763", "type 43, which forks use"),
    "a gap of types": (file(tensors=(tensor(kind=4),)), "DSV763", "type 4, which is unknown here"),
    "no rows": (file(tensors=(tensor(dims=(32, 0)),)), "DSV704", "which no file holds"),
    "rows whose product overflows": (file(tensors=(tensor(dims=(1 << 33, 1 << 33)),)), "DSV704", "which no file holds"),
    "half a block": (file(tensors=(tensor(dims=(40, 2), kind=8),)), "DSV704", "Q8_0 stores 32 at a time"),
    "a crooked offset": (file(tensors=(tensor(offset=4),)), "DSV704", "no multiple of 32"),
    "an offset beyond the file": (file(tensors=(tensor(offset=1 << 62),)), "DSV704", "belong to no tensor"),
    "overlap": (file(tensors=(tensor("a"), tensor("b", offset=32)), data=288), "DSV704", "overlaps `a` (224 bytes)"),
    "a hole": (file(tensors=(tensor("a"), tensor("b", offset=512)), data=768), "DSV704", "256 bytes before tensor `b`"),
    "a tail": (file(data=256 + 64), "DSV704", "64 bytes after the last tensor"),
    "a byte short": (file(data=255), "DSV703", "(1 missing); first tensor affected: `token_embd.weight`"),
    "nothing": (b"", "DSV703", "ends inside its header"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_not_sound_is_told_by_its_place(name, tmp_path):
    data, code, said = BROKEN[name]
    found = read(tmp_path, data)
    codes = {finding.code for finding in found.findings}
    assert code in codes and codes <= {code, "DSV703"}, found.findings
    assert any(said in finding.message for finding in found.findings), found.findings
    assert has_errors(read_checkpoint(tmp_path / "x.gguf").diagnostics)


def test_headers_beyond_the_limit_are_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(of_header, "MAX_HEADER_BYTES", 400)
    assert one(read(tmp_path, file((ARCH, key("k", STRING, text("x" * 300))))))[0] == "DSV760"


def test_what_is_no_file(tmp_path):
    os.mkfifo(tmp_path / "x.gguf")
    assert one(read_file(tmp_path, "x.gguf"))[0] == "DSV760"
    (tmp_path / "y.gguf").symlink_to("y.gguf")
    assert one(read_file(tmp_path, "y.gguf"))[0] == "DSV700"
    assert [found.code for found in read_checkpoint(tmp_path / "none.gguf").diagnostics] == ["DSV700"]


def test_what_is_shown_of_hostile_names_is_fit_to_be_shown(tmp_path):
    found = read(tmp_path, file((ARCH, key("\x1b[31m" + "k" * 900, U32, b"\0" * 4))))
    assert one(found)[1].isprintable() and len(one(found)[1]) < 400


def test_experts_are_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(of_reader, "MAX_TENSORS", 20)
    stacked = made.as_type(np.zeros((12, 4, 32)), "F32")
    assert codes(made.write(tmp_path / "x.gguf", {"blk.0.ffn_up_exps.weight": stacked}, {})) == []
    two = {"blk.0.ffn_up_exps.weight": stacked, "blk.0.ffn_gate_exps.weight": stacked}
    assert codes(made.write(tmp_path / "x.gguf", two, {})) == ["DSV760"]


# --- split sets -------------------------------------------------------------------------------------------------------

ONE = made.as_type(np.zeros((4, 32)), "BF16")
PARTS = {"token_embd.weight": ONE, "output.weight": ONE, "output_norm.weight": made.as_type(np.zeros(32), "F32")}


def codes(path):
    return [found.code for found in read_checkpoint(path).diagnostics]


def test_a_part_that_is_not_there(tmp_path):
    first, second, third = made.split(tmp_path, PARTS, {})
    assert codes(first) == []
    second.unlink()
    (found,) = read_checkpoint(third).diagnostics
    assert found.code == "DSV707" and "1 part of 3" in found.message and "`model-00002-of-00003.gguf`" in found.message
    second.write_bytes(third.read_bytes())
    assert "DSV770" in codes(first)
    first.unlink()
    assert codes(second) == ["DSV707", "DSV770", "DSV709"]


def test_parts_that_hold_other_tensors_than_they_say(tmp_path):
    first, _, third = made.split(tmp_path, PARTS, {})
    extra = {"split.no": (2, "add_uint16"), "split.count": (3, "add_uint16"), "split.tensors.count": (3, "add_int32")}
    made.write(third, {"token_embd.weight": ONE}, {}, extra=extra)
    assert codes(first) == ["DSV709"]
    made.write(third, {}, {}, extra=extra)
    assert codes(first) == ["DSV770"]


def test_a_folder_of_several_models_is_ambiguous(tmp_path):
    made.write(tmp_path / "a.gguf", PARTS, {})
    assert codes(tmp_path) == []
    made.write(tmp_path / "b.gguf", PARTS, {})
    (found,) = read_checkpoint(tmp_path).diagnostics
    assert found.code == "DSV700" and "holds 2 GGUF models: `a.gguf`, `b.gguf`" in found.message


def test_names_that_look_like_parts_and_are_none(tmp_path):
    for name in ("x-00000-of-00002.gguf", "x-00003-of-00002.gguf", "x-00001-of-00000.gguf"):
        folder = tmp_path / name
        folder.mkdir()
        assert codes(made.write(folder / name, PARTS, {})) == []


def test_a_whole_file_needs_no_split_keys(tmp_path):
    assert codes(made.write(tmp_path / "x-00001-of-00001.gguf", PARTS, {})) == []


# --- mutations --------------------------------------------------------------------------------------------------------


def mutated(data, header, rng):
    """The bytes with a few changes, most of them in the header: numbers that lie, cuts, copies, noise."""
    data = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4))):
        place = rng.randrange(min(header, len(data)) or 1)
        kind = rng.randrange(7)
        if kind == 0:
            data[place : place + 8] = struct.pack("<Q", rng.choice((0, 1, 2**31, 2**32, 2**62, 2**63, 2**64 - 1)))
        elif kind == 1:
            data[place : place + 4] = struct.pack("<I", rng.choice((0, 1, 4, 8, 9, 43, 0xFFFF, 2**32 - 1)))
        elif kind == 2:
            del data[rng.randrange(len(data)) :]
        elif kind == 3:
            data[place : place + rng.randrange(1, 40)] = b""
        elif kind == 4:
            data[place:place] = rng.randbytes(rng.randrange(1, 40))
        elif kind == 5:
            data[place : place + 1] = bytes([rng.randrange(256)])
        else:
            part = data[place : place + rng.randrange(1, 60)]
            data[place:place] = part
        if not data:
            break
    return bytes(data)


def describes(found, data):
    """Whether what was read is in the bytes, by the package's reader: the oracle against silent success."""
    extents = sorted((tensor.offset, tensor.offset + tensor.size) for tensor in found.tensors)
    assert all(start >= end for (_, end), (start, _) in pairwise(extents))
    assert not extents or extents[-1][1] <= len(data)
    return {tensor.name: (list(tensor.dims), tensor.type.name, tensor.offset, tensor.size) for tensor in found.tensors}


def test_mutated_files_are_refused_or_read_as_the_package_reads_them(tmp_path):
    keys = {"a": made.Array("u64", range(5)), "b": ["x", "yy", "zzz"], "c": 1.5, ".general.alignment": 32}
    tensors = {**PARTS, "blk.0.ffn_up_exps.weight": made.as_type(np.ones((2, 4, 32)), "MXFP4")}
    whole = made.write(tmp_path / "x.gguf", tensors, keys).read_bytes()
    header = min(tensor.offset for tensor in read_file(tmp_path, "x.gguf").tensors)
    rng, sound = random.Random(41), 0
    for _ in range(MUTATIONS):
        data = mutated(whole, header, rng)
        found = read(tmp_path, data)
        checkpoint = read_checkpoint(tmp_path / "x.gguf")
        assert all(finding.message.isprintable() for finding in checkpoint.diagnostics)
        told = describes(found, data)
        if found.findings:
            continue
        sound += 1
        theirs = {
            other.name: (list(map(int, other.shape)), other.tensor_type.name, other.data_offset, int(other.n_bytes))
            for other in GGUFReader(tmp_path / "x.gguf").tensors
        }
        assert told == theirs
    assert MUTATIONS // 50 < sound < MUTATIONS // 2


MEMORY = """
import resource, sys
from pathlib import Path
from dsv41c.runtime.weights.headers import read_checkpoint
files = sorted(Path(sys.argv[1]).iterdir())
read_checkpoint(files[0])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for file in files:
    read_checkpoint(file)
print(len(files), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_no_header_steers_what_is_allocated(tmp_path):
    rng = random.Random(5)
    hostile = [data for data, _, _ in BROKEN.values()] + [mutated(file(), 120, rng) for _ in range(300)]
    for number, data in enumerate(hostile):
        (tmp_path / f"{number}.gguf").write_bytes(data)
    code = [sys.executable, "-c", MEMORY, str(tmp_path)]
    run = subprocess.run(code, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    count, grown = map(int, run.stdout.split())
    assert count == len(hostile) and grown < 20_000, "KiB, for files of less than one"


def test_tensors_are_told_in_order_of_their_place(tmp_path):
    found = read(tmp_path, file(tensors=(tensor("b", offset=256), tensor("a")), data=512))
    assert [entry.name for entry in found.tensors] == ["a", "b"] and isinstance(found.tensors[0], RawTensor)
