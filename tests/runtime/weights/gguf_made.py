"""GGUF files of a checkpoint in the release's layout, by the `gguf` package's own writer and as each family spells it.

The values are decoded here, by other code than the runtime's.
"""

import json
import struct
from functools import cache
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf import GGUFValueType as Kind
from gguf import GGUFWriter
from gguf.quants import quantize

TINY = Path(__file__).resolve().parents[2] / "golden" / "tiny"
PREFIX = "deepseek41."
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)

SHARED = {
    "attn_norm.weight": "attn_norm",
    "ffn_norm.weight": "ffn_norm",
    "attn.wq_a.weight": "attn_q_a",
    "attn.q_norm.weight": "attn_q_a_norm",
    "attn.wq_b.weight": "attn_q_b",
    "attn.wkv.weight": "attn_kv",
    "attn.kv_norm.weight": "attn_kv_a_norm",
    "attn.attn_sink": "attn_sinks",
    "attn.wo_a.weight": "attn_output_a",
    "attn.wo_b.weight": "attn_output_b",
    "attn.compressor.wkv.weight": "attn_compressor_kv",
    "attn.compressor.wgate.weight": "attn_compressor_gate",
    "attn.compressor.norm.weight": "attn_compressor_norm",
    "attn.indexer.wq_b.weight": "indexer.attn_q_b",
    "attn.indexer.weights_proj.weight": "indexer.proj",
    "ffn.gate.weight": "ffn_gate_inp",
    "ffn.shared_experts.w1.weight": "ffn_gate_shexp",
    "ffn.shared_experts.w3.weight": "ffn_up_shexp",
    "ffn.shared_experts.w2.weight": "ffn_down_shexp",
    **{f"hc_{part}_{kind}": f"hc_{part}_{kind}" for part in ("attn", "ffn") for kind in ("fn", "base", "scale")},
}
OWN = {
    "a": {"attn.indexer.wk.weight": "indexer_compressor_kv", "attn.indexer.k_norm.weight": "indexer_compressor_norm"},
    "b": {"attn.indexer.wk.weight": "indexer.attn_k", "attn.indexer.k_norm.weight": "indexer.k_norm"},
}
OWN["c"] = OWN["d"] = OWN["upstream"] = OWN["b"]
ENGRAM = {
    "a": {"engram.embed.weight": "engram_embed", "engram.q_weight": "engram_q", "engram.k_weight": "engram_k"},
    "b": {"engram.embed.weight": "engram_embd", "engram.q_weight": "engram_q", "engram.k_weight": "engram_k"},
    "c": {"engram.embed.weight": "engram_embd", "engram.q_weight": "engram_q_norm", "engram.k_weight": "engram_k_norm"},
    "upstream": {},
}
ENGRAM["d"] = ENGRAM["b"]
PROJECTION = {"a": "engram_wkv", "b": "engram_wkv", "c": "engram_kv", "d": "engram_wkv", "upstream": "engram_wkv"}
FAMILIES = ("a", "b", "c", "d", "upstream")


@cache
def stored(folder=TINY):
    """Every tensor of a safetensors folder: {name: (dtype, array of what is stored)}."""
    found = {}
    for path in sorted(folder.glob("*.safetensors")):
        raw = path.read_bytes()
        (length,) = struct.unpack("<Q", raw[:8])
        for name, e in json.loads(raw[8 : 8 + length]).items():
            if name != "__metadata__":
                begin, end = e["data_offsets"]
                kind = {"F32": np.float32, "BF16": np.uint16}.get(e["dtype"], np.uint8)
                data = np.frombuffer(raw[8 + length + begin : 8 + length + end], kind)
                found[name] = (e["dtype"], data.reshape(e["shape"]))
    return found


def e4m3(codes):
    """The values of E4M3 codes."""
    sign, exponent, fraction = codes >> 7, (codes >> 3) & 15, codes & 7
    small = fraction.astype(np.float32) * 2.0**-9
    normal = (1 + fraction / 8).astype(np.float32) * np.exp2(exponent.astype(np.float32) - 7)
    return np.where(exponent == 0, small, normal).astype(np.float32) * np.where(sign == 1, -1, 1).astype(np.float32)


def e8m0(scales):
    return np.exp2(scales.astype(np.float64) - 127).astype(np.float32)


def values(name, folder=TINY):
    """A tensor of the release's layout, decoded: f32."""
    dtype, data = stored(folder)[name]
    if dtype == "F32":
        return data
    if dtype == "BF16":
        return (data.astype(np.uint32) << 16).view(np.float32)
    scale = e8m0(stored(folder)[name.removesuffix("weight") + "scale"][1])
    if dtype == "I8":
        codes = np.stack([data & 15, data >> 4], -1).reshape(data.shape[0], -1)
        return E2M1[codes] * np.repeat(scale, 32, 1)
    if scale.shape[0] != data.shape[0]:
        scale = np.repeat(scale, 32, 0)[: data.shape[0]]
    return e4m3(data) * np.repeat(scale, 32, 1)[:, : data.shape[1]]


