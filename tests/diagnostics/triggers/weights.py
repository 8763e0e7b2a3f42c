"""What sets off each code of checkpoints (7xx). `TRIGGERS[code](tmp_path)` gives findings that hold the code."""

import importlib.util
import os
from pathlib import Path

from dsv41c.diagnostics import UserFault
from dsv41c.runtime.weights.headers import read_checkpoint

TESTS = Path(__file__).resolve().parents[2]
TINY = TESTS / "golden" / "tiny"
_spec = importlib.util.spec_from_file_location("hand_made_plans", TESTS / "runtime" / "weights" / "hand_made.py")
plans = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(plans)

ONE = ("F32", [2], b"\0" * 8)
DIM = {"dim": 64, "streams": 2, "experts": 2, "inter_dim": 32, "groups": 1, "o_lora_rank": 64}
WEIGHT, SCALE = "layers.0.attn.wo_b.weight", "layers.0.attn.wo_b.scale"
CODES, SCALES = ("F8_E4M3", [64, 64], b"\x38" * 4096), ("F8_E8M0", [2, 2], b"\x7f" * 4)


def _raised(make, *args, **kwargs):
    try:
        make(*args, **kwargs)
    except UserFault as fault:
        return list(fault.diagnostics)
    return []


def _headers(path):
    return list(read_checkpoint(path).diagnostics)


def _raw(data):
    def trigger(path):
        (path / "x.safetensors").write_bytes(data)
        return _headers(path)

    return trigger


def _files(*files, index=None):
    def trigger(path):
        for number, tensors in enumerate(files):
            plans.write(path / f"{number}.safetensors", tensors)
        if index is not None:
            plans.write_index(path, index)
        return _headers(path)

    return trigger


def _entry(**changes):
    return plans.frame({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **changes}})


def _index(text):
    def trigger(path):
        (path / "model.safetensors.index.json").write_text(text)
        return _headers(path)

    return trigger


def _plan(compute="f32"):
    return plans.manifest([plans.entry("wo_b", DIM, 0, compute)])


def _bound(tensors, compute="f32"):
    """The findings of binding a plan of one FP8 matrix."""

    def trigger(path):
        from dsv41c.runtime.weights.bind import bind

        plans.write(path / "x.safetensors", tensors)
        return _raised(bind, _plan(compute), path)

    return trigger


def _experts(path):
    from dsv41c.runtime.weights.match import match

    names = [f"layers.0.ffn.experts.{number}.w1.weight" for number in range(3)]
    plans.write(path / "x.safetensors", {name: ("BF16", [32, 64], b"\0" * 4096) for name in names})
    return list(match(plans.manifest([plans.entry("experts_w1", DIM, 0)]), read_checkpoint(path)).diagnostics)


def _changed(path):
    from dsv41c.runtime.weights.bind import bind

    plans.write(path / "x.safetensors", {WEIGHT: CODES, SCALE: SCALES})
    checkpoint = read_checkpoint(path)
    os.truncate(path / "x.safetensors", 100)
    return _raised(bind, _plan(), checkpoint)


def _tokens(vocab_size, compressed):
    def trigger(path):
        from tokenizers import Tokenizer

        from dsv41c.runtime.token_map import token_map

        return _raised(token_map, Tokenizer.from_file(str(TINY / "tokenizer.json")), vocab_size, compressed)

    return trigger


def _synth(plan, out="out", **kwargs):
    def trigger(path):
        from dsv41c.runtime.synth import synth

        (path / "occupied").mkdir()
        (path / "occupied" / "file").write_text("")
        return _raised(synth, plan, {}, path / out, **kwargs)

    return trigger


_NARROW = plans.entry("experts_w1", {**DIM, "dim": 33}, 0)

TRIGGERS = {
    "DSV700": lambda path: _headers(path / "nothing"),
    "DSV701": _raw(b"<html>not a checkpoint</html>" * 1000),
    "DSV702": _raw(_entry(dtype="F6_E2M3") + b"\0" * 8),
    "DSV703": _raw(_entry() + b"\0" * 7),
    "DSV704": _raw(_entry(data_offsets=[0, 4]) + b"\0" * 4),
    "DSV705": _index("[]"),
    "DSV706": _index('{"weight_map": {"a": "../x.safetensors"}}'),
    "DSV707": _index('{"weight_map": {"a": "x.safetensors"}}'),
    "DSV708": _files({"a": ONE}, index={"0.safetensors": ["b"]}),
    "DSV709": _files({"a": ONE}, {"a": ONE}),
    "DSV710": _files({"embed.weight": ONE, "model.norm.weight": ONE}),
    "DSV720": _bound({}),
    "DSV721": _bound({WEIGHT: CODES, SCALE: SCALES, "layers.0.attn.wo_c.weight": ONE}),
    "DSV722": _bound({WEIGHT: ("F8_E4M3", [32, 64], b"\0" * 2048), SCALE: SCALES}),
    "DSV723": _bound({WEIGHT: ("F16", [64, 64], b"\0" * 8192)}),
    "DSV724": _bound({WEIGHT: CODES}),
    "DSV725": _bound({WEIGHT: CODES, SCALE: ("F8_E8M0", [64, 2], b"\0" * 128)}),
    "DSV726": _bound({WEIGHT: CODES, SCALE: SCALES, WEIGHT + "_scale_inv": SCALES}),
    "DSV727": _bound({WEIGHT: ("BF16", [64, 64], b"\0" * 8192), SCALE: SCALES}),
    "DSV728": _experts,
    "DSV730": _bound({WEIGHT: CODES, SCALE: ("F8_E8M0", [2, 2], b"\x7f\x7f\x7f\xff")}),
    "DSV731": _bound({WEIGHT: ("F32", [64, 64], b"\x01\x00\x80\x3f" * 4096)}, "bf16"),
    "DSV732": _changed,
    "DSV740": _tokens(500, None),
    "DSV741": _tokens(512, 400),
    "DSV750": _synth(_plan(), max_bytes=100),
    "DSV751": _synth(_plan(), out="occupied"),
    "DSV752": _synth(plans.manifest([], vocab=100, compressed=101)),
    "DSV753": _synth(plans.manifest([_NARROW])),
}
