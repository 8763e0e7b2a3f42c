"""Headers and indexes that were tampered with: refused with codes, or read as the format's own reader reads them.

`pytest tests/runtime/weights/test_fuzz.py --fuzz 100000` tries more. Of every file that is accepted, the format's own
reader says what its bytes are; the tensors that merged ones are taken apart into have to be made of those very bytes.
"""

import json
import math
import os
import random
import signal
import struct
import tracemalloc

import pytest
import torch
from safetensors import deserialize

from dsv41c.codes import TABLE
from dsv41c.diagnostics import UserFault, has_errors
from dsv41c.kernels.reference.encodings import dense
from dsv41c.report import render
from dsv41c.runtime.weights import official
from dsv41c.runtime.weights.bind import bind
from dsv41c.runtime.weights.headers import read_checkpoint
from dsv41c.runtime.weights.mapped import MappedFiles
from dsv41c.runtime.weights.match import match

SIZES = {"dim": 64, "streams": 2, "experts": 2, "inter_dim": 32, "groups": 1, "o_lora_rank": 64, "heads": 4}
SIZES |= {"engram_rows": 5, "engram_head_dim": 32}
ROLES = ("attn_norm", "attn_sink", "wo_b", "experts_w1", "experts_w2", "experts_w3", "engram_table")
INDEX = "model.safetensors.index.json"
LIMIT = 4 << 20  # bytes that judging a file of a few KiB may take; a report of it included


def tensors():
    """Two files: plain tensors, FP8, and merged FP4 experts; a table whose rows hold codes and scales."""
    draw = random.Random(0)
    codes, scales = draw.randbytes(4096).replace(b"\xff", b"\0").replace(b"\x7f", b"\0"), b"\x7f\x80\x81\x82"
    place = "layers.0.ffn.experts."
    first = {
        "layers.0.attn.attn_sink": ("F32", [4], struct.pack("<4f", 1, 2, 3, 4)),
        "layers.0.attn.wo_b.weight": ("F8_E4M3", [64, 64], codes),
        "layers.0.attn.wo_b.scale": ("F8_E8M0", [2, 2], scales),
        "layers.0.attn_norm.weight": ("BF16", [64], b"\x80\x3f" * 64),
    }
    second = {
        place + "gate_up_proj": ("U8", [2, 64, 32], draw.randbytes(4096)),
        place + "gate_up_proj_scale": ("U8", [2, 64, 2], bytes([127] * 256)),
        place + "w2.weight": ("I8", [2, 64, 16], draw.randbytes(2048)),
        place + "w2.scale": ("F8_E8M0", [2, 64, 1], bytes([127] * 128)),
        "layers.0.engram.embed.rows": ("U8", [5, 33], b"\x38" * 165),
    }
    return {"a.safetensors": first, "b.safetensors": second}


METADATA = {"format": "pt", "dsv41c.gate_up": "gate_up_interleaved"}


@pytest.fixture(scope="module")
def manifest(plans):
    return plans.manifest([plans.entry(role, SIZES, 0) for role in ROLES], dim=64)


def whole():
    """Each file's header as a tree, and its data; the index as a tree."""
    found = {}
    for file, held in tensors().items():
        entries, end = {"__metadata__": dict(METADATA)}, 0
        for name, (dtype, shape, data) in held.items():
            entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + len(data)]}
            end += len(data)
        found[file] = (entries, b"".join(data for _, _, data in held.values()))
    weight_map = {name: file for file, held in tensors().items() for name in held}
    return found, {"metadata": dict(METADATA), "weight_map": weight_map}


def test_the_untouched_one_is_sound(tmp_path, manifest):
    files, index = whole()
    save(tmp_path, {file: framed(text(tree), data) for file, (tree, data) in files.items()}, text(index))
    assert judge(tmp_path, manifest) == "bound"


# --- tampering --------------------------------------------------------------------------------------------------------

ODD = (
    *(None, True, False, -1, 0, 1, 2, 2.0, 1e300, 2**31, 2**53, 2**62, 2**63, 2**64, -(2**63), 10**40),
    *("", "a", "F32", "F8_E4M3", "\0", "\ud800", "../x", "x" * 3000, "layers.0.attn.attn_sink"),
    *([], {}, [[]], [0], [0, 0], [-1, 4], [2**62, 4], {"a": {"a": []}}),
)
NAMES = (
    "",
    "\0",
    "a\nb",
    "x" * 2000,
    "model.layers.0.attn.attn_sink",
    "layers.0.ffn.experts.w13_weight",
    "\u202e",
    "..",
)
NAMES = (*NAMES, "layers.0.ffn.experts.1.w2.weight", "layers.0.engram.embed.weight", "layers.00.attn_norm.weight")
DTYPES = ("F4", "U8", "I8", "BF16", "F32", "F64", "F8_E4M3", "F8_E8M0", "F6_E2M3", "BOOL", "f32", "Q8_0")
ORDERS = ("gate_up", "up_gate", "up_gate_interleaved", "gate_up_interleaved ", "", 7, None, ["gate_up"])
FILES = ("a.safetensors", "b.safetensors", "c.safetensors", "../a.safetensors", "/etc/passwd", "a\0.safetensors", "", 3)


