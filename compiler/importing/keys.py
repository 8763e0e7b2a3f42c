"""Keys of model configs: which parameter of the spec each is, which have one value in this family, which say nothing.

Two official files exist with two vocabularies: `config.json` (nested, Hugging Face names) and the inference code's own
(flat, the names of its arguments). Both are taken, and mixtures of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

ARCHITECTURES = ("DeepseekV41ForCausalLM",)
MODEL_TYPES = ("deepseek_v41", "deepseek_v41_text")
# Neighbours that are often taken for this one, and what they are instead.
NEIGHBOURS: Mapping[str, str] = MappingProxyType(
    dict.fromkeys(
        ("deepseek_v4", "DeepseekV4ForCausalLM", "deepseek4"),
        "is a different architecture (per-layer compressors, ratios 4/128)",
    )
)

# Spellings of each parameter, the first the one to name in findings.
FIELDS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        field: tuple(names.split())
        for field, names in {
            "model.n_layers": "num_hidden_layers n_layers",
            "model.n_mtp_layers": "num_nextn_predict_layers n_mtp_layers",
            "model.dim": "hidden_size dim",
            "model.vocab_size": "vocab_size",
            "model.norm_eps": "rms_norm_eps norm_eps",
            "model.max_seq_len": "max_position_embeddings max_seq_len",
            "tokens.bos": "bos_token_id",
            "tokens.eos": "eos_token_id",
            "tokens.pad": "pad_token_id",
            "layers.compress_ratios": "compress_ratios",
            "layers.kv_source_layers": "kv_source_layer_ids kv_source_layers",
            "layers.index_source_layers": "index_source_layer_ids index_source_layers",
            "layers.candidate_source_layer": "candidate_source_layer_id candidate_source_layer",
            "layers.engram_layers": "engram_layer_ids engram_layers",
            "attention.n_heads": "num_attention_heads n_heads",
            "attention.head_dim": "head_dim",
            "attention.rope_head_dim": "qk_rope_head_dim rope_head_dim",
            "attention.q_lora_rank": "q_lora_rank",
            "attention.o_groups": "o_groups",
            "attention.o_lora_rank": "o_lora_rank",
            "attention.window_size": "sliding_window window_size",
            "rope.theta": "rope_theta",
            "rope.compress_theta": "compress_rope_theta",
            "rope.yarn.factor": "rope_factor",
            "rope.yarn.original_seq_len": "original_seq_len",
            "rope.yarn.beta_fast": "beta_fast",
            "rope.yarn.beta_slow": "beta_slow",
            "indexer.n_heads": "index_n_heads",
            "indexer.head_dim": "index_head_dim",
            "indexer.topk": "index_topk",
            "indexer.candidate_topk_blocks": "candidate_topk_blocks",
            "indexer.candidate_block_size": "candidate_block_size",
            "mhc.streams": "hc_mult",
            "mhc.sinkhorn_iters": "hc_sinkhorn_iters",
            "mhc.eps": "hc_eps",
            "moe.n_routed_experts": "n_routed_experts",
            "moe.n_activated_experts": "num_experts_per_tok n_activated_experts",
            "moe.n_shared_experts": "n_shared_experts",
            "moe.inter_dim": "moe_intermediate_size moe_inter_dim",
            "moe.score_func": "scoring_func score_func",
            "moe.gate_temp": "gate_temp",
            "moe.route_scale": "routed_scaling_factor route_scale",
            "moe.swiglu_limit": "swiglu_limit",
            "engram.max_ngram_size": "engram_max_ngram_size",
            "engram.n_heads": "engram_n_heads",
            "engram.head_dim": "engram_head_dim",
            "engram.vocab_size": "engram_vocab_size",
            "engram.num_embeddings": "engram_num_embeddings",
            "engram.hash_layers": "engram_hash_layer_ids engram_hash_layers",
            "engram.pad_id": "engram_pad_token_id engram_pad_id",
            "engram.compressed_vocab_size": "engram_compressed_vocab_size",
        }.items()
    }
)
SPELLINGS: Mapping[str, str] = MappingProxyType({name: field for field, names in FIELDS.items() for name in names})
# The same inside `rope_scaling`.
ROPE_SCALING: Mapping[str, str] = MappingProxyType(
    {
        "factor": "rope.yarn.factor",
        "original_max_position_embeddings": "rope.yarn.original_seq_len",
        "beta_fast": "rope.yarn.beta_fast",
        "beta_slow": "rope.yarn.beta_slow",
    }
)
# What the released config or its absence says, where files leave it out: taken without a word, or with a warning.
SILENT_DEFAULTS: Mapping[str, int | float] = MappingProxyType({"moe.gate_temp": 1.0, "model.n_mtp_layers": 0})
ASSUMED: Mapping[str, int | float] = MappingProxyType(
    {
        "model.max_seq_len": 1048576,
        "tokens.bos": 0,
        "tokens.eos": 1,
        "tokens.pad": 2,
        "rope.yarn.beta_fast": 32,
        "rope.yarn.beta_slow": 1,
        "engram.pad_id": 2,
    }
)
# Nobody reads these where there is no candidate source; the format wants a number.
WITHOUT_CANDIDATES: Mapping[str, int] = MappingProxyType(
    {"indexer.candidate_topk_blocks": 2048, "indexer.candidate_block_size": 8}
)

# Keys with one value (or a few that mean the same) in this family.
FIXED: Mapping[str, tuple[object, ...]] = MappingProxyType(
    {
        "num_key_value_heads": (1,),
        "hidden_act": ("silu",),
        "topk_method": ("noaux_tc",),
        "norm_topk_prob": (True,),
        "attention_bias": (False,),
        "tie_word_embeddings": (False,),
        "num_hash_layers": (0, None),
        "n_hash_layers": (0, None),
        "n_group": (1, 0, None),
        "topk_group": (1, 0, None),
        "first_k_dense_replace": (0, None),
        "moe_layer_freq": (1, None),
    }
)
QUANTISATION: Mapping[str, tuple[object, ...]] = MappingProxyType(
    {
        "quant_method": ("fp8", "mxfp8"),
        "expert_dtype": ("fp4",),
        "scale_fmt": ("ue8m0",),
        "weight_block_size": ((32, 32), (1, 32)),
        "activation_scheme": ("dynamic",),
        "fmt": ("e4m3", None),
    }
)
REQUIRED_QUANTISATION = ("quant_method", "expert_dtype", "scale_fmt", "weight_block_size")
# Quantisation flavours that are known and not read, by the key or value that shows them.
FLAVOURS: Mapping[str, str] = MappingProxyType(
    {
        "moe_quant_algo": "ModelOpt NVFP4",
        "quantized_layers": "ModelOpt NVFP4",
        "quant_algo": "ModelOpt",
        "modelopt": "ModelOpt NVFP4",
        "quark": "AMD Quark",
        "exl3": "EXL3",
    }
)

# Keys that are known and say nothing about the text backbone.
IGNORED = frozenset(
    (
        "_name_or_path",
        "architectures",
        "attention_dropout",
        "auto_map",
        "dtype",
        "expert_dtype",
        "image_token_id",
        "initializer_range",
        "is_encoder_decoder",
        "max_batch_size",
        "model_type",
        "output_attentions",
        "output_hidden_states",
        "quantization_config",
        "return_dict",
        "rope_scaling",
        "scale_dtype",
        "scale_fmt",
        "temperature",
        "text_config",
        "torch_dtype",
        "transformers_version",
        "use_cache",
        "vision_config",
    )
)
IGNORED_PREFIXES = ("dspark_", "vision_")
# A key that starts like a family of parameters may change the mathematics even if no known key is near.
FAMILIES = ("attn_", "candidate_", "compress_", "engram_", "hc_", "index_", "kv_", "moe_", "rope_", "swiglu_")
