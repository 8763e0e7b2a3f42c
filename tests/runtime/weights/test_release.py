"""The released checkpoint, headers alone: 48 shards and 96,085 tensors, told right or wrong from what the files say.

The tensors are listed here as the release has them, without the project's own tables. The files are sparse.
"""

import json
import os
import struct
from math import prod

import pytest

from dsv41c.compiler.cli import main

DIM, VOCAB = 5120, 129280
KV_SOURCES, POOLED = (2, 8, 14, 20), (2, 8, 14)
INDEX_SOURCES = (2, 8, 14, 20, 24, 28, 32, 36)
TABLES = {1: 384006168, 14: 384016682}
BYTES = {"F8_E4M3": 1, "F8_E8M0": 1, "I8": 1, "BF16": 2, "F32": 4}
SHARDS = 48


def fp8(name, out, width):
    return {f"{name}.weight": ("F8_E4M3", [out, width]), f"{name}.scale": ("F8_E8M0", [-(-out // 32), -(-width // 32)])}


def fp4(name, out, width):
    return {f"{name}.weight": ("I8", [out, width // 2]), f"{name}.scale": ("F8_E8M0", [out, width // 32])}


def bf16(**shapes):
    return {name.replace("__", "."): ("BF16", shape) for name, shape in shapes.items()}


def block(start, experts):
    """What every layer has, draft layers among them."""
    found = {f"{start}{name}.weight": ("BF16", [DIM]) for name in ("attn_norm", "ffn_norm")}
    found |= fp8(f"{start}attn.wq_a", 1280, DIM) | fp8(f"{start}attn.wq_b", 32768, 1280)
    found |= fp8(f"{start}attn.wkv", 512, DIM)
    found |= fp8(f"{start}attn.wo_a", 8192, 4096) | fp8(f"{start}attn.wo_b", DIM, 8192)
    found |= {f"{start}attn.q_norm.weight": ("BF16", [1280]), f"{start}attn.kv_norm.weight": ("BF16", [512])}
    found[f"{start}attn.attn_sink"] = ("F32", [64])
    for sublayer in ("attn", "ffn"):
        for part, shape in (("fn", [24, 4 * DIM]), ("base", [24]), ("scale", [3])):
            found[f"{start}hc_{sublayer}_{part}"] = ("F32", shape)
    found[f"{start}ffn.gate.weight"] = ("BF16", [experts, DIM])
    found |= {f"{start}ffn.gate.{name}": ("F32", [experts]) for name in ("bias", "bias_vl")}
    for matrix, (out, width) in {"w1": (2304, DIM), "w2": (DIM, 2304), "w3": (2304, DIM)}.items():
        found |= fp8(f"{start}ffn.shared_experts.{matrix}", out, width)
        for expert in range(experts):
            found |= fp4(f"{start}ffn.experts.{expert}.{matrix}", out, width)
    return found


def layer(number):
    start = f"layers.{number}."
    found = block(start, 384)
    if number in KV_SOURCES:
        found |= {f"{start}attn.compressor.wkv.weight": ("BF16", [512, DIM])}
        found |= {f"{start}attn.compressor.norm.weight": ("BF16", [512])}
        found |= {f"{start}attn.indexer.wk.weight": ("BF16", [128, 512])}
        found |= {f"{start}attn.indexer.k_norm.weight": ("BF16", [128])}
    if number in POOLED:
        found[f"{start}attn.compressor.wgate.weight"] = ("BF16", [512, DIM])
    if number in INDEX_SOURCES:
        found |= fp8(f"{start}attn.indexer.wq_b", 4096, 1280)
        found[f"{start}attn.indexer.weights_proj.weight"] = ("BF16", [32, DIM])
    if number in TABLES:
        found |= fp8(f"{start}engram.wkv", 25600, 6144)
        found |= {f"{start}engram.{name}": ("BF16", [4, DIM]) for name in ("q_weight", "k_weight")}
    return found


def drafts():
    found = {}
    for number in range(3):
        found |= block(f"mtp.{number}.", 128)
    found |= fp8("mtp.0.main_proj", DIM, 15360)
    return found | bf16(
        mtp__0__main_norm__weight=[DIM],
        mtp__2__norm__weight=[DIM],
        mtp__2__markov_head__embed__weight=[VOCAB, 256],
        mtp__2__markov_head__head__weight=[VOCAB, 256],
        mtp__2__confidence_head__proj__weight=[1, 5376],
    )


def vision():
    found = bf16(
        vision__patch_embed__proj__weight=[1024, 588],
        vision__patch_embed__proj__bias=[1024],
        vision__norm__weight=[1024],
        aligner__w1__weight=[DIM, 9216],
        aligner__w1__bias=[DIM],
        aligner__w2__weight=[DIM, DIM],
        aligner__w2__bias=[DIM],
        image_start=[DIM],
        image_end=[DIM],
        image_newline=[DIM],
    )
    shapes = {"attn.wqkv.weight": [3072, 1024], "attn.wqkv.bias": [3072], "attn.wo.weight": [1024, 1024]}
    shapes |= {"attn.wo.bias": [1024], "mlp.w1.weight": [5632, 1024], "mlp.w2.weight": [1024, 2816]}
    shapes |= {"norm1.weight": [1024], "norm2.weight": [1024]}
    return found | {f"vision.blocks.{n}.{name}": ("BF16", shape) for n in range(32) for name, shape in shapes.items()}


def shards():
    """The tensors by file: the tables in the last two, all others over the rest."""
    parts = [layer(number) for number in range(40)]
    parts.append(bf16(embed__weight=[VOCAB, DIM], head__weight=[VOCAB, DIM], norm__weight=[DIM]))
    names = list({**drafts(), **vision()}.items())
    share = -(-len(names) // (SHARDS - 2 - len(parts)))
    parts += [dict(names[start : start + share]) for start in range(0, len(names), share)]
    for number, rows in TABLES.items():
        start = f"layers.{number}.engram.embed"
        parts.append({f"{start}.weight": ("F8_E4M3", [rows, 256]), f"{start}.scale": ("F8_E8M0", [rows, 8])})
    return {f"model-{n:05d}-of-{SHARDS:05d}.safetensors": part for n, part in enumerate(parts, 1)}


def write(folder, file, tensors):
    entries, end = {}, 0
    for name, (dtype, shape) in tensors.items():
        size = prod(shape) * BYTES[dtype]
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(entries).encode()
    (folder / file).write_bytes(struct.pack("<Q", len(text)) + text)
    try:
        os.truncate(folder / file, 8 + len(text) + end)
    except OSError as error:
        pytest.skip(f"no file of so many bytes can be made here: {error.strerror}")
    if (folder / file).stat().st_blocks * 512 > 1 << 26:
        pytest.skip("files are not sparse here")


@pytest.fixture(scope="module")
def release(tmp_path_factory):
    """The folder, and its tensors by file."""
    folder, files = tmp_path_factory.mktemp("release"), shards()
    for file, tensors in files.items():
        write(folder, file, tensors)
    weight_map = {name: file for file, tensors in files.items() for name in tensors}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder, files


@pytest.fixture
def told(release, capsys):
    """What `validate` says of the folder with one file changed, which is put back."""
    folder, files = release
    changed = []

    def validate(change=None):
        if change is not None:
            file, tensors = change
            changed.append(file)
            write(folder, file, tensors)
        code = main(["validate", "deepseek-v4.1-flash", "--checkpoint", str(folder)])
        said = capsys.readouterr()
        return code, said.out + said.err

    yield validate
    for file in changed:
        write(folder, file, files[file])


def test_the_list_is_the_release(release):
    _, files = release
    tensors = [tensor for part in files.values() for tensor in part.values()]
    assert len(files) == SHARDS and len(tensors) == 96_085
    assert sum(prod(shape) * BYTES[dtype] for dtype, shape in tensors) == 510_286_023_000


def test_it_validates(told):
    code, said = told()
    assert code == 0 and "96,085 tensors" in said and "deepseek-v4.1-flash.yaml: ok" in said, said


def test_what_is_missing_and_what_has_another_shape_is_told_at_once(told, release):
    _, files = release
    file = next(file for file, tensors in files.items() if "layers.7.attn.wq_a.weight" in tensors)
    tensors = dict(files[file])
    del tensors["layers.7.attn.wo_b.scale"]
    tensors["layers.7.attn.wq_a.weight"] = ("F8_E4M3", [1280, 5088])
    tensors["layers.7.ffn.gate.wieght"] = tensors.pop("layers.7.ffn.gate.weight")
    code, said = told((file, tensors))
    assert code == 1
    for code_of, name in (("DSV724", "wo_b"), ("DSV722", "wq_a"), ("DSV720", "ffn.gate.weight"), ("DSV721", "wieght")):
        assert f"[{code_of}]" in said and name in said, said
    assert said.count("error[") <= 6, said  # the index tells of the missing names as well


def test_a_shard_that_is_not_there_yet(told, release):
    folder, files = release
    file = next(iter(files))
    (folder / file).unlink()
    try:
        code, said = told()
    finally:
        write(folder, file, files[file])
    assert code == 1 and "DSV707" in said and file in said and said.count("error[") == 1, said
