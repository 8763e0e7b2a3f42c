"""The golden checkpoint in other layouts: functions of its tensors {name: (dtype, shape, bytes)}, made byte by byte."""

import re

import numpy as np

_LAYERS = range(10)
_EXPERTS = range(8)
_TRANSFORMERS = {
    "embed.weight": "model.embed_tokens.weight",
    "head.weight": "lm_head.weight",
    "norm.weight": "model.norm.weight",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "hc_attn_": "attn_hc.",
    "hc_ffn_": "ffn_hc.",
    "attn.wq_a": "self_attn.q_a_proj",
    "attn.q_norm": "self_attn.q_a_norm",
    "attn.wq_b": "self_attn.q_b_proj",
    "attn.wkv": "self_attn.kv_proj",
    "attn.attn_sink": "self_attn.sinks",
    "attn.wo_a": "self_attn.o_a_proj",
    "attn.wo_b": "self_attn.o_b_proj",
    "attn.compressor.wkv": "self_attn.compressor.kv_proj",
    "attn.compressor.wgate": "self_attn.compressor.gate_proj",
    "attn.compressor.norm": "self_attn.compressor.kv_norm",
    "attn.indexer.wk": "self_attn.indexer.k_proj",
    "attn.indexer.wq_b": "self_attn.indexer.q_b_proj",
    "attn.indexer": "self_attn.indexer",
    "attn.kv_norm": "self_attn.kv_norm",
    "ffn.gate.bias_vl": "mlp.gate.e_score_correction_bias_vl",
    "ffn.gate.bias": "mlp.gate.e_score_correction_bias",
    "ffn.gate.weight": "mlp.gate.weight",
    "ffn.shared_experts.w1": "mlp.shared_experts.gate_proj",
    "ffn.shared_experts.w2": "mlp.shared_experts.down_proj",
    "ffn.shared_experts.w3": "mlp.shared_experts.up_proj",
    "engram.embed": "engram.embed_tokens",
}


def joined(*tensors):
    """Tensors of one dtype and shape in a new first dimension."""
    (dtype, shape, _), *_ = tensors
    return dtype, [len(tensors), *shape], b"".join(data for _, _, data in tensors)


def after(*tensors):
    """The rows of matrices one after the other."""
    dtype, shape, _ = tensors[0]
    return dtype, [sum(shape[0] for _, shape, _ in tensors), *shape[1:]], b"".join(data for _, _, data in tensors)


def alternating(one, other):
    """The rows of two matrices in turn."""
    dtype, shape, _ = one
    rows = [np.frombuffer(data, np.uint8).reshape(shape[0], -1) for _, _, data in (one, other)]
    return dtype, [2 * shape[0], *shape[1:]], np.stack(rows, 1).tobytes()


def _without_experts(data):
    return {name: tensor for name, tensor in data.items() if ".experts." not in name}


def _expert(data, layer, expert, matrix, part):
    return data[f"layers.{layer}.ffn.experts.{expert}.{matrix}.{part}"]


def stacked(data, name="layers.{layer}.ffn.experts.{matrix}", endings=(".weight", ".scale")):
    """All experts of a layer in one tensor a matrix."""
    found = _without_experts(data)
    for layer in _LAYERS:
        for matrix in ("w1", "w2", "w3"):
            for part, ending in zip(("weight", "scale"), endings, strict=True):
                parts = [_expert(data, layer, expert, matrix, part) for expert in _EXPERTS]
                found[name.format(layer=layer, matrix=matrix) + ending] = joined(*parts)
    return found


def gate_up(data, put=after, gate="w1", up="w3", base="layers.{layer}.mlp.experts.", endings=("", "_scale_inv")):
    """The experts as Transformers holds them: gate and up in one tensor, down in another."""
    found = _without_experts(data)
    for layer in _LAYERS:
        for part, ending in zip(("weight", "scale"), endings, strict=True):
            pairs = [[_expert(data, layer, expert, matrix, part) for matrix in (gate, up)] for expert in _EXPERTS]
            downs = [_expert(data, layer, expert, "w2", part) for expert in _EXPERTS]
            place = base.format(layer=layer)
            found[f"{place}gate_up_proj{ending}"] = joined(*(put(*pair) for pair in pairs))
            found[f"{place}down_proj{ending}"] = joined(*downs)
    return found


