"""Families of GGUF files of this architecture: how each spells tensors and keys, and how to tell them apart.

Several converters write `deepseek41`, and disagree. A file belongs to the first family of the table whose marks it has,
and is read by that family's names alone. Of some families the names are known only in part: these are refused by name.

Keys are without their prefix `deepseek41.`; parameters are those of config.json.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

ARCHITECTURE = "deepseek41"
PREFIX = ARCHITECTURE + "."
# Architectures that are taken for this one, and what they are.
NEIGHBOURS: Mapping[str, str] = MappingProxyType(
    {
        "deepseek4": "is a different architecture (per-layer compressors, ratios 4/128)",
        "dflash": "is a draft model that goes with this architecture; the model itself is in other files",
    }
)
# Tensors of the architecture before this one, by a part of their name: a file that has them computes something else.
FOREIGN = ("output_hc_", "attn_compressor_ape", "ffn_gate_tid2eid")

# Tensors of the whole model.
GLOBALS: Mapping[str, str] = MappingProxyType(
    {"token_embd.weight": "embed.weight", "output.weight": "head.weight", "output_norm.weight": "norm.weight"}
)
# Tensors of a layer, which all families spell alike: after `blk.N.`, and officially after `layers.N.`. `{expert}` is
# the number of an expert; without it in the file's name, all experts lie in one tensor, one after the other.
LAYERS: Mapping[str, str] = MappingProxyType(
    {
        "attn_norm.weight": "attn_norm.weight",
        "ffn_norm.weight": "ffn_norm.weight",
        "attn_q_a.weight": "attn.wq_a.weight",
        "attn_q_a_norm.weight": "attn.q_norm.weight",
        "attn_q_b.weight": "attn.wq_b.weight",
        "attn_kv.weight": "attn.wkv.weight",
        "attn_kv_a_norm.weight": "attn.kv_norm.weight",
        "attn_sinks.weight": "attn.attn_sink",
        "attn_output_a.weight": "attn.wo_a.weight",
        "attn_output_b.weight": "attn.wo_b.weight",
        "attn_compressor_kv.weight": "attn.compressor.wkv.weight",
        "attn_compressor_gate.weight": "attn.compressor.wgate.weight",
        "attn_compressor_norm.weight": "attn.compressor.norm.weight",
        "indexer.attn_q_b.weight": "attn.indexer.wq_b.weight",
        "indexer.proj.weight": "attn.indexer.weights_proj.weight",
        "ffn_gate_inp.weight": "ffn.gate.weight",
        "exp_probs_b.bias": "ffn.gate.bias",
        "exp_probs_b_vl.bias": "ffn.gate.bias_vl",
        "ffn_gate_exps.weight": "ffn.experts.{expert}.w1.weight",
        "ffn_up_exps.weight": "ffn.experts.{expert}.w3.weight",
        "ffn_down_exps.weight": "ffn.experts.{expert}.w2.weight",
        "ffn_gate.{expert}.weight": "ffn.experts.{expert}.w1.weight",
        "ffn_up.{expert}.weight": "ffn.experts.{expert}.w3.weight",
        "ffn_down.{expert}.weight": "ffn.experts.{expert}.w2.weight",
        "ffn_gate_shexp.weight": "ffn.shared_experts.w1.weight",
        "ffn_up_shexp.weight": "ffn.shared_experts.w3.weight",
        "ffn_down_shexp.weight": "ffn.shared_experts.w2.weight",
        **{
            f"hc_{part}_{kind}.weight": f"hc_{part}_{kind}"
            for part in ("attn", "ffn")
            for kind in ("fn", "base", "scale")
        },
    }
)
TABLE = "engram.embed.weight"
TABLE_SCALE = "engram.embed.scale"
Q_WEIGHT, K_WEIGHT = "engram.q_weight", "engram.k_weight"
# One tensor of all tables, layer after layer.
ALL_TABLES = "per_layer_token_embd.weight"

_COMPRESSOR_NAMES = {
    "indexer_compressor_kv.weight": "attn.indexer.wk.weight",
    "indexer_compressor_norm.weight": "attn.indexer.k_norm.weight",
}
_INDEXER_NAMES = {
    "indexer.attn_k.weight": "attn.indexer.wk.weight",
    "indexer.k_norm.weight": "attn.indexer.k_norm.weight",
}
_GATE_NAMES = {"engram_q.weight": Q_WEIGHT, "engram_k.weight": K_WEIGHT, "engram_wkv.weight": "engram.wkv.weight"}

# Parameters whose keys only name them otherwise. Those with several keys: converters differ.
_KEYS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        parameter: tuple(keys.split())
        for parameter, keys in {
            "num_hidden_layers": "block_count",
            "num_nextn_predict_layers": "nextn_predict_layers",
            "hidden_size": "embedding_length",
            "vocab_size": "vocab_size",
            "max_position_embeddings": "context_length",
            "rms_norm_eps": "attention.layer_norm_rms_epsilon",
            "num_attention_heads": "attention.head_count",
            "num_key_value_heads": "attention.head_count_kv",
            "head_dim": "attention.key_length",
            "q_lora_rank": "attention.q_lora_rank",
            "o_groups": "attention.output_group_count",
            "o_lora_rank": "attention.output_lora_rank",
            "sliding_window": "attention.sliding_window",
            "compress_ratios": "attention.compress_ratios",
            "compress_rope_theta": "attention.compress_rope_freq_base",
            "kv_source_layer_ids": "attention.kv_source_layer_ids",
            "index_source_layer_ids": "attention.index_source_layer_ids",
            "candidate_source_layer_id": "attention.candidate_source_layer_id",
            "candidate_block_size": "attention.candidate_block_size",
            "candidate_topk_blocks": "attention.candidate_topk_blocks",
            "index_n_heads": "attention.indexer.head_count",
            "index_head_dim": "attention.indexer.key_length",
            "index_topk": "attention.indexer.top_k",
            "qk_rope_head_dim": "rope.dimension_count",
            "rope_theta": "rope.freq_base",
            "rope_scaling.rope_type": "rope.scaling.type",
            "rope_scaling.factor": "rope.scaling.factor",
            "rope_scaling.original_max_position_embeddings": "rope.scaling.original_context_length",
            "rope_scaling.beta_fast": "rope.scaling.yarn_beta_fast",
            "rope_scaling.beta_slow": "rope.scaling.yarn_beta_slow",
            "n_routed_experts": "expert_count",
            "num_experts_per_tok": "expert_used_count",
            "n_shared_experts": "expert_shared_count",
            "moe_intermediate_size": "expert_feed_forward_length",
            "scoring_func": "expert_gating_func",
            "norm_topk_prob": "expert_weights_norm",
            "routed_scaling_factor": "expert_weights_scale",
            "swiglu_limit": "swiglu_clamp_exp",
            "hc_mult": "hyper_connection.count",
            "hc_sinkhorn_iters": "hyper_connection.sinkhorn_iterations",
            "hc_eps": "hyper_connection.epsilon",
            "num_hash_layers": "hash_layer_count",
            "engram_layer_ids": "engram.layer_ids",
            "engram_head_dim": "engram.head_dim engram.key_length",
            "engram_n_heads": "engram.n_heads engram.head_count",
            "engram_max_ngram_size": "engram.max_ngram_size",
            "engram_vocab_size": "engram.vocab_size",
            "engram_pad_token_id": "engram.pad_token_id",
            "engram_compressed_vocab_size": "engram.compressed_vocab_size",
            "engram_num_embeddings": "engram.num_embeddings engram.rows",
        }.items()
    }
)
# A second key that has to say the same as the parameter's, and the same of a family that uses the config's own names.
SAME: Mapping[str, str] = MappingProxyType({"swiglu_limit": "swiglu_clamp_shexp", "head_dim": "attention.value_length"})
_CONFIG_KEYS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        **{parameter: (parameter,) for parameter in _KEYS},
        **{parameter: keys for parameter, keys in _KEYS.items() if parameter.startswith("engram_")},
        "hidden_act": ("hidden_act",),
        "topk_method": ("topk_method",),
    }
)
# Constants of the hash: their parts, and the keys of each.
_CONSTANTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {part: (f"engram.{part}",) for part in ("multipliers", "primes", "offsets", "token_map")}
)
# Keys of this architecture that say nothing about what the text backbone computes, or the same again.
IGNORED = (
    "attention.value_length",
    "config",
    "engram.encoding",
    "engram.pad_id",
    "engram.present",
    "expert_group_count",
    "expert_group_used_count",
    "feed_forward_length",
    "leading_dense_block_count",
    "rope.scaling.finetuned",
    "swiglu_clamp_shexp",
)


@dataclass(frozen=True, slots=True)
class Family:
    """How one group of converters writes this architecture.

    `keys` and `tensors` are marks: a file that has a key which ends so, or a tensor whose name after `blk.N.` is one of
    these, is of the family. `parameters` and `constants` give the keys of each; `names` the tensors of a layer that
    families spell differently. With `product`, one tensor `engram_*` of a layer holds the product of the two weights of
    its gate; no other is named so but the projection. `refused` says why a family is not read.
    """

    name: str
    keys: tuple[str, ...] = ()
    tensors: tuple[str, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)
    parameters: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: _KEYS)
    constants: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: _CONSTANTS)
    product: bool = False
    refused: str | None = None

    def official(self, rest: str) -> str | None:
        """The official name, after `layers.N.`, of a tensor's name after `blk.N.`."""
        return self.names.get(rest) or LAYERS.get(rest)

    def spellings(self, name: str) -> tuple[str, ...]:
        """The names in files of this family under which an official name is looked for."""
        part = re.fullmatch(r"layers\.(\d+)\.(.+)", name)
        if part is None:
            return tuple(stored for stored, official in GLOBALS.items() if official == name)
        rest = re.sub(r"(?<=experts\.)\d+", "{expert}", part[2])
        expert = re.search(r"(?<=experts\.)\d+", part[2])
        number = expert[0] if expert else ""
        names = [stored for stored, official in {**LAYERS, **self.names}.items() if official == rest]
        return tuple(f"blk.{part[1]}.{stored.replace('{expert}', number)}" for stored in names)