def spots(tree, place=()):
    """Every place in a tree: the keys to get there."""
    found = [place] if place else []
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, child in items:
        found += spots(child, (*place, key))
    return found


def at(tree, place):
    for key in place:
        tree = tree[key]
    return tree


def tampered(tree, draw):
    """One change of a tree, in place."""
    place = draw.choice(spots(tree))
    parent, key = at(tree, place[:-1]), place[-1]
    kind = draw.randrange(8)
    if kind == 0:
        parent[key] = draw.choice(ODD)
    elif kind == 1:
        del parent[key]
    elif kind == 2 and isinstance(parent[key], int) and not isinstance(parent[key], bool):
        parent[key] += draw.choice((-1, 1, 4, -4, 32, 4096, -(2**33), 2**33))
    elif kind == 3 and isinstance(parent, dict):
        parent[draw.choice(NAMES)] = parent.pop(key)
    elif kind == 4:
        other = draw.choice(spots(tree))
        if other[: len(place)] != place and place[: len(other)] != other:  # neither holds the other
            target = at(tree, other[:-1])
            parent[key], target[other[-1]] = target[other[-1]], parent[key]
    elif kind == 5 and isinstance(parent, dict):
        known = {"dtype": DTYPES, "dsv41c.gate_up": ORDERS}.get(key, FILES)
        parent[key] = draw.choice(known)
    elif kind == 6 and isinstance(parent, list):
        parent.insert(key, draw.choice((0, 1, 2, 33)))
    elif isinstance(parent, dict):
        parent[draw.choice(("dsv41c.nibbles", "dsv41c.more", "b"))] = draw.choice(("high_first", "low_first", {}, 1))


def text(tree):
    """A tree as JSON bytes. Half surrogates are written as escapes, so any tree can be."""
    return json.dumps(tree).encode()


def reworded(trees, draw):
    """One change that leaves the files sound: names, dtypes of one width, shapes of one size, the declared order."""
    tree = draw.choice(list(trees.values()))
    names = [name for name in tree if name != "__metadata__"]
    name, other = draw.choice(names), draw.choice(names)
    kind = draw.randrange(5)
    if kind == 0:
        tree[draw.choice((*NAMES[4:], name.replace("w2", "down_proj"), name + "_inv", "model." + name))] = tree.pop(
            name
        )
    elif kind == 1:
        tree[name], tree[other] = tree[other], tree[name]
    elif kind == 2 and tree[name]["dtype"] not in ("F32", "BF16"):
        tree[name]["dtype"] = draw.choice(("U8", "I8", "F8_E4M3", "F8_E8M0", "F8_E5M2", "BOOL"))
    elif kind == 3:
        shape = tree[name]["shape"]
        axis = draw.randrange(len(shape))
        factor = next((n for n in (2, 3, 5, 11) if shape[axis] % n == 0), 1)
        shape[axis] //= factor
        shape[draw.randrange(len(shape))] *= factor
        shape[:] = draw.choice((shape, shape[::-1], [*shape, 1]))
    else:
        order = draw.choice(("gate_up", "up_gate", "up_gate_interleaved", "gate_up_interleaved"))
        for entries in trees.values():
            entries["__metadata__"]["dsv41c.gate_up"] = order


def garbled(data, draw):
    """Some bytes of a text changed, doubled, cut out; or a part of it written twice, so that a key is."""
    data = bytearray(data)
    for _ in range(draw.choice((1, 1, 2, 5))):
        if not data:
            break
        start = draw.randrange(len(data))
        end = min(len(data), start + draw.choice((1, 1, 2, 8, 60)))
        data[start:end] = draw.choice(
            (b"", bytes([draw.randrange(256)]), bytes(data[start:end]) * 2, b"[" * 2000, b"9" * 5000, b" ", b'"')
        )
    return bytes(data)


def framed(header, data, length=None):
    return struct.pack("<Q", len(header) if length is None else length) + header + data


