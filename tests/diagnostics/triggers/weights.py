"""What sets off each code of checkpoints (7xx), and the same mended."""

import json
import os
from pathlib import Path

import hand_made as plans
import torch
from tokenizers import Tokenizer

from dsv41c.compiler.importing import import_config, other_model
from dsv41c.compiler.spec import load
from dsv41c.runtime.synth import synth
from dsv41c.runtime.token_map import token_map
from dsv41c.runtime.weights.bind import bind
from dsv41c.runtime.weights.headers import read_checkpoint
from dsv41c.runtime.weights.match import match

TINY = Path(__file__).resolve().parents[2] / "golden" / "tiny"

ONE = ("F32", [2], b"\0" * 8)
DIM = {"dim": 64, "streams": 2, "experts": 2, "inter_dim": 32, "groups": 1, "o_lora_rank": 64}
WEIGHT, SCALE = "layers.0.attn.wo_b.weight", "layers.0.attn.wo_b.scale"
CODES, SCALES = ("F8_E4M3", [64, 64], b"\x38" * 4096), ("F8_E8M0", [2, 2], b"\x7f" * 4)


MISSPELT = "layers.0.attn.wo_c.weight"
STACKED = "layers.0.ffn.experts.w1.weight"


def _headers(path):
    return read_checkpoint(path).diagnostics


def _raw(data):
    def trigger(path):
        (path / "x.safetensors").write_bytes(data)
        return _headers(path)

    return trigger


def _files(*files, index=None):
    """Files of tensors, and an index that gives each file's names, or is some text."""

    def trigger(path):
        for number, tensors in enumerate(files):
            plans.write(path / f"{number}.safetensors", tensors)
        if isinstance(index, str):
            (path / "model.safetensors.index.json").write_text(index)
        elif index is not None:
            plans.write_index(path, index)
        return _headers(path)

    return trigger


def _entry(size, **changes):
    entry = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **changes}
    return _raw(plans.frame({"a": entry}) + b"\0" * size)


def _plan(compute="f32"):
    return plans.manifest([plans.entry("wo_b", DIM, 0, compute)])


def _bound(tensors, compute="f32"):
    """Binding a plan of one FP8 matrix."""

    def trigger(path):
        plans.write(path / "x.safetensors", tensors)
        bind(_plan(compute), path)

    return trigger


def _experts(count):
    def trigger(path):
        names = [f"layers.0.ffn.experts.{number}.w1.weight" for number in range(count)]
        plans.write(path / "x.safetensors", {name: ("BF16", [32, 64], b"\0" * 4096) for name in names})
        return match(plans.manifest([plans.entry("experts_w1", DIM, 0)]), read_checkpoint(path)).diagnostics

    return trigger


def _table(size):
    """A table whose file gets another size while it is read."""

    def trigger(path):
        sizes = {"engram_rows": 4, "engram_head_dim": 32}
        name = "layers.1.engram.embed"
        tensors = {
            f"{name}.weight": ("F8_E4M3", [4, 32], b"\x38" * 128),
            f"{name}.scale": ("F8_E8M0", [4, 1], b"\x7f" * 4),
        }
        plans.write(path / "x.safetensors", tensors)
        table = bind(plans.manifest([plans.entry("engram_table", sizes, 1)]), path)["layers.1.engram_table"]
        if size is not None:
            os.truncate(path / "x.safetensors", size)
        table.rows(torch.tensor([0, 3]))

    return trigger


def _cut(size):
    """A file that has another size when it is bound than when its header was read."""

    def trigger(path):
        plans.write(path / "x.safetensors", {WEIGHT: CODES, SCALE: SCALES})
        checkpoint = read_checkpoint(path)
        if size is not None:
            os.truncate(path / "x.safetensors", size)
        bind(_plan(), checkpoint)

    return trigger


def _tokens(vocab_size, compressed):
    return lambda _: token_map(Tokenizer.from_file(str(TINY / "tokenizer.json")), vocab_size, compressed)


def _synth(plan, out="out", **kwargs):
    def trigger(path):
        (path / "occupied").mkdir()
        (path / "occupied" / "file").write_text("")
        synth(plan, {}, path / out, **kwargs)

    return trigger


def _vocabulary(compressed):
    return plans.manifest([], vocab=100, compressed=compressed)


def _wide(dim):
    return plans.manifest([plans.entry("experts_w1", {**DIM, "dim": dim}, 0)])


_WHOLE = _bound({WEIGHT: CODES, SCALE: SCALES})
_PLAIN = ("BF16", [64, 64], b"\0" * 8192)
_INDEXED = _files({"a": ONE}, index={"0.safetensors": ["a"]})


