"""Other spellings of keys: the HF config's names, accepted inside the section they belong to.

`ALIASES[section][alias]` is the canonical name; `yarn` has its own table because it is nested in `rope`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

_TABLE = {
    "model": {
        "num_hidden_layers": "n_layers",
        "num_nextn_predict_layers": "n_mtp_layers",
        "hidden_size": "dim",
        "rms_norm_eps": "norm_eps",
        "max_position_embeddings": "max_seq_len",
    },
    "tokens": {"bos_token_id": "bos", "eos_token_id": "eos", "pad_token_id": "pad"},
    "layers": {
        "kv_source_layer_ids": "kv_source_layers",
        "index_source_layer_ids": "index_source_layers",
        "candidate_source_layer_id": "candidate_source_layer",
        "engram_layer_ids": "engram_layers",
    },
    "attention": {
        "num_attention_heads": "n_heads",
        "qk_rope_head_dim": "rope_head_dim",
        "sliding_window": "window_size",
    },
    "rope": {"rope_theta": "theta", "compress_rope_theta": "compress_theta", "rope_scaling": "yarn"},
    "rope.yarn": {"rope_factor": "factor", "original_max_position_embeddings": "original_seq_len"},
    "indexer": {"index_n_heads": "n_heads", "index_head_dim": "head_dim", "index_topk": "topk"},
    "mhc": {"hc_mult": "streams", "hc_sinkhorn_iters": "sinkhorn_iters", "hc_eps": "eps"},
    "moe": {
        "num_experts_per_tok": "n_activated_experts",
        "moe_intermediate_size": "inter_dim",
        "moe_inter_dim": "inter_dim",
        "scoring_func": "score_func",
        "routed_scaling_factor": "route_scale",
    },
    "engram": {
        "engram_max_ngram_size": "max_ngram_size",
        "engram_n_heads": "n_heads",
        "engram_head_dim": "head_dim",
        "engram_vocab_size": "vocab_size",
        "engram_num_embeddings": "num_embeddings",
        "engram_hash_layer_ids": "hash_layers",
        "engram_pad_id": "pad_id",
        "engram_pad_token_id": "pad_id",
        "engram_compressed_vocab_size": "compressed_vocab_size",
    },
}
ALIASES: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {section: MappingProxyType(names) for section, names in _TABLE.items()}
)
