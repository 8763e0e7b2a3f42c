"""The catalogue: every state kind and every op, as plain data. No torch here; the compiler reads this to build graphs.

A kernel for an op is called as

    writes = kernels.OP([step,] required reads, required weights, optional reads and weights by name, attrs by name)

in the order given here, and returns its writes in the order given here, without the optional ones that are absent (one
value bare, several as a tuple). `step` is passed to ops whose `uses_step` is set. Session state is updated in place: a
read port `X` and a write port `X` of one op are the same storage, and the kernel returns it.

Symbols of shapes: B sessions, T tokens of this call, D dim, S streams, H heads, C head_dim, W window, r compress ratio,
V vocab_size, IH and IC indexer heads and head_dim, K index_topk, N context, E engram layers.

With `placement.tensor_parallel` above 1, H, V, the groups of `output` and the inner width of experts are those of one
shard. With the attribute `shards` an op gives its shard's part of a sum, in f32 and not rounded.

With the attribute `kv_cache: packed` a row of `window_kv`, `compress_kv` or `index_k` is u8 [bytes] instead of C or IC
floats, as `encodings.CACHE_ROWS` says, and stands for the very values that `reference` rounds to. Nothing else changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from dsv41c.kernels.states import STATE_KINDS as STATE_KINDS
from dsv41c.kernels.states import Scope as Scope

FAMILIES = ("cpu", "cuda", "rocm", "hpu")


@dataclass(frozen=True, slots=True)
class Port:
    """One named read or write of an op: the kind of value it takes, and whether the op can do without it."""

    name: str
    kind: str
    optional: bool = False


@dataclass(frozen=True, slots=True)
class OpKind:
    """An op: its signature, the weights it takes (parameter names, in order) and its attributes."""

    name: str
    summary: str
    reads: tuple[Port, ...]
    writes: tuple[Port, ...]
    weights: tuple[str, ...] = ()
    optional_weights: tuple[str, ...] = ()
    attrs: tuple[str, ...] = ()
    optional_attrs: tuple[str, ...] = ()
    uses_step: bool = False
    families: tuple[str, ...] = field(default=FAMILIES)


def _ports(text: str) -> tuple[Port, ...]:
    """Ports from `name:kind` words; a bare name is a temporary, a trailing `?` marks an optional port."""
    ports = []
    for word in text.split():
        name, _, kind = word.removesuffix("?").partition(":")
        ports.append(Port(name, kind or "temporary", word.endswith("?")))
    return tuple(ports)


def _op(
    name: str,
    reads: str,
    writes: str,
    summary: str,
    *,
    weights: str = "",
    optional_weights: str = "",
    attrs: str = "",
    optional_attrs: str = "",
    uses_step: bool = False,
) -> OpKind:
    return OpKind(
        name,
        summary,
        _ports(reads),
        _ports(writes),
        tuple(weights.split()),
        tuple(optional_weights.split()),
        tuple(attrs.split()),
        tuple(optional_attrs.split()),
        uses_step,
    )


_OPS = (
    _op(
        "embed",
        "ids:ids",
        "streams:streams pre:pre",
        "token embedding repeated over the streams; pre starts as the one-hot of stream 0",
        weights="embed",
        attrs="streams",
    ),
    _op(
        "engram_ids",
        "ids:ids token_history:token_history",
        "engram_ids token_history:token_history",
        "n-gram hash ids of every engram layer [B, T, E, columns], and the history for the next call",
        weights="token_map multipliers primes offsets",
        attrs="pad_id",
        uses_step=True,
    ),
    _op(
        "engram_rows",
        "engram_ids",
        "engram_rows",
        "the layer's table rows for the hash ids, decoded and concatenated [B, T, columns * head_dim]",
        weights="table",
        attrs="index",
    ),
    _op(
        "engram_gate",
        "streams:streams engram_rows",
        "streams:streams engram_gate",
        "keys and one value from the rows; each stream adds its gated value",
        weights="wkv q_weight k_weight",
        attrs="eps activation_quant",
    ),
    _op(
        "mix",
        "streams:streams",
        "pre:pre post comb",
        "mHC coefficients from the streams before the sublayer; comb by Sinkhorn",
        weights="fn scale base",
        attrs="iterations eps norm_eps",
    ),
    _op("collapse", "streams:streams pre:pre", "collapsed", "streams weighted by the carried pre-mix [B, T, D]"),
    _op("norm", "x", "normed", "RMSNorm, fp32 inside", weights="weight", attrs="eps"),
    _op(
        "query",
        "x",
        "query query_latent",
        "low-rank query with rope on the last channels [B, T, H, C], and its latent",
        weights="rope wq_a q_norm wq_b",
        attrs="heads rope_dim eps activation_quant",
        uses_step=True,
    ),
    _op(
        "window_rows",
        "x",
        "window_rows",
        "this call's window KV rows, roped and fake-quantised [B, T, C]",
        weights="rope wkv kv_norm",
        attrs="rope_dim eps activation_quant kv_cache",
        uses_step=True,
    ),
    _op(
        "compress",
        "x compress_kv:compress_kv group_tail:group_tail?",
        "latent compress_kv:compress_kv group_tail:group_tail?",
        "pool complete groups into latents; append them, roped and fake-quantised, to the compressed KV",
        weights="rope wkv norm",
        optional_weights="wgate",
        attrs="ratio rope_dim eps kv_cache",
        uses_step=True,
    ),
    _op(
        "index_keys",
        "latent index_k:index_k",
        "index_k:index_k",
        "index keys from the un-roped latents, appended",
        weights="rope wk k_norm",
        attrs="ratio rope_dim eps kv_cache",
        uses_step=True,
    ),
    _op(
        "index_query",
        "x query_latent",
        "index_query index_weight",
        "the indexer's queries [B, T, IH, IC] and head weights [B, T, IH]",
        weights="rope wq_b weights_proj",
        attrs="heads rope_dim activation_quant kv_cache",
        uses_step=True,
    ),
    _op(
        "index_score",
        "index_query index_weight index_k:index_k candidates:candidates?",
        "index_score",
        "score of every group; -inf where invisible or outside the candidate blocks [B, T, N/r]",
        attrs="ratio block_size",
        uses_step=True,
    ),
    _op(
        "select_candidates",
        "index_score",
        "candidates:candidates",
        "best blocks of groups, the newest visible one pinned",
        attrs="ratio block_size blocks",
        uses_step=True,
    ),
    _op("select_topk", "index_score", "topk:topk", "the K best groups, ascending, -1 padded", attrs="k"),
    _op(
        "attend",
        "query window_kv:window_kv window_rows compress_kv:compress_kv? topk:topk?",
        "attended",
        "window and selected groups under one softmax with sinks; rope undone on the output",
        weights="rope sink",
        attrs="window ratio rope_dim",
        uses_step=True,
    ),
    _op(
        "window_store",
        "window_rows window_kv:window_kv",
        "window_kv:window_kv",
        "write this call's rows into the ring, after attention has read it",
        attrs="window",
        uses_step=True,
    ),
    _op(
        "output",
        "attended",
        "sublayer_out",
        "grouped low-rank output projection [B, T, D]",
        weights="wo_a wo_b",
        attrs="groups activation_quant",
        optional_attrs="shards",
    ),
    _op("expand", "sublayer_out streams:streams post comb", "streams:streams", "sublayer output back onto the streams"),
    _op(
        "route",
        "x",
        "expert_weights expert_ids",
        "the active experts of each token, by score plus bias, and their weights",
        weights="gate bias",
        attrs="active score_func gate_temp route_scale",
    ),
    _op(
        "experts",
        "x expert_weights expert_ids",
        "routed",
        "routed experts, SwiGLU with clamps, routing weight before w2, summed in fp32",
        weights="w1 w2 w3",
        attrs="limit activation_quant",
        optional_attrs="shards",
    ),
    _op(
        "shared_expert",
        "x routed",
        "sublayer_out",
        "the shared expert, added to the routed sum; one rounding",
        weights="w1 w2 w3",
        attrs="limit activation_quant",
        optional_attrs="shards",
    ),
    _op("head", "x", "logits", "fp32 logits [B, T, V]", weights="head"),
    _op(
        "all_reduce",
        "sublayer_out",
        "sublayer_out",
        "the sum of all shards' parts, rounded to `dtype`",
        attrs="shards dtype bytes_per_token",
    ),
    _op("all_gather", "logits", "logits", "all shards' logits, in order", attrs="shards bytes_per_token"),
    _op("transfer", "value:*", "value:*", "a value of this step, copied to the next stage's device"),
    _op("mirror", "value:*", "value:*", "session state of another stage, kept up to date by its appended rows"),
)

OPS: Mapping[str, OpKind] = MappingProxyType({op.name: op for op in _OPS})

# The ops that carry a value to another stage, and how what they carry crosses. The runtime does this; no kernel does.
CARRIERS: Mapping[str, str] = MappingProxyType({"transfer": "chunk", "mirror": "mirror"})
# The ops in which the shards of a stage meet; `bytes_per_token` is what each of them gives for a token of a session.
COLLECTIVES = ("all_reduce", "all_gather")
# Bytes of an element, by the dtypes that values have.
DTYPE_BYTES: Mapping[str, int] = MappingProxyType({"f32": 4, "bf16": 2, "i64": 8, "bool": 1, "u8": 1})
# Along what a weight is split; of several experts, each is.
Split = Literal["rows", "columns"]


@dataclass(frozen=True, slots=True)
class WeightRole:
    """A weight by role: its name in the official checkpoint, its shape, how it is stored there, how kernels want it.

    `name` and `shape` hold `{layer}`, `{expert}` and the spec's symbols (`dim`, `heads*head_dim`), which
    `compiler.plan.weights` evaluates. `stored`: `linear`, `experts`, `engram` follow the spec's `weights` section;
    `bf16` and `f32` are what the release stores. `compute`: `compute` is the spec's compute dtype, `f32` always f32,
    `stored` is left packed and decoded at use. `split`: along what shards have parts of it; None where they have all.
    """

    role: str
    name: str
    shape: tuple[str, ...]
    stored: Literal["linear", "experts", "engram", "bf16", "f32"]
    compute: Literal["compute", "f32", "stored"]
    split: Split | None


def _role(role: str, name: str, shape: str, stored: str, compute: str = "compute") -> WeightRole:
    """A role from words. `%` marks the size along which shards have parts."""
    split: Split | None = "rows" if shape.startswith("%") else "columns" if "%" in shape else None
    return WeightRole(role, name, tuple(shape.replace("%", "").split()), stored, compute, split)  # type: ignore[arg-type]


_MIX = "(2+streams)*streams"
_ROLES = (
    _role("embed", "embed.weight", "vocab_size dim", "bf16"),
    _role("head", "head.weight", "%vocab_size dim", "bf16", "f32"),
    _role("final_norm", "norm.weight", "dim", "bf16", "f32"),
    _role("attn_norm", "layers.{layer}.attn_norm.weight", "dim", "bf16", "f32"),
    _role("ffn_norm", "layers.{layer}.ffn_norm.weight", "dim", "bf16", "f32"),
    _role("hc_attn_fn", "layers.{layer}.hc_attn_fn", f"{_MIX} streams*dim", "f32", "f32"),
    _role("hc_attn_scale", "layers.{layer}.hc_attn_scale", "3", "f32", "f32"),
    _role("hc_attn_base", "layers.{layer}.hc_attn_base", _MIX, "f32", "f32"),
    _role("hc_ffn_fn", "layers.{layer}.hc_ffn_fn", f"{_MIX} streams*dim", "f32", "f32"),
    _role("hc_ffn_scale", "layers.{layer}.hc_ffn_scale", "3", "f32", "f32"),
    _role("hc_ffn_base", "layers.{layer}.hc_ffn_base", _MIX, "f32", "f32"),
    _role("wq_a", "layers.{layer}.attn.wq_a.weight", "q_lora_rank dim", "linear"),
    _role("q_norm", "layers.{layer}.attn.q_norm.weight", "q_lora_rank", "bf16", "f32"),
    _role("wq_b", "layers.{layer}.attn.wq_b.weight", "%heads*head_dim q_lora_rank", "linear"),
    _role("wkv", "layers.{layer}.attn.wkv.weight", "head_dim dim", "linear"),
    _role("kv_norm", "layers.{layer}.attn.kv_norm.weight", "head_dim", "bf16", "f32"),
    _role("attn_sink", "layers.{layer}.attn.attn_sink", "%heads", "f32", "f32"),
    _role("wo_a", "layers.{layer}.attn.wo_a.weight", "%groups*o_lora_rank heads*head_dim//groups", "linear"),
    _role("wo_b", "layers.{layer}.attn.wo_b.weight", "dim %groups*o_lora_rank", "linear"),
    _role("compressor_wkv", "layers.{layer}.attn.compressor.wkv.weight", "head_dim dim", "bf16"),
    _role("compressor_wgate", "layers.{layer}.attn.compressor.wgate.weight", "head_dim dim", "bf16"),
    _role("compressor_norm", "layers.{layer}.attn.compressor.norm.weight", "head_dim", "bf16", "f32"),
    _role("indexer_wk", "layers.{layer}.attn.indexer.wk.weight", "index_head_dim head_dim", "bf16"),
    _role("indexer_k_norm", "layers.{layer}.attn.indexer.k_norm.weight", "index_head_dim", "bf16", "f32"),
    _role(
        "indexer_wq_b", "layers.{layer}.attn.indexer.wq_b.weight", "index_heads*index_head_dim q_lora_rank", "linear"
    ),
    _role("indexer_weights_proj", "layers.{layer}.attn.indexer.weights_proj.weight", "index_heads dim", "bf16"),
    _role("gate", "layers.{layer}.ffn.gate.weight", "experts dim", "bf16", "f32"),
    _role("gate_bias", "layers.{layer}.ffn.gate.bias", "experts", "f32", "f32"),
    _role("experts_w1", "layers.{layer}.ffn.experts.{expert}.w1.weight", "%inter_dim dim", "experts", "stored"),
    _role("experts_w2", "layers.{layer}.ffn.experts.{expert}.w2.weight", "dim %inter_dim", "experts", "stored"),
    _role("experts_w3", "layers.{layer}.ffn.experts.{expert}.w3.weight", "%inter_dim dim", "experts", "stored"),
    _role("shared_w1", "layers.{layer}.ffn.shared_experts.w1.weight", "%inter_dim dim", "linear"),
    _role("shared_w2", "layers.{layer}.ffn.shared_experts.w2.weight", "dim %inter_dim", "linear"),
    _role("shared_w3", "layers.{layer}.ffn.shared_experts.w3.weight", "%inter_dim dim", "linear"),
    _role("engram_table", "layers.{layer}.engram.embed.weight", "engram_rows engram_head_dim", "engram", "stored"),
    _role("engram_wkv", "layers.{layer}.engram.wkv.weight", "(streams+1)*dim engram_width", "linear"),
    _role("engram_q_weight", "layers.{layer}.engram.q_weight", "streams dim", "bf16", "f32"),
    _role("engram_k_weight", "layers.{layer}.engram.k_weight", "streams dim", "bf16", "f32"),
)

WEIGHT_ROLES: Mapping[str, WeightRole] = MappingProxyType({role.role: role for role in _ROLES})

# Families of tensors that official checkpoints hold and the text backbone does not read: counted, not errors.
UNUSED_TENSORS = ("mtp.", "vision.", "aligner.", "image_", "layers.*.ffn.gate.bias_vl")
