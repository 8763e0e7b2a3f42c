"""The whole tiny model wired by hand: a plain loop over layers, as an oracle independent of graphs and plans.

`TinyModel` holds the golden checkpoint's weights; `Run` holds session state and the values of the last call by name.
"""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy
import torch
from safetensors import safe_open
from torch import Tensor

from dsv41c.kernels.reference.encodings import Packed, dense
from dsv41c.kernels.reference.rope import compress_frequencies, window_frequencies
from dsv41c.kernels.reference.rows import pack
from dsv41c.kernels.registry import kernels_for
from dsv41c.kernels.step import Step

from .token_map import compressed_ids

GOLDEN = Path(__file__).parents[1] / "golden"
TINY = GOLDEN / "tiny"
EPS = 1e-20
K = kernels_for("cpu")


def is_prime(number: int) -> bool:
    return number > 1 and all(number % divisor for divisor in range(2, int(number**0.5) + 1))


def hash_constants(layers, sizes, heads, vocab, compressed_vocab):
    """Multipliers [E, n], primes and offsets [E, columns] as nested lists, by the checkpoint's recipe."""
    seen, multipliers, primes = set(), [], []
    for layer in layers:
        bound = max(1, ((2**63 - 1) // compressed_vocab) // 2)
        drawn = numpy.random.default_rng(10007 * layer).integers(0, bound, size=sizes, dtype=numpy.int64)
        multipliers.append([int(number) * 2 + 1 for number in drawn])
        row = []
        for _ in range(2, sizes + 1):
            number = vocab - 1
            for _ in range(heads):
                number += 1
                while number in seen or not is_prime(number):
                    number += 1
                seen.add(number)
                row.append(number)
        primes.append(row)
    offsets = [[sum(row[:column]) for column in range(len(row))] for row in primes]
    return multipliers, primes, offsets


class Table:
    """An engram table in memory."""

    def __init__(self, values: Tensor) -> None:
        self.values = values

    def rows(self, ids: Tensor) -> Tensor:
        return self.values[ids]


class TinyModel:
    def __init__(self, compute: str = "f32", activation_quant: str = "none", kv_cache: str = "none") -> None:
        self.dtype = {"f32": torch.float32, "bf16": torch.bfloat16}[compute]
        self.quant, self.cache = activation_quant, kv_cache
        self.config = SimpleNamespace(**json.loads((TINY / "config.json").read_text())["text_config"])
        c = self.config
        self.tensors: dict[str, Tensor] = {}
        for shard in sorted(TINY.glob("*.safetensors")):
            with safe_open(shard, "pt") as file:
                self.tensors |= {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        self.rope_window = window_frequencies(c.qk_rope_head_dim, c.rope_theta)
        yarn = c.rope_scaling
        self.rope_compress = compress_frequencies(
            c.qk_rope_head_dim,
            c.compress_rope_theta,
            yarn["factor"],
            yarn["original_max_position_embeddings"],
            yarn["beta_fast"],
            yarn["beta_slow"],
        )
        self.token_map = torch.tensor(compressed_ids(TINY / "tokenizer.json"))
        constants = hash_constants(
            c.engram_layer_ids,
            c.engram_max_ngram_size,
            c.engram_n_heads,
            c.engram_vocab_size,
            c.engram_compressed_vocab_size,
        )
        self.multipliers, self.primes, self.offsets = (torch.tensor(part) for part in constants)
        self.cached: dict[object, object] = {}

    def w(self, name: str, dtype: torch.dtype | None = None, encoding: str = "fp8_32x32") -> Tensor:
        """A dense weight by checkpoint name; `.weight` is left out of names that have a scale or a suffix."""
        key = (name, dtype)
        if key not in self.cached:
            value = self.tensors.get(name, self.tensors.get(f"{name}.weight"))
            if f"{name}.scale" in self.tensors:
                value = Packed(value, self.tensors[f"{name}.scale"], encoding)
            self.cached[key] = dense(value, dtype or self.dtype)
        return self.cached[key]  # type: ignore[return-value]

    def f(self, name: str) -> Tensor:
        return self.w(name, torch.float32)

    def source(self, layer: int, sources: list[int]) -> int:
        return max(source for source in sources if source <= layer)


class Run:
    """State pools for `sessions` sessions and a spare one, and the values of the last call."""

    def __init__(self, model: TinyModel, context: int = 64, sessions: int = 1, fill: float = 0.0) -> None:
        self.m, c = model, model.config
        slots, dtype = sessions + 1, model.dtype
        self.pools: dict[str, Tensor] = {}

        def cache(kind: str, rows: int, channels: int) -> Tensor:
            pool = torch.full((slots, rows, channels), fill, dtype=dtype)
            return pack(kind, pool) if model.cache == "packed" else pool

        for layer in range(c.num_hidden_layers):
            self.pools[f"window_kv@L{layer}"] = cache("window_kv", c.sliding_window, c.head_dim)
        for layer in c.kv_source_layer_ids:
            ratio = c.compress_ratios[layer]
            self.pools[f"compress_kv@L{layer}"] = cache("compress_kv", context // ratio, c.head_dim)
            self.pools[f"index_k@L{layer}"] = cache("index_k", context // ratio, c.index_head_dim)
            self.pools[f"group_tail@L{layer}"] = torch.full((slots, 2, ratio, c.head_dim), fill)
        self.pools["token_history"] = torch.full((slots, c.engram_max_ngram_size - 1), 3)
        self.values: dict[str, Tensor] = {}

    def call(self, ids: Tensor, slots: Tensor, positions: Tensor, context: int | None = None) -> Tensor:
        """Logits f32 [B, T, V] of ids [B, T]; the values of the call are in `self.values`."""
        m = self.m
        self.begin(ids, slots, positions, context)
        streams, pre = K.embed(ids, m.w("embed"), streams=m.config.hc_mult)
        for layer in range(m.config.num_hidden_layers):
            streams, pre = self.layer(layer, streams, pre)
        hidden = K.norm(K.collapse(streams, pre), m.f("norm"), eps=EPS)
        self.values["final_hidden"] = hidden
        return K.head(hidden, m.f("head"))

    def begin(self, ids: Tensor, slots: Tensor, positions: Tensor, context: int | None = None) -> None:
        """Where the call stands, and its hash ids."""
        m = self.m
        self.step = Step(slots, positions, context or int((positions + ids.shape[1]).max()))
        self.values["engram_ids"], _ = K.engram_ids(
            self.step,
            ids,
            self.pools["token_history"],
            m.token_map,
            m.multipliers,
            m.primes,
            m.offsets,
            pad_id=m.config.engram_pad_token_id,
        )

    def layer(self, n: int, streams: Tensor, pre: Tensor) -> tuple[Tensor, Tensor]:
        m, c, p = self.m, self.m.config, f"layers.{n}"
        if n in c.engram_layer_ids:
            table = Table(m.w(f"{p}.engram.embed", torch.float32, "fp8_row32"))
            rows = K.engram_rows(self.values["engram_ids"], table, index=c.engram_layer_ids.index(n))
            streams, self.values[f"L{n}.engram_gate"] = K.engram_gate(
                streams,
                rows,
                m.w(f"{p}.engram.wkv"),
                m.f(f"{p}.engram.q_weight"),
                m.f(f"{p}.engram.k_weight"),
                eps=EPS,
                activation_quant=m.quant,
            )
            self.values[f"L{n}.streams_after_engram"] = streams
        pre_attn, post, comb = self.mix(f"{p}.hc_attn", streams)
        x = K.norm(K.collapse(streams, pre), m.f(f"{p}.attn_norm"), eps=EPS)
        out = self.values[f"L{n}.attn_out"] = self.attention(n, x)
        streams = K.expand(out, streams, post, comb)
        pre, post, comb = self.mix(f"{p}.hc_ffn", streams)
        x = K.norm(K.collapse(streams, pre_attn), m.f(f"{p}.ffn_norm"), eps=EPS)
        streams = K.expand(self.ffn(n, x), streams, post, comb)
        self.values[f"L{n}.streams"], self.values[f"L{n}.pre"] = streams, pre
        return streams, pre

    def mix(self, name: str, streams: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        c, m = self.m.config, self.m
        weights = (m.f(f"{name}_fn"), m.f(f"{name}_scale"), m.f(f"{name}_base"))
        return K.mix(streams, *weights, iterations=c.hc_sinkhorn_iters, eps=c.hc_eps, norm_eps=EPS)

    def attention(self, n: int, x: Tensor) -> Tensor:
        m, c, p, step = self.m, self.m.config, f"layers.{n}.attn", self.step
        ratio = c.compress_ratios[n]
        rope = m.rope_compress if ratio else m.rope_window
        turn = {"rope_dim": c.qk_rope_head_dim}
        quant = {"activation_quant": m.quant}
        common = {**turn, **quant, "eps": EPS}
        query, latent = K.query(
            step,
            x,
            rope,
            m.w(f"{p}.wq_a"),
            m.f(f"{p}.q_norm"),
            m.w(f"{p}.wq_b"),
            heads=c.num_attention_heads,
            **common,
        )
        rows = K.window_rows(step, x, rope, m.w(f"{p}.wkv"), m.f(f"{p}.kv_norm"), kv_cache=m.cache, **common)
        if n in c.kv_source_layer_ids:
            self.compress(n, x, rope, ratio)
        if n in c.index_source_layer_ids:
            self.select(n, x, latent, rope, ratio)
        branch = {}
        if ratio:
            branch["compress_kv"] = self.pools[f"compress_kv@L{m.source(n, c.kv_source_layer_ids)}"]
            branch["topk"] = self.values[f"L{m.source(n, c.index_source_layer_ids)}.topk"]
        ring, window = self.pools[f"window_kv@L{n}"], c.sliding_window
        attended = K.attend(
            step, query, ring, rows, rope, m.f(f"{p}.attn_sink"), window=window, ratio=ratio, **turn, **branch
        )
        K.window_store(step, rows, ring, window=window)
        return K.output(attended, m.w(f"{p}.wo_a"), m.w(f"{p}.wo_b"), groups=c.o_groups, **quant)

    def compress(self, n: int, x: Tensor, rope: Tensor, ratio: int) -> None:
        m, c, p = self.m, self.m.config, f"layers.{n}.attn"
        wide = torch.float32 if ratio > 1 else None
        pooled = {}
        if ratio > 1:
            pooled = {"group_tail": self.pools[f"group_tail@L{n}"], "wgate": m.w(f"{p}.compressor.wgate", wide)}
        common = {"ratio": ratio, "rope_dim": c.qk_rope_head_dim, "eps": EPS, "kv_cache": m.cache}
        weights = (m.w(f"{p}.compressor.wkv", wide), m.f(f"{p}.compressor.norm"))
        latent = K.compress(self.step, x, self.pools[f"compress_kv@L{n}"], rope, *weights, **pooled, **common)[0]
        weights = (m.w(f"{p}.indexer.wk"), m.f(f"{p}.indexer.k_norm"))
        K.index_keys(self.step, latent, self.pools[f"index_k@L{n}"], rope, *weights, **common)

    def select(self, n: int, x: Tensor, latent: Tensor, rope: Tensor, ratio: int) -> None:
        m, c, p, step = self.m, self.m.config, f"layers.{n}.attn.indexer", self.step
        query, weight = K.index_query(
            step,
            x,
            latent,
            rope,
            m.w(f"{p}.wq_b"),
            m.w(f"{p}.weights_proj"),
            heads=c.index_n_heads,
            rope_dim=c.qk_rope_head_dim,
            activation_quant=m.quant,
            kv_cache=m.cache,
        )
        later = n > c.candidate_source_layer_id
        mask = {"candidates": self.values[f"L{c.candidate_source_layer_id}.candidates"]} if later else {}
        block = {"ratio": ratio, "block_size": c.candidate_block_size}
        keys = self.pools[f"index_k@L{m.source(n, c.kv_source_layer_ids)}"]
        score = K.index_score(step, query, weight, keys, **mask, **block)
        if n == c.candidate_source_layer_id:
            chosen = K.select_candidates(step, score, **block, blocks=c.candidate_topk_blocks)
            self.values[f"L{n}.candidates"] = chosen
        self.values[f"L{n}.index_score"] = score
        self.values[f"L{n}.topk"] = K.select_topk(score, k=c.index_topk)

    def ffn(self, n: int, x: Tensor) -> Tensor:
        m, c, p = self.m, self.m.config, f"layers.{n}.ffn"
        weights, ids = K.route(
            x,
            m.f(f"{p}.gate"),
            m.f(f"{p}.gate.bias"),
            active=c.num_experts_per_tok,
            score_func=c.scoring_func,
            gate_temp=1.0,
            route_scale=c.routed_scaling_factor,
        )
        self.values[f"L{n}.experts"] = ids
        limits = {"limit": c.swiglu_limit, "activation_quant": m.quant}
        routed_weights = [
            [m.w(f"{p}.experts.{expert}.{role}", encoding="fp4_32") for expert in range(c.n_routed_experts)]
            for role in ("w1", "w2", "w3")
        ]
        routed = K.experts(x, weights, ids, *routed_weights, **limits)
        shared = [m.w(f"{p}.shared_experts.{role}") for role in ("w1", "w2", "w3")]
        return K.shared_expert(x, routed, *shared, **limits)