def mxfp4(name, folder=TINY):
    """An expert as blocks of MXFP4: the scale, then 16 bytes, byte j with elements j and j + 16."""
    codes = stored(folder)[name][1]
    scale = stored(folder)[name.removesuffix("weight") + "scale"][1]
    elements = np.stack([codes & 15, codes >> 4], -1).reshape(*scale.shape, 32)
    packed = elements[..., :16] | (elements[..., 16:] << 4)
    return np.concatenate([scale[..., None], packed], -1).reshape(scale.shape[0], -1)


def as_type(array, kind):
    """(array as the writer takes it, its type)."""
    if kind == "F32":
        return np.ascontiguousarray(array, np.float32), Type.F32
    return quantize(np.ascontiguousarray(array, np.float32), Type[kind]), Type[kind]


def tensors(family="b", folder=TINY, *, dense="BF16", experts="MXFP4", table="BF16", single=False):
    """Every tensor of a family, {name: (array, type)}: matrices as `dense`, experts and tables as they are named."""
    found = {}
    config = json.loads((folder / "config.json").read_text())["text_config"]
    found["token_embd.weight"] = as_type(values("embed.weight", folder), dense)
    found["output.weight"] = as_type(values("head.weight", folder), dense)
    found["output_norm.weight"] = as_type(values("norm.weight", folder), "F32")
    for layer in range(config["num_hidden_layers"]):
        front, own = f"layers.{layer}.", {**SHARED, **OWN[family], "engram.wkv.weight": PROJECTION[family]}
        for rest, name in own.items():
            if front + rest in stored(folder):
                array = values(front + rest, folder)
                kind = dense if array.ndim == 2 and not rest.startswith("hc_") else "F32"
                found[f"blk.{layer}.{name}.weight"] = as_type(array, kind)
        found[f"blk.{layer}.exp_probs_b.bias"] = as_type(values(front + "ffn.gate.bias", folder), "F32")
        if family != "a":
            found[f"blk.{layer}.exp_probs_b_vl.bias"] = as_type(values(front + "ffn.gate.bias", folder), "F32")
        _add_experts(found, layer, config["n_routed_experts"], folder, experts, single)
    layers = config["engram_layer_ids"]
    for layer in layers:
        _add_engram(found, family, layer, folder, table)
    if family == "upstream" and layers:
        whole = np.concatenate([values(f"layers.{layer}.engram.embed.weight", folder) for layer in layers])
        found["per_layer_token_embd.weight"] = as_type(whole, table)
    return found


def _add_experts(found, layer, count, folder, kind, single):
    for part, name in (("w1", "gate"), ("w3", "up"), ("w2", "down")):
        names = [f"layers.{layer}.ffn.experts.{expert}.{part}.weight" for expert in range(count)]
        if kind == "MXFP4":
            each = [(mxfp4(name, folder), Type.MXFP4) for name in names]
        else:
            each = [as_type(values(name, folder), kind) for name in names]
        if single:
            found |= {f"blk.{layer}.ffn_{name}.{expert}.weight": item for expert, item in enumerate(each)}
        else:
            found[f"blk.{layer}.ffn_{name}_exps.weight"] = (np.stack([array for array, _ in each]), each[0][1])


def _add_engram(found, family, layer, folder, table):
    front = f"layers.{layer}."
    codes, scale = (stored(folder)[f"{front}engram.embed.{part}"][1] for part in ("weight", "scale"))
    q, k = (values(f"{front}engram.{part}_weight", folder) for part in "qk")
    block = f"blk.{layer}."
    if family == "upstream":
        found[block + "engram_gate.weight"] = as_type(q * k, "F32")
        return
    for rest, name in ENGRAM[family].items():
        if rest != "engram.embed.weight":
            kind = "F32" if family == "c" else "BF16"
            found[f"{block}{name}.weight"] = as_type(q if "q_" in rest else k, kind)
    name = f"{block}{ENGRAM[family]['engram.embed.weight']}.weight"
    if family == "c":
        found[name] = (np.concatenate([codes, scale], 1).view(np.int8), Type.I8)
    elif family == "d":
        found[name] = (codes.view(np.int8), Type.I8)
        found[f"{block}engram_embd_scale.weight"] = (scale.view(np.int8), Type.I8)
    else:
        found[name] = as_type(values(f"{front}engram.embed.weight", folder), table)