def case(draw):
    """Files and an index, tampered with in one way or a few."""
    files, index = whole()
    made = {}
    victim = draw.choice((*files, INDEX))
    tree = index if victim == INDEX else files[victim][0]
    kind = draw.randrange(9)
    for _ in range(draw.choice((1, 1, 2, 4)) if kind < 4 else 0):
        if spots(tree):
            tampered(tree, draw)
    for _ in range(draw.choice((1, 1, 2)) if kind > 5 else 0):
        reworded({file: held for file, (held, _) in files.items()}, draw)
    if kind > 5 or draw.randrange(2):  # an index that goes along gets a change further
        along = {name: file for file, (held, _) in files.items() for name in held if name != "__metadata__"}
        index = {"metadata": {}, "weight_map": along} if victim != INDEX else index
    raw = {name: text(held) for name, held in ((INDEX, index), *((file, tree) for file, (tree, _) in files.items()))}
    if kind == 4:
        raw[victim] = garbled(raw[victim], draw)
    for file, (_, data) in files.items():
        length = None
        if kind == 5 and file == victim:
            length = draw.choice((0, 1, len(raw[file]) - 1, len(raw[file]) + 8, 10**8, 10**8 + 1, 2**63, 2**64 - 1))
            data = draw.choice((data, data[:-1], data + b"\0", b"", data * 2))
        made[file] = framed(raw[file], data, length)
        if kind < 6 and draw.randrange(20) == 0:
            made[file] = made[file][: draw.randrange(len(made[file]))]
    return made, draw.choice((raw[INDEX], raw[INDEX], None)) if victim != INDEX else raw[INDEX]


def save(folder, files, index):
    for file, data in files.items():
        (folder / file).write_bytes(data)
    (folder / INDEX).unlink(missing_ok=True)
    if index is not None:
        (folder / INDEX).write_bytes(index)


# --- judging ----------------------------------------------------------------------------------------------------------


def judge(folder, manifest):
    """Read, match and bind. What comes is findings, or what the format's own reader says too."""
    checkpoint = read_checkpoint(folder)
    well_told(checkpoint.diagnostics)
    matching = match(manifest, checkpoint)
    well_told(matching.diagnostics)
    if has_errors(checkpoint.diagnostics):
        assert matching.failed
        return "refused"
    told = told_alike(checkpoint)
    try:
        bound = bind(manifest, checkpoint)
    except UserFault as fault:
        assert fault.diagnostics
        well_told(fault.diagnostics)
        return "unfit" if matching.failed else "not bound"
    assert not matching.failed and len(bound) == len(ROLES)
    means_what_is_told(bound, told, checkpoint.declared.get("dsv41c.gate_up", "gate_up"))
    return "bound"


def well_told(findings):
    for finding in findings:
        assert finding.code in TABLE and finding.message and finding.help
        finding.message.encode()
    render(findings, {})


def told_alike(checkpoint):
    """Every tensor is bytes that the format's own reader gives to the name it is stored under, and all are told of."""
    told, starts = {}, {}
    for file in checkpoint.files:
        raw = (checkpoint.folder / file).read_bytes()
        size = 8 + int.from_bytes(raw[:8], "little")
        entries = json.loads(raw[8:size])
        for name, tensor in deserialize(raw):
            assert name not in told
            told[name] = (file, tensor["dtype"], tensor["shape"], bytes(tensor["data"]))
            starts[name] = size + entries[name]["data_offsets"][0]
    mapped = MappedFiles(checkpoint, checkpoint.files)
    taken: dict[str, list[int]] = {name: [] for name in told}
    for header in checkpoint.tensors.values():
        stored = header.stored.partition(" (")[0]
        file, dtype, shape, data = told[stored]
        assert header.file == file
        if header.stored == stored and not header.pitch:
            assert (header.dtype, list(header.shape)) == (dtype, shape)
        raw = mapped.tensor(header).contiguous().flatten().view(torch.uint8).numpy().tobytes()
        places = places_of(header, starts[stored])
        assert len(raw) == len(places) == header.size
        assert bytes(data[place] for place in places) == raw
        taken[stored] += places
    for name, places in taken.items():
        assert sorted(places) == list(range(len(told[name][3]))), name
    return {
        name: torch.frombuffer(bytearray(data), dtype=torch.uint8).view(s)
        for name, (_, _, s, data) in told.items()
        if len(data) == math.prod(s) and data
    }


def means_what_is_told(bound, told, order):
    """The values of what was merged, from the bytes that the format's own reader gives, worked out by hand."""
    place = "layers.0.ffn.experts."
    if place + "gate_up_proj" in told:
        codes, scale = told[place + "gate_up_proj"], scale_of(told, place + "gate_up_proj")
        for role, up in (("experts_w1", False), ("experts_w3", True)):
            first = up != order.startswith("up_gate")
            rows = slice(int(first), None, 2) if order.endswith("interleaved") else slice(32 * first, 32 * first + 32)
            for expert in range(2):
                wanted = fp4(codes[expert, rows], scale[expert, rows])
                assert torch.equal(dense(bound[f"layers.0.{role}"][expert], torch.float32), wanted)
    if place + "w2.weight" in told:
        for expert in range(2):
            wanted = fp4(told[place + "w2.weight"][expert], scale_of(told, place + "w2")[expert])
            assert torch.equal(dense(bound["layers.0.experts_w2"][expert], torch.float32), wanted)
    if "layers.0.engram.embed.rows" in told:
        table = told["layers.0.engram.embed.rows"]
        wanted = table[:, :32].contiguous().view(torch.float8_e4m3fn).float() * 2.0 ** (table[:, 32:].float() - 127)
        assert torch.equal(bound["layers.0.engram_table"].rows(torch.arange(5)), wanted)