FAMILIES: tuple[Family, ...] = (
    Family(
        "external-engram",
        keys=("engram.storage", "engram.external_paths"),
        refused="its engram tables are in files of their own, whose encodings are not known here",
    ),
    Family(
        "constant-tensors",
        tensors=(
            "engram_primes.weight",
            "engram_token_map.weight",
            "engram_multipliers.weight",
            "engram_offsets.weight",
        ),
        refused="its hash constants are tensors, whose layout is not known here",
    ),
    Family(
        "source-layers",  # lists without `_ids`, and constants by buckets
        keys=("kv_source_layers", "index_source_layers", "engram.head_bucket_sizes", "engram.head_offsets"),
        refused="the names of its keys are known only in part",
    ),
    Family(
        "per-layer-table",
        keys=("ple.layers", "ple.ngram_size", "ple.layer_multipliers", "ple.head_vocab_sizes"),
        tensors=(ALL_TABLES,),
        names={**_INDEXER_NAMES, "engram_wkv.weight": "engram.wkv.weight", "engram_kv.weight": "engram.wkv.weight"},
        product=True,
        parameters={
            **_KEYS,
            "engram_layer_ids": ("ple.layers",),
            "engram_max_ngram_size": ("ple.ngram_size",),
            "engram_n_heads": ("ple.heads_per_ngram",),
        },
        constants={
            "multipliers": ("ple.layer_multipliers",),
            "primes": ("ple.head_vocab_sizes",),
            "offsets": ("ple.head_offsets",),
            "token_map": ("engram.token_map",),
        },
    ),
    Family(
        "config-names",
        keys=("hidden_size", "num_hidden_layers"),
        names={
            **_INDEXER_NAMES,
            "engram_embd.weight": TABLE,
            "engram_q_norm.weight": Q_WEIGHT,
            "engram_k_norm.weight": K_WEIGHT,
            "engram_kv.weight": "engram.wkv.weight",
        },
        parameters=_CONFIG_KEYS,
    ),
    Family(
        "engram_embed",
        tensors=(*_COMPRESSOR_NAMES, "engram_embed.weight"),
        names={**_COMPRESSOR_NAMES, **_GATE_NAMES, "engram_embed.weight": TABLE},
    ),
    Family("engram_embd", names={**_INDEXER_NAMES, **_GATE_NAMES, "engram_embd.weight": TABLE}),
)


def family_of(keys: Iterable[str], tensors: Iterable[str]) -> Family:
    """The family of a file by its keys, without their prefix, and its tensors, without `blk.N.`."""
    named, stored = tuple(keys), frozenset(tensors)
    for family in FAMILIES:
        if any(key == mark or key.endswith("." + mark) for mark in family.keys for key in named):
            return family
        if stored & set(family.tensors):
            return family
    return FAMILIES[-1]