class Array(tuple):
    """An array of a key with the kind of its elements: `Array("u64", [...])`."""

    def __new__(cls, kind, items):
        made = super().__new__(cls, items)
        made.kind = Kind[{"u": "UINT", "i": "INT", "f": "FLOAT"}[kind[0]] + kind[1:]]
        return made


def hash_constants(folder=TINY):
    """(multipliers, primes, offsets, token map) of a checkpoint's engrams, flat."""
    from tokenizers import Tokenizer

    from dsv41c.compiler.engram_hash import hash_constants as derive
    from dsv41c.runtime.token_map import token_map

    config = json.loads((folder / "config.json").read_text())["text_config"]

    class Sizes:
        max_ngram_size = config["engram_max_ngram_size"]
        n_heads = config["engram_n_heads"]
        vocab_size = config["engram_vocab_size"]
        compressed_vocab_size = config["engram_compressed_vocab_size"]

    layers = derive(Sizes, config["engram_layer_ids"])
    flat = [[number for layer in layers for number in getattr(layer, part)] for part in ("multipliers", "primes")]
    offsets = [number for layer in layers for number in layer.offsets]
    return *flat, offsets, token_map(Tokenizer.from_file(str(folder / "tokenizer.json")), config["vocab_size"])


LLAMA = {
    "vocab_size": "vocab_size",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.value_length": "head_dim",
    "attention.q_lora_rank": "q_lora_rank",
    "attention.sliding_window": "sliding_window",
    "attention.output_group_count": "o_groups",
    "attention.output_lora_rank": "o_lora_rank",
    "attention.indexer.head_count": "index_n_heads",
    "attention.indexer.key_length": "index_head_dim",
    "attention.indexer.top_k": "index_topk",
    "rope.dimension_count": "qk_rope_head_dim",
    "expert_count": "n_routed_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_shared_count": "n_shared_experts",
    "expert_feed_forward_length": "moe_intermediate_size",
    "hyper_connection.count": "hc_mult",
    "hyper_connection.sinkhorn_iterations": "hc_sinkhorn_iters",
}
LLAMA_FLOATS = {
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.compress_rope_freq_base": "compress_rope_theta",
    "rope.freq_base": "rope_theta",
    "expert_weights_scale": "routed_scaling_factor",
    "hyper_connection.epsilon": "hc_eps",
}


def keys(family="b", folder=TINY, *, lists=True):
    """The keys of a family without their prefix; those with a dot first are whole. `lists`: B has these or not."""
    config = json.loads((folder / "config.json").read_text())
    text = config["text_config"]
    found = _config_keys(text) if family == "c" else _llama_keys(text, lists or family != "b")
    if text["engram_layer_ids"]:
        found |= _engram_keys(family, text, folder)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    order = sorted(tokenizer["model"]["vocab"].items(), key=lambda item: item[1])
    special = {token["id"] for token in tokenizer["added_tokens"]}
    return found | {
        ".tokenizer.ggml.model": "gpt2",
        ".tokenizer.ggml.pre": "default",
        ".tokenizer.ggml.tokens": [token for token, _ in order],
        ".tokenizer.ggml.token_type": Array("i32", [3 if id in special else 1 for _, id in order]),
        ".tokenizer.ggml.merges": [" ".join(merge) for merge in tokenizer["model"]["merges"]],
        **{f".tokenizer.ggml.{name}_token_id": config[f"{name[:3]}_token_id"] for name in ("bos", "eos", "padding")},
    }


def _llama_keys(text, lists):
    found = {key: text[name] for key, name in LLAMA.items()}
    found |= {key: float(text[name]) for key, name in LLAMA_FLOATS.items()}
    scaling, layers = text["rope_scaling"], text["num_hidden_layers"]
    found |= {
        "attention.compress_ratios": Array("u32", text["compress_ratios"]),
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": float(scaling["factor"]),
        "rope.scaling.original_context_length": scaling["original_max_position_embeddings"],
        "rope.scaling.yarn_beta_fast": float(scaling["beta_fast"]),
        "rope.scaling.yarn_beta_slow": float(scaling["beta_slow"]),
        "expert_gating_func": 4,
        "expert_weights_norm": True,
        "swiglu_clamp_exp": Array("f32", [text["swiglu_limit"]] * layers),
        "swiglu_clamp_shexp": Array("f32", [text["swiglu_limit"]] * layers),
        "hash_layer_count": 0,
        "attention.candidate_source_layer_id": text["candidate_source_layer_id"],
        "attention.candidate_block_size": text["candidate_block_size"],
        "attention.candidate_topk_blocks": text["candidate_topk_blocks"],
    }
    if lists:
        found["attention.kv_source_layer_ids"] = Array("u32", text["kv_source_layer_ids"])
        found["attention.index_source_layer_ids"] = Array("u32", text["index_source_layer_ids"])
    return found


