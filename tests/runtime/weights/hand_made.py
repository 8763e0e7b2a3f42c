"""Manifests and checkpoints made by hand, so that the tests of weights need no compiler."""

import json
import struct
from pathlib import Path

from dsv41c.kernels.catalog import WEIGHT_ROLES
from dsv41c.runtime.manifest import (
    FORMAT,
    EngramEntry,
    EngramLayerEntry,
    Manifest,
    ModelEntry,
    NumericsEntry,
    RuntimeEntry,
    StageEntry,
    TargetEntry,
    TokensEntry,
    WeightEntry,
)

STORED = {"linear": "fp8_32x32", "experts": "fp4_32", "engram": "fp8_row32", "bf16": "bf16", "f32": "f32"}


def entry(role, symbols, layer=None, compute="f32", stored=STORED, **changes):
    """The weight entry of a role, its shape worked out from symbols."""
    of = WEIGHT_ROLES[role]
    experts = "{expert}" in of.name
    encoding = stored[of.stored]
    fields = {
        "id": role if layer is None else f"layers.{layer}.{role}",
        "role": role,
        "layer": layer,
        "stage": 0,
        "name": of.name.replace("{layer}", str(layer)),
        "shape": [int(eval(text, {}, dict(symbols))) for text in of.shape],
        "count": symbols["experts"] if experts else 1,
        "stored": encoding,
        "bytes": 0,
        "accepted": list(dict.fromkeys((encoding, "bf16", "f32"))),
        "dtype": compute if of.compute == "compute" else of.compute,
        "ops": [],
    }
    return WeightEntry(**{**fields, **changes})


def manifest(entries, *, vocab=512, compressed=None, dim=32, layers=1, tokens=(0, 1, 2)):
    """A manifest with weights, and the least of everything else."""
    engram = compressed and EngramEntry(
        max_ngram_size=4,
        n_heads=2,
        head_dim=32,
        pad_id=2,
        compressed_vocab_size=compressed,
        storage="mapped",
        layers=[EngramLayerEntry(layer=0, multipliers=[1] * 4, primes=[2] * 6, offsets=[0] * 6)],
    )
    return Manifest(
        format=FORMAT,
        tool="test",
        name="hand-made",
        spec_sha256="",
        graph_sha256="",
        target=TargetEntry(family="cpu", devices=["cpu:0"]),
        model=ModelEntry(
            n_layers=layers,
            dim=dim,
            vocab_size=vocab,
            streams=4,
            max_seq_len=1024,
            window_size=16,
            index_topk=8,
            candidate_block_size=4,
        ),
        tokens=TokensEntry(bos=tokens[0], eos=tokens[1], pad=tokens[2]),
        numerics=NumericsEntry(compute="f32", activation_quant="none", kv_cache="none"),
        runtime=RuntimeEntry(max_context=64, max_sessions=1, prefill_chunk=64, decode_buckets=[1], capture="off"),
        engram=engram,
        stages=[StageEntry(index=0, device="cpu:0", first_layer=0, end_layer=layers, file="stage_0.py")],
        files=[],
        values=[],
        ops=[],
        regions=[],
        transfers=[],
        kernels=[],
        weights=list(entries),
        constants=[],
    )


def _roles(layer, config):
    """The roles of one layer, from the layer lists of a config."""
    attention = [
        name for name in WEIGHT_ROLES if name.startswith(("attn_", "hc_attn", "wq", "q_norm", "wkv", "kv_", "wo_"))
    ]
    ffn = [name for name in WEIGHT_ROLES if name.startswith(("ffn_", "hc_ffn", "gate", "experts_", "shared_"))]
    roles = attention + ffn
    keeps, ranks = layer in config["kv_source_layer_ids"], layer in config["index_source_layer_ids"]
    if keeps:
        roles += ["compressor_wkv", "compressor_norm", "indexer_wk", "indexer_k_norm"]
        roles += ["compressor_wgate"] if config["compress_ratios"][layer] > 1 else []
    if ranks:
        roles += ["indexer_wq_b", "indexer_weights_proj"]
    if layer in config["engram_layer_ids"]:
        roles += [name for name in WEIGHT_ROLES if name.startswith("engram_")]
    return roles


def from_config(config, compute="f32"):
    """The manifest of a config in the release's layout (the inner `text_config`)."""
    symbols = {
        "vocab_size": config["vocab_size"],
        "dim": config["hidden_size"],
        "streams": config["hc_mult"],
        "q_lora_rank": config["q_lora_rank"],
        "heads": config["num_attention_heads"],
        "head_dim": config["head_dim"],
        "groups": config["o_groups"],
        "o_lora_rank": config["o_lora_rank"],
        "index_head_dim": config["index_head_dim"],
        "index_heads": config["index_n_heads"],
        "experts": config["n_routed_experts"],
        "inter_dim": config["moe_intermediate_size"],
        "engram_head_dim": config["engram_head_dim"],
        "engram_width": (config["engram_max_ngram_size"] - 1) * config["engram_n_heads"] * config["engram_head_dim"],
    }
    rows = dict(zip(config["engram_layer_ids"], config["engram_num_embeddings"], strict=True))
    entries = [entry(role, symbols, compute=compute) for role in ("embed", "head", "final_norm")]
    for layer in range(config["num_hidden_layers"]):
        known = {**symbols, "engram_rows": rows.get(layer, 0)}
        entries += [entry(role, known, layer, compute) for role in _roles(layer, config)]
    return manifest(
        entries,
        vocab=config["vocab_size"],
        compressed=config["engram_compressed_vocab_size"] if rows else None,
        dim=config["hidden_size"],
        layers=config["num_hidden_layers"],
    )


def tiny(folder, compute="f32", **changes):
    """The manifest of the golden checkpoint, with keys of its config changed."""
    config = json.loads((Path(folder) / "config.json").read_text())["text_config"]
    return from_config({**config, **changes}, compute)


def header(tensors, metadata=None):
    """A safetensors header for {name: (dtype, shape, size)}, laid out in order; padded to 8 bytes."""
    entries, offset = ({"__metadata__": metadata} if metadata else {}), 0
    for name, (dtype, shape, size) in tensors.items():
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    return frame(entries)


def frame(entries):
    """A header of any JSON value, framed with its length."""
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def write(path, tensors):
    """Write {name: (dtype, shape, bytes)} as a safetensors file."""
    sizes = {name: (dtype, shape, len(data)) for name, (dtype, shape, data) in tensors.items()}
    Path(path).write_bytes(header(sizes) + b"".join(data for _, _, data in tensors.values()))


def write_index(folder, shards):
    """Write an index that lists {file: names}."""
    weight_map = {name: file for file, names in shards.items() for name in names}
    text = json.dumps({"metadata": {}, "weight_map": weight_map})
    (Path(folder) / "model.safetensors.index.json").write_text(text)


def codes(diagnostics):
    """The codes of some findings, sorted."""
    return sorted(d.code for d in diagnostics)