def _clamp(value):
    """The golden checkpoint's spec, and one whose config.json has a clamp of its own."""

    def trigger(path):
        config = json.loads((TINY / "config.json").read_text())
        (path / "spec.yaml").write_text(import_config(str(TINY / "config.json")).text)
        for file in TINY.iterdir():
            (path / file.name).symlink_to(file)
        (path / "config.json").unlink()
        (path / "config.json").write_text(json.dumps(_changed(config, value)))
        return other_model(load(str(path / "spec.yaml")).spec, read_checkpoint(path))

    return trigger


def _changed(config, value):
    inner = {"text_config": _changed(config["text_config"], value)} if "text_config" in config else {}
    return {**config, **inner, **({"swiglu_limit": value} if "swiglu_limit" in config else {})}


TRIGGERS = {
    "DSV700": (lambda path: _headers(path / "nothing"), _INDEXED),
    "DSV701": (_raw(b"<html>not a checkpoint</html>" * 1000), _entry(8)),
    "DSV702": (_entry(8, dtype="F6_E2M3"), _entry(8)),
    "DSV703": (_entry(7), _entry(8)),
    "DSV704": (_entry(4, data_offsets=[0, 4]), _entry(8)),
    "DSV705": (_files({"a": ONE}, index="[]"), _INDEXED),
    "DSV706": (_files({"a": ONE}, index='{"weight_map": {"a": "../x.safetensors"}}'), _INDEXED),
    "DSV707": (_files({"a": ONE}, index={"1.safetensors": ["a"]}), _INDEXED),
    "DSV708": (_files({"a": ONE}, index={"0.safetensors": ["b"]}), _INDEXED),
    "DSV709": (_files({"a": ONE}, {"a": ONE}), _files({"a": ONE}, {"b": ONE})),
    "DSV710": (_files({"embed.weight": ONE, "model.norm.weight": ONE}), _files({"embed.weight": ONE})),
    "DSV711": (_files({STACKED: ("U8", [2, 3], b"\0" * 6)}), _files({STACKED: ("U8", [2, 3, 1], b"\0" * 6)})),
    "DSV712": (
        _files({"a": ONE}, index='{"metadata": {"dsv41c.gate_up": "up"}, "weight_map": {"a": "0.safetensors"}}'),
        _files({"a": ONE}, index='{"metadata": {"dsv41c.gate_up": "up_gate"}, "weight_map": {"a": "0.safetensors"}}'),
    ),
    "DSV720": (_bound({}), _WHOLE),
    "DSV721": (_bound({WEIGHT: CODES, SCALE: SCALES, MISSPELT: ONE}), _WHOLE),
    "DSV722": (_bound({WEIGHT: ("F8_E4M3", [32, 64], b"\0" * 2048), SCALE: SCALES}), _WHOLE),
    "DSV723": (_bound({WEIGHT: ("F16", [64, 64], b"\0" * 8192)}), _WHOLE),
    "DSV724": (_bound({WEIGHT: CODES}), _WHOLE),
    "DSV725": (_bound({WEIGHT: CODES, SCALE: ("F8_E8M0", [64, 2], b"\0" * 128)}), _WHOLE),
    "DSV726": (_bound({WEIGHT: CODES, SCALE: SCALES, WEIGHT + "_scale_inv": SCALES}), _WHOLE),
    "DSV727": (_bound({WEIGHT: _PLAIN, SCALE: SCALES}), _bound({WEIGHT: _PLAIN})),
    "DSV728": (_experts(3), _experts(2)),
    "DSV730": (_bound({WEIGHT: CODES, SCALE: ("F8_E8M0", [2, 2], b"\x7f\x7f\x7f\xff")}), _WHOLE),
    "DSV731": (
        _bound({WEIGHT: ("F32", [64, 64], b"\x01\x00\x80\x3f" * 4096)}, "bf16"),
        _bound({WEIGHT: ("F32", [64, 64], b"\x00\x00\x80\x3f" * 4096)}, "bf16"),
    ),
    "DSV732": (_cut(100), _cut(None)),
    "DSV733": (_table(16), _table(None)),
    "DSV734": (_clamp(7.0), _clamp(2.0)),
    "DSV740": (_tokens(500, None), _tokens(512, None)),
    "DSV741": (_tokens(512, 400), _tokens(512, 426)),
    "DSV750": (_synth(_plan(), max_bytes=100), _synth(_plan())),
    "DSV751": (_synth(_plan(), out="occupied"), _synth(_plan())),
    "DSV752": (_synth(_vocabulary(101)), _synth(_vocabulary(100))),
    "DSV753": (_synth(_wide(33)), _synth(_wide(64))),
}