def scale_of(told, name):
    """The scale in any of its spellings, of which a sound checkpoint has one."""
    endings = (".scale", ".weight_scale", ".weight_scale_inv", "_scale", "_scale_inv")
    (found,) = [told[name + ending] for ending in endings if name + ending in told]
    return found


def fp4(codes, scale):
    """E2M1 codes, the low nibble first, under a power of two for 32 of them."""
    size = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    nibbles = torch.stack([codes & 15, codes >> 4], -1).flatten(-2).long()
    values = size[nibbles & 7] * (1 - 2 * (nibbles >> 3))
    return values * (2.0 ** (scale.float() - 127)).repeat_interleave(32, -1)


def places_of(header, start):
    """The places of a header's bytes in the data of its stored tensor, which starts at a byte of the file."""
    rows, pitch = (header.shape[0], header.pitch) if header.pitch else (1, 0)
    width = header.size // max(1, rows)
    return [header.offset - start + row * pitch + byte for row in range(rows) for byte in range(width)]


@pytest.fixture
def watchdog():
    """A case that never ends fails."""

    def late(*_):
        raise AssertionError("this case takes for ever")

    before = signal.signal(signal.SIGALRM, late)
    yield lambda: signal.alarm(60)
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def test_fuzz_checkpoints(tmp_path, manifest, fuzz_cases, watchdog):
    outcomes = dict.fromkeys(("refused", "unfit", "not bound", "bound"), 0)  # the third: values are no numbers
    for seed in range(fuzz_cases):
        watchdog()
        files, index = case(random.Random(seed))
        save(tmp_path, files, index)
        tracemalloc.start()
        try:
            outcome = judge(tmp_path, manifest)
            peak = tracemalloc.get_traced_memory()[1]
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
        finally:
            tracemalloc.stop()
        assert peak < LIMIT, (seed, peak)
        outcomes[outcome] += 1
    # The fuzzer is worth something only if it gets everywhere.
    assert min(outcomes["refused"], outcomes["unfit"], outcomes["bound"]) > fuzz_cases // 12, outcomes


def test_links_that_lead_nowhere(tmp_path, manifest):
    files, index = whole()
    data = {file: framed(text(tree), data) for file, (tree, data) in files.items()}
    for victim in (*data, INDEX):
        for kind in ("loop", "folder", "pipe", "nothing", "device"):
            save(tmp_path, data, text(index))
            path = tmp_path / victim
            path.unlink()
            if kind == "loop":
                (tmp_path / "other").symlink_to(path)
                path.symlink_to(tmp_path / "other")
            elif kind == "folder":
                path.mkdir()
            elif kind == "pipe":
                os.mkfifo(path)
            elif kind == "device":
                path.symlink_to("/dev/zero")
            assert kind == "nothing" or os.path.lexists(path)
            assert judge(tmp_path, manifest) == ("refused" if (kind, victim) != ("nothing", INDEX) else "bound")
            for made in (path, tmp_path / "other"):
                if made.is_symlink() or (made.exists() and not made.is_dir()):
                    made.unlink()
                elif made.is_dir():
                    made.rmdir()


def test_headers_that_ask_for_much(tmp_path, plans, monkeypatch):
    """A few bytes of header that stand for tensors without end: experts of no size, and of a byte in a sparse file."""
    monkeypatch.setattr(official, "MAX_PARTS", 3000)
    name, each = "layers.{}.ffn.experts.w1", 1000
    nothing = {"dtype": "U8", "shape": [2**62, 0, 1], "data_offsets": [0, 0]}
    huge = {
        "no size": {name.format(n): nothing for n in range(50)},
        "many": {
            name.format(n): {"dtype": "U8", "shape": [each, 1, 1], "data_offsets": [each * n, each * (n + 1)]}
            for n in range(50)
        },
        "many at once": {name.format(0): {"dtype": "U8", "shape": [2**40, 1, 1], "data_offsets": [0, 2**40]}},
    }
    for entries in huge.values():
        path = tmp_path / "x.safetensors"
        path.write_bytes(plans.frame(entries))
        os.truncate(path, path.stat().st_size + max(entry["data_offsets"][1] for entry in entries.values()))
        checkpoint = read_checkpoint(path)
        assert {finding.code for finding in checkpoint.diagnostics} == {"DSV711"}
        assert len(checkpoint.tensors) <= 3000
