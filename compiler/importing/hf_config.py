"""The official nested `config.json` of a spec: what a checkpoint folder of the model holds beside its weights.

`import` of it gives the spec's model back. What the official file has no key for is not in it: `layers.reads`, and the
sections about the machine (`numerics`, `placement`, `runtime`), which `import` fills with defaults.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dsv41c.compiler.spec.models import Spec

Config = dict[str, object]


def to_hf_config(spec: Spec) -> Config:
    """The config as plain data, ready for `json.dumps`."""
    config: Config = {
        "architectures": ["DeepseekV41ForCausalLM"],
        "model_type": "deepseek_v41",
        "dtype": "bfloat16",
        "bos_token_id": spec.tokens.bos,
        "eos_token_id": spec.tokens.eos,
        "pad_token_id": spec.tokens.pad,
    }
    quantization = _quantization(spec)
    if quantization:
        config["quantization_config"] = quantization
    text: Config = {"model_type": "deepseek_v41_text"}
    text |= _sizes(spec) | _attention(spec) | _experts(spec) | _layers(spec) | _indexer(spec) | _engram(spec)
    config["text_config"] = text
    return config


def _quantization(spec: Spec) -> Config:
    """How the checkpoint stores its weights; nothing where they are plain floats, which is all that a file can say."""
    weights = spec.weights
    blocks = {"fp8_32x32": [32, 32], "fp8_row32": [1, 32]}
    if weights.linear not in blocks or (weights.experts, weights.engram) != ("fp4_32", "fp8_row32"):
        return {}
    return {
        "quant_method": "fp8",
        "activation_scheme": "dynamic",
        "weight_block_size": blocks[weights.linear],
        "scale_fmt": "ue8m0",
        "expert_dtype": "fp4",
    }


def _sizes(spec: Spec) -> Config:
    return {
        "vocab_size": spec.model.vocab_size,
        "hidden_size": spec.model.dim,
        "num_hidden_layers": spec.model.n_layers,
        "num_nextn_predict_layers": spec.model.n_mtp_layers,
        "rms_norm_eps": spec.model.norm_eps,
        "max_position_embeddings": spec.model.max_seq_len,
        "hidden_act": "silu",
        "attention_bias": False,
        "tie_word_embeddings": False,
        "hc_mult": spec.mhc.streams,
        "hc_sinkhorn_iters": spec.mhc.sinkhorn_iters,
        "hc_eps": spec.mhc.eps,
    }


def _attention(spec: Spec) -> Config:
    attention, rope = spec.attention, spec.rope
    return {
        "num_attention_heads": attention.n_heads,
        "num_key_value_heads": 1,
        "head_dim": attention.head_dim,
        "qk_rope_head_dim": attention.rope_head_dim,
        "q_lora_rank": attention.q_lora_rank,
        "o_lora_rank": attention.o_lora_rank,
        "o_groups": attention.o_groups,
        "sliding_window": attention.window_size,
        "rope_theta": rope.theta,
        "compress_rope_theta": rope.compress_theta,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": rope.yarn.factor,
            "beta_fast": rope.yarn.beta_fast,
            "beta_slow": rope.yarn.beta_slow,
            "original_max_position_embeddings": rope.yarn.original_seq_len,
        },
    }


def _experts(spec: Spec) -> Config:
    moe = spec.moe
    experts: Config = {
        "n_routed_experts": moe.n_routed_experts,
        "n_shared_experts": moe.n_shared_experts,
        "num_experts_per_tok": moe.n_activated_experts,
        "moe_intermediate_size": moe.inter_dim,
        "scoring_func": moe.score_func,
        "topk_method": "noaux_tc",
        "norm_topk_prob": True,
        "routed_scaling_factor": moe.route_scale,
        "swiglu_limit": moe.swiglu_limit,
    }
    # The release leaves the temperature at 1 and has no key for it; only another one is worth a key.
    return experts if moe.gate_temp == 1.0 else {**experts, "gate_temp": moe.gate_temp}


def _layers(spec: Spec) -> Config:
    layers, model = spec.layers, spec.model
    candidate = layers.candidate_source_layer
    return {
        "compress_ratios": [*layers.compress_ratios[: model.n_layers], *[0] * model.n_mtp_layers],
        "kv_source_layer_ids": list(layers.kv_source_layers),
        "index_source_layer_ids": list(layers.index_source_layers),
        "candidate_source_layer_id": -1 if candidate is None else candidate,
    }


def _indexer(spec: Spec) -> Config:
    return {
        "index_n_heads": spec.indexer.n_heads,
        "index_head_dim": spec.indexer.head_dim,
        "index_topk": spec.indexer.topk,
        "candidate_topk_blocks": spec.indexer.candidate_topk_blocks,
        "candidate_block_size": spec.indexer.candidate_block_size,
    }


def _engram(spec: Spec) -> Config:
    engram = spec.engram
    if engram is None:
        return {"engram_layer_ids": []}
    cut = {} if engram.hash_layers is None else {"engram_hash_layer_ids": list(engram.hash_layers)}
    return {
        "engram_layer_ids": list(spec.layers.engram_layers),
        **cut,
        "engram_num_embeddings": list(engram.num_embeddings),
        "engram_max_ngram_size": engram.max_ngram_size,
        "engram_n_heads": engram.n_heads,
        "engram_head_dim": engram.head_dim,
        "engram_vocab_size": engram.vocab_size,
        "engram_pad_token_id": engram.pad_id,
        "engram_compressed_vocab_size": engram.compressed_vocab_size,
    }