def transformers(data, put=after, scale=".weight_scale_inv"):
    """Every name as Transformers spells it, with its prefix."""
    found = {}
    for name, tensor in gate_up(data, put).items():
        layer = re.match(r"layers\.\d+\.", name)
        rest = name[layer.end() :] if layer else name
        official = max(filter(rest.startswith, _TRANSFORMERS), key=len, default="")
        name = name.removesuffix(rest) + _TRANSFORMERS.get(official, "") + rest.removeprefix(official)
        if re.search(r"attn\.|mlp\.shared|engram", name) and name.endswith(".scale"):
            name = name.removesuffix(".scale") + scale
        outside = name.startswith(("model.", "lm_head."))
        found[name if outside else "model." + name] = tensor
    return found


def vllm(data):
    """Fused as an engine holds them: w1 and w3 of experts and of the shared one, both compressor matrices."""
    found = {
        re.sub(r"mlp\.experts\.(gate_up|down)_proj", lambda m: f"ffn.experts.{_W[m[1]]}_weight", name): tensor
        for name, tensor in gate_up(data, endings=("", "_scale")).items()
    }
    for layer in _LAYERS:
        shared = f"layers.{layer}.ffn.shared_experts."
        for part, ending in (("weight", ".weight"), ("scale", ".weight_scale")):
            pair = [found.pop(f"{shared}{matrix}.{part}") for matrix in ("w1", "w3")]
            found[f"{shared}gate_up_proj{ending}"] = after(*pair)
        place = f"layers.{layer}.attn.compressor."
        if f"{place}wgate.weight" in found:
            pair = [found.pop(f"{place}{matrix}.weight") for matrix in ("wkv", "wgate")]
            found[f"{place}fused_wkv_wgate.weight"] = after(*pair)
    return found


_W = {"gate_up": "w13", "down": "w2"}


def rows_of_codes_and_scales(data):
    """Engram tables with a row's scales behind its codes."""
    found = dict(data)
    for layer in (1, 4):
        (_, shape, codes), (_, _, scale) = (found.pop(f"layers.{layer}.engram.embed.{p}") for p in ("weight", "scale"))
        parts = [np.frombuffer(raw, np.uint8).reshape(shape[0], -1) for raw in (codes, scale)]
        table = np.concatenate(parts, 1)
        found[f"layers.{layer}.engram.embed.rows"] = ("U8", list(table.shape), table.tobytes())
    return found


def mxfp8(data):
    """Every matrix in 32 x 32 blocks with a scale for 32 columns of each row instead: the same values."""
    found = dict(data)
    for name, (dtype, shape, raw) in data.items():
        codes = data.get(name.removesuffix(".scale") + ".weight")
        if name.endswith(".scale") and codes[0] == "F8_E4M3" and "engram.embed" not in name:
            grid = np.frombuffer(raw, np.uint8).reshape(shape)
            rows = np.repeat(grid, 32, axis=0)[: codes[1][0]]
            found[name] = (dtype, list(rows.shape), rows.tobytes())
    return found


def as_f4(data, dtype="F4"):
    """Packed experts under another dtype: F4 counts elements, U8 and I8 bytes."""
    return {
        name: (dtype, [*shape[:-1], shape[-1] * 2] if dtype == "F4" else shape, raw)
        if old == "I8"
        else (old, shape, raw)
        for name, (old, shape, raw) in data.items()
    }


def nibbles_swapped(data):
    """Packed experts with the high nibble first."""
    found = dict(data)
    for name, (dtype, shape, raw) in data.items():
        if dtype == "I8":
            byte = np.frombuffer(raw, np.uint8)
            found[name] = (dtype, shape, ((byte << 4) | (byte >> 4)).astype(np.uint8).tobytes())
    return found
