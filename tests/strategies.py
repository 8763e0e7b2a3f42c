"""Hypothesis strategies: valid specs as plain data, and mutations that each make one mistake in them."""

from __future__ import annotations

import copy
import json
from types import SimpleNamespace

from hypothesis import reject
from hypothesis import strategies as st

from dsv41c.compiler.engram_hash import hash_constants
from dsv41c.compiler.spec import Loaded, load

from .mutations import MUTATIONS, Draw, Spec

MODEL = {"n_mtp_layers": 0, "dim": 64, "vocab_size": 128, "norm_eps": 1e-20, "max_seq_len": 256}
PARTS: Spec = {
    "tokens": {"bos": 0, "eos": 1, "pad": 2},
    "attention": {
        "n_heads": 4,
        "head_dim": 32,
        "rope_head_dim": 16,
        "q_lora_rank": 32,
        "o_groups": 2,
        "o_lora_rank": 32,
        "window_size": 8,
    },
    "rope": {
        "theta": 10000,
        "compress_theta": 160000,
        "yarn": {"factor": 16, "original_seq_len": 64, "beta_fast": 32, "beta_slow": 1},
    },
    "indexer": {"n_heads": 2, "head_dim": 32, "topk": 4, "candidate_topk_blocks": 2, "candidate_block_size": 2},
    "mhc": {"streams": 2, "sinkhorn_iters": 3, "eps": 1e-6},
    "moe": {
        "n_routed_experts": 4,
        "n_activated_experts": 2,
        "n_shared_experts": 1,
        "inter_dim": 32,
        "score_func": "sqrtsoftplus",
        "gate_temp": 1.0,
        "route_scale": 1.5,
        "swiglu_limit": 2.0,
    },
    "weights": {"linear": "fp8_32x32", "experts": "fp4_32", "engram": "fp8_row32", "scale": "e8m0"},
}


def loaded(spec: Spec) -> Loaded:
    """A spec given as data, loaded as a person's file would be."""
    return load("-", stdin=lambda: json.dumps(spec).encode())


def layer_map(draw: Draw) -> tuple[list[int], list[int], list[int]]:
    """Ratios, KV sources and index sources: window layers, then histories, each begun by a layer in both lists."""
    ratios = [0] * draw(st.integers(0, 2))
    kv, index = [], []
    for _ in range(draw(st.integers(0, 3))):
        ratio = draw(st.sampled_from([1, 2, 4]))
        kv.append(len(ratios))
        for position in range(draw(st.integers(1, 4))):
            if position == 0 or draw(st.booleans()):
                index += [len(ratios)] if position == 0 or draw(st.booleans()) else []
                ratios.append(ratio)
            else:
                ratios.append(0)
    return ratios or [0], kv, index


@st.composite
def specs(draw: Draw, buckets: int = 1 << 40) -> Spec:
    """A valid spec; its only possible finding is the warning about candidates that nobody reads.

    `buckets`: the most that an engram's hash may have for each of its columns.
    """
    ratios, kv, index = layer_map(draw)
    layers: Spec = {"compress_ratios": ratios, "kv_source_layers": kv, "index_source_layers": index}
    if kv and draw(st.booleans()):
        layers["candidate_source_layer"] = kv[-1]
    if kv and draw(st.booleans()):
        layers["reads"] = _reads(draw, ratios, kv, index)
    spec: Spec = {"format": "dsv41c.spec/1", "name": "random", "model": {"n_layers": len(ratios), **MODEL}}
    spec |= {"layers": layers, **copy.deepcopy(PARTS)}
    engrams = sorted(draw(st.sets(st.integers(0, len(ratios) - 1), max_size=3)))
    if engrams:
        layers["engram_layers"] = engrams
        spec["engram"] = _engram(draw, engrams, buckets)
    if draw(st.booleans()):
        spec["placement"] = _placement(draw, len(ratios))
    return spec


def _reads(draw: Draw, ratios: list[int], kv: list[int], index: list[int]) -> Spec:
    """A read named as it would resolve anyway."""
    layer = draw(st.sampled_from([layer for layer, ratio in enumerate(ratios) if ratio]))
    latest = {"compress_kv": max(x for x in kv if x <= layer), "topk": max(x for x in index if x <= layer)}
    return {str(layer): {kind: latest[kind] for kind in draw(st.sets(st.sampled_from(sorted(latest)), min_size=1))}}


def _engram(draw: Draw, engrams: list[int], buckets: int) -> Spec:
    sizes = {
        "max_ngram_size": draw(st.integers(2, 4)),
        "n_heads": draw(st.integers(1, 3)),
        "vocab_size": draw(st.integers(2, buckets)),
        "compressed_vocab_size": draw(st.integers(1, 128)),
    }
    rows = [layer.rows for layer in hash_constants(SimpleNamespace(**sizes), engrams)]
    sizes["vocab_size"] = min(sizes["vocab_size"], 1 << 34)  # so that rows stay within the bounds of a table
    rows = [layer.rows for layer in hash_constants(SimpleNamespace(**sizes), engrams)]
    return {**sizes, "head_dim": 32, "pad_id": 2, "num_embeddings": rows}


def _placement(draw: Draw, layers: int) -> Spec:
    ends = sorted(draw(st.sets(st.integers(1, layers), max_size=3)) | {layers})
    family = draw(st.sampled_from(["cpu", "cuda", "rocm", "hpu"]))
    return {"devices": [f"{family}:{draw(st.integers(0, 2))}" for _ in ends], "layer_ends": ends}


@st.composite
def mutated(draw: Draw, name: str | None = None) -> Spec:
    """A valid spec with one mistake; of the kind named, or of any."""
    mutate = MUTATIONS[name] if name else draw(st.sampled_from(list(MUTATIONS.values())))
    spec = mutate(draw, draw(specs()))
    if spec is None:
        reject()
    return spec
