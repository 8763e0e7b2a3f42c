"""What sets off each code of GGUF checkpoints (760 to 771), and the same mended."""

import gguf_made as made
import numpy as np

from dsv41c.compiler.importing import import_config, other_model
from dsv41c.compiler.spec import load
from dsv41c.runtime.text import load_tokenizer
from dsv41c.runtime.weights.headers import read_checkpoint

EMBED = made.as_type(np.zeros((4, 32)), "BF16")
ONE = {"token_embd.weight": EMBED}
MULTIPLIERS, PRIMES = [1 << 40, 3, 5, 7], [67, 71, 73]
ENGRAM = {
    "engram.layer_ids": made.Array("u32", [1]),
    "engram.multipliers": made.Array("u64", MULTIPLIERS),
    "engram.primes": made.Array("u64", PRIMES),
    "engram.token_map": made.Array("u32", [0, 1, 2, 3]),
}


def _table(rows=211):
    return {"blk.1.engram_embd.weight": made.as_type(np.zeros((rows, 32)), "BF16")}


def _file(tensors=ONE, keys=(), arch="deepseek41", name="model.gguf"):
    def trigger(path):
        return read_checkpoint(made.write(path / name, tensors, dict(keys), arch=arch)).diagnostics

    return trigger


def _bytes(start):
    def trigger(path):
        whole = made.write(path / "model.gguf", ONE, {}).read_bytes()
        (path / "model.gguf").write_bytes(start + whole[len(start) :])
        return read_checkpoint(path / "model.gguf").diagnostics

    return trigger


def _typed(number):
    """A file whose tensor has a type of some number."""

    def trigger(path):
        file = made.write(path / "model.gguf", ONE, {})
        data = bytearray(file.read_bytes())
        place = data.index(b"token_embd.weight") + len("token_embd.weight") + 4 + 16
        data[place : place + 4] = number.to_bytes(4, "little")
        file.write_bytes(data)
        return read_checkpoint(file).diagnostics

    return trigger


def _tokens(**changes):
    keys = {".tokenizer.ggml.model": "gpt2", ".tokenizer.ggml.tokens": ["a", "b", "ab"]}
    keys |= {".tokenizer.ggml.merges": ["a b"], **{f".tokenizer.ggml.{name}": value for name, value in changes.items()}}
    return lambda path: load_tokenizer(made.write(path / "model.gguf", ONE, keys), 3)


def _split(count):
    def trigger(path):
        first, second = made.split(path, {**ONE, "output.weight": EMBED}, {}, 2)
        if count is not None:
            second.unlink()
            extra = {"split.no": (1, "add_uint16"), "split.count": (count, "add_uint16")}
            made.write(second, {"output.weight": EMBED}, {}, extra=extra)
        return read_checkpoint(first).diagnostics

    return trigger


def _other(clamp):
    """A whole file beside the spec of the golden checkpoint, with a clamp of its own."""

    def trigger(path):
        keys = made.keys("b") | {"swiglu_clamp_exp": made.Array("f32", [clamp] * 10)}
        keys |= {"swiglu_clamp_shexp": made.Array("f32", [clamp] * 10)}
        (path / "spec.yaml").write_text(import_config(str(made.TINY / "config.json")).text)
        file = made.write(path / "model.gguf", made.tensors("b"), keys)
        return other_model(load(str(path / "spec.yaml")).spec, read_checkpoint(file))

    return trigger


TRIGGERS = {
    "DSV760": (_bytes(b"GGUF\0\0\0\3"), _bytes(b"GGUF\3\0\0\0")),
    "DSV761": (_file(arch="deepseek4"), _file()),
    "DSV762": (_file(keys={"kv_source_layers": made.Array("u32", [2])}), _file()),
    "DSV763": (_typed(43), _typed(30)),
    "DSV764": (_file(_table(), {"engram.primes": ENGRAM["engram.primes"]}), _file(_table(), ENGRAM)),
    "DSV765": (
        _file(_table(), ENGRAM | {"engram.multipliers": made.Array("i32", [1, 3, 5, 7])}),
        _file(_table(), ENGRAM),
    ),
    "DSV766": (_file(_table(100), ENGRAM), _file(_table(), ENGRAM)),
    "DSV767": (
        _file(keys={"swiglu_clamp_exp": made.Array("f32", [10.0, 7.0])}),
        _file(keys={"swiglu_clamp_exp": made.Array("f32", [10.0, 10.0])}),
    ),
    "DSV768": (_file({**ONE, "output_hc_base.weight": EMBED}), _file()),
    "DSV769": (_tokens(pre="a-rule-of-tomorrow"), _tokens(pre="default")),
    "DSV770": (_split(3), _split(None)),
    "DSV771": (_other(7.0), _other(2.0)),
}