def _config_keys(text):
    names = (
        "vocab_size hidden_size moe_intermediate_size num_hidden_layers num_attention_heads num_key_value_heads "
        "head_dim qk_rope_head_dim q_lora_rank o_lora_rank o_groups n_routed_experts n_shared_experts "
        "num_experts_per_tok max_position_embeddings sliding_window index_n_heads index_head_dim index_topk "
        "candidate_source_layer_id candidate_topk_blocks candidate_block_size hc_mult hc_sinkhorn_iters rope_theta "
        "compress_rope_theta scoring_func hidden_act topk_method norm_topk_prob"
    )
    found = {name: text[name] for name in names.split()}
    found |= {name: float(text[name]) for name in ("hc_eps", "rms_norm_eps", "swiglu_limit", "routed_scaling_factor")}
    for name in ("compress_ratios", "kv_source_layer_ids", "index_source_layer_ids"):
        found[name] = Array("u32", text[name])
    scaling = text["rope_scaling"]
    for name in ("factor", "beta_fast", "beta_slow", "original_max_position_embeddings"):
        found[f"rope_scaling.{name}"] = float(scaling[name])
    return {**found, "config": json.dumps(text)}


def _engram_keys(family, text, folder):
    multipliers, primes, offsets, mapped = hash_constants(folder)
    layers, pad = Array("u32", text["engram_layer_ids"]), text["engram_pad_token_id"]
    if family == "upstream":
        return {
            "ple.layers": layers,
            "ple.ngram_size": text["engram_max_ngram_size"],
            "ple.heads_per_ngram": text["engram_n_heads"],
            "ple.head_vocab_sizes": Array("u64", primes),
            "ple.head_offsets": Array("u64", offsets),
            "ple.layer_multipliers": Array("u64", multipliers),
            "engram.token_map": Array("i32", mapped),
        }
    wide = "u64" if family != "c" else "u32"
    found = {
        "engram.layer_ids": layers,
        "engram.multipliers": Array("u64", multipliers),
        "engram.primes": Array(wide, primes),
        "engram.token_map": Array("i32" if family == "b" else "u32", mapped),
    }
    if family != "c":
        found["engram.offsets"] = Array("u64", offsets)
    if family in ("a", "d"):
        found |= {
            "engram.head_dim": text["engram_head_dim"],
            "engram.n_heads": text["engram_n_heads"],
            "engram.max_ngram_size": text["engram_max_ngram_size"],
            "engram.pad_token_id": pad,
            "engram.compressed_vocab_size": text["engram_compressed_vocab_size"],
            "engram.num_embeddings": Array("u64", text["engram_num_embeddings"]),
        }
    elif family == "b":
        found |= {
            "engram.key_length": text["engram_head_dim"],
            "engram.head_count": text["engram_n_heads"],
            "engram.max_ngram_size": text["engram_max_ngram_size"],
            "engram.pad_id": mapped[pad],
        }
    else:
        found |= {
            "engram.encoding": f"e4m3_e8m0_32_row{text['engram_head_dim'] // 32 * 33}",
            "engram.rows": Array("u32", text["engram_num_embeddings"]),
            "engram.compressed_vocab_size": text["engram_compressed_vocab_size"],
            "engram.pad_id": mapped[pad],
        }
    return found


def write(path, tensors, keys, *, arch="deepseek41", extra=()):
    """Write a file. A key whose name begins with a dot is written whole, others with the prefix."""
    writer = GGUFWriter(str(path), arch)
    for name, value in keys.items():
        key = name[1:] if name.startswith(".") else PREFIX + name
        if isinstance(value, Array):
            writer.add_key_value(key, list(value), Kind.ARRAY, sub_type=value.kind)
        elif isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            (writer.add_float32 if isinstance(value, float) else writer.add_uint32)(key, value)
    for key, (number, add) in dict(extra).items():
        getattr(writer, add)(key, number)
    for name, (array, kind) in tensors.items():
        writer.add_tensor(name, array, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def split(folder, tensors, keys, parts=3, stem="model"):
    """The same as a split set, the keys in its first part; gives the parts' paths."""
    names, paths = list(tensors), []
    size = -(-len(names) // parts)
    for part in range(parts):
        own = {name: tensors[name] for name in names[part * size : (part + 1) * size]}
        extra = {
            "split.no": (part, "add_uint16"),
            "split.count": (parts, "add_uint16"),
            "split.tensors.count": (len(names), "add_int32"),
        }
        path = folder / f"{stem}-{part + 1:05}-of-{parts:05}.gguf"
        paths.append(write(path, own, keys if part == 0 else {}, extra=extra))
    return paths
