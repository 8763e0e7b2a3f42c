"""From a spec to its graph: every op of the model in order, every read naming the one value it reads.

`pre` is carried: attention collapses with the previous layer's FFN pre-mix, the FFN with this layer's attention
pre-mix, the head with the last FFN's. A read that no layer produces names `KIND@none`, left for the checks to report.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from dsv41c.compiler.ir import Graph, Op, Scalar, Value
from dsv41c.compiler.layer_map import LayerMap
from dsv41c.compiler.shapes import Shapes
from dsv41c.diagnostics import Span
from dsv41c.kernels.catalog import OPS, OpKind

if TYPE_CHECKING:
    from dsv41c.compiler.spec.models import Spec


class Positions(Protocol):
    """Where a spec's values were written."""

    def value(self, path: tuple[str | int, ...]) -> Span:
        """The place of a value, or of its nearest parent that was written."""
        ...


def build(spec: Spec, positions: Positions) -> Graph:
    """The unplaced graph of a spec."""
    return _Builder(spec, positions).graph()


# Where an op comes from, when not from its layer's entry in `compress_ratios`.
_ORIGINS: dict[str, tuple[str, ...]] = {
    "mix": ("mhc",),
    "route": ("moe",),
    "experts": ("moe",),
    "shared_expert": ("moe",),
}
_LISTS = {
    "compress": "kv_source_layers",
    "index_keys": "kv_source_layers",
    "index_query": "index_source_layers",
    "index_score": "index_source_layers",
    "select_topk": "index_source_layers",
    "engram_rows": "engram_layers",
    "engram_gate": "engram_layers",
}


class _Builder:
    """Builds one graph; `streams` and `pre` are the versions that the next sublayer reads."""

    def __init__(self, spec: Spec, positions: Positions) -> None:
        self.spec = spec
        self.positions = positions
        self.map = LayerMap.of(spec.model, spec.layers)
        self.shapes = Shapes(spec)
        self.ops: list[Op] = []
        self.inputs: list[Value] = []
        self.written: list[Value] = []
        self.origins = {name: self._list_origins(name) for name in set(_LISTS.values())}
        self.engrams = {layer: index for index, layer in enumerate(self.map.engrams)}
        self.streams = "streams@embed"
        self.pre = "pre@init"

    def graph(self) -> Graph:
        """The whole graph."""
        self._entry()
        for layer in range(self.spec.model.n_layers):
            self._engram(layer)
            self._attention(layer)
            self._ffn(layer)
        self._exit()
        return Graph(self.spec.name, tuple(self.ops), tuple(self.inputs), tuple(self.written))

    # --- parts of the model ---------------------------------------------------------------------

    def _entry(self) -> None:
        model = self.positions.value(("model",))
        self._input("ids", "ids", model)
        streams = self.spec.mhc.streams
        self._op(
            "embed", "embed", None, {"ids": "ids"}, {"streams": self.streams, "pre": self.pre}, {"streams": streams}
        )
        if self.spec.engram is None or not self.map.engrams:
            return
        before = self._input("token_history.before", "token_history", self.positions.value(("engram",)))
        reads = {"ids": "ids", "token_history": before}
        writes = {"engram_ids": "engram_ids", "token_history": "token_history"}
        weights = {name: f"engram.{name}" for name in OPS["engram_ids"].weights}
        self._op("engram.ids", "engram_ids", None, reads, writes, {"pad_id": self.spec.engram.pad_id}, weights)

    def _engram(self, layer: int) -> None:
        if self.spec.engram is None or layer not in self.engrams:
            return
        rows, gated = f"engram_rows@L{layer}", f"streams@L{layer}.engram"
        index = self.engrams[layer]
        table = {"table": f"layers.{layer}.engram_table"}
        name = f"layers.{layer}"
        self._op(f"{name}.engram_rows", "engram_rows", layer, {"engram_ids": "engram_ids"}, {"engram_rows": rows},
                 {"index": index}, table)  # fmt: skip
        weights = {part: f"{name}.engram_{part}" for part in OPS["engram_gate"].weights}
        attrs = {"eps": self.spec.model.norm_eps, "activation_quant": self.spec.numerics.activation_quant}
        reads = {"streams": self.streams, "engram_rows": rows}
        writes = {"streams": gated, "engram_gate": f"engram_gate@L{layer}"}
        self._op(f"{name}.engram_gate", "engram_gate", layer, reads, writes, attrs, weights)
        self.streams = gated

    def _sublayer_input(self, layer: int, part: str, carried: str) -> str:
        """Mix, collapse and norm of a sublayer; returns its input. `carried` is the pre-mix to collapse with."""
        at, name = f"@L{layer}.{part}", f"layers.{layer}.{part}"
        mhc = self.spec.mhc
        attrs: dict[str, Scalar] = {
            "iterations": mhc.sinkhorn_iters,
            "eps": mhc.eps,
            "norm_eps": self.spec.model.norm_eps,
        }
        weights = {key: f"layers.{layer}.hc_{part}_{key}" for key in OPS["mix"].weights}
        writes = {key: f"{key}{at}" for key in ("pre", "post", "comb")}
        self._op(f"{name}.mix", "mix", layer, {"streams": self.streams}, writes, attrs, weights)
        collapse = {"streams": self.streams, "pre": carried}
        self._op(f"{name}.collapse", "collapse", layer, collapse, {"collapsed": f"collapsed{at}"})
        self._norm(f"{name}.norm", layer, f"collapsed{at}", f"normed{at}", f"layers.{layer}.{part}_norm")
        return f"normed{at}"

    def _sublayer_output(self, layer: int, part: str) -> None:
        at = f"@L{layer}.{part}"
        reads = {"sublayer_out": f"sublayer_out{at}", "streams": self.streams, "post": f"post{at}", "comb": f"comb{at}"}
        self._op(f"layers.{layer}.{part}.expand", "expand", layer, reads, {"streams": f"streams{at}"})
        self.streams = f"streams{at}"

    def _attention(self, layer: int) -> None:
        normed = self._sublayer_input(layer, "attn", self.pre)
        rope, eps = self._rope(layer), self.spec.model.norm_eps
        width = {"rope_dim": self.spec.attention.rope_head_dim}
        quant = {"activation_quant": self.spec.numerics.activation_quant}
        cache = {"kv_cache": self.spec.numerics.kv_cache}
        heads = {"heads": self.spec.attention.n_heads}
        self._attn(layer, "query", {"x": normed}, {**heads, **width, "eps": eps, **quant},
                   rope | self._roles(layer, "wq_a q_norm wq_b"))  # fmt: skip
        self._attn(layer, "window_rows", {"x": normed}, {**width, "eps": eps, **quant, **cache},
                   rope | self._roles(layer, "wkv kv_norm"))  # fmt: skip
        if self.map.produces("compress_kv", layer):
            self._compress(layer, normed)
        if self.map.produces("topk", layer):
            self._select(layer, normed)
        self._attend(layer)
        self._sublayer_output(layer, "attn")

    def _compress(self, layer: int, normed: str) -> None:
        """The compressor of a KV source, and its index keys where it owns them."""
        spec, ratio, rope = self.spec, self.map.ratios[layer], self._rope(layer)
        span = self._origin("compress", layer)
        attrs: dict[str, Scalar] = {
            "ratio": ratio,
            "rope_dim": spec.attention.rope_head_dim,
            "eps": spec.model.norm_eps,
            "kv_cache": spec.numerics.kv_cache,
        }
        kept = ["compress_kv", "group_tail"] if ratio > 1 else ["compress_kv"]
        reads = {"x": normed} | {kind: self._input(f"{kind}@L{layer}.before", kind, span) for kind in kept}
        weights = rope | {part: f"layers.{layer}.compressor_{part}" for part in ("wkv", "norm")}
        if ratio > 1:
            weights["wgate"] = f"layers.{layer}.compressor_wgate"
        writes = {kind: f"{kind}@L{layer}" for kind in ("latent", *kept)}
        self._op(f"layers.{layer}.attn.compress", "compress", layer, reads, writes, attrs, weights)
        if self.map.produces("index_k", layer):
            before = self._input(f"index_k@L{layer}.before", "index_k", span)
            weights = rope | {part: f"layers.{layer}.indexer_{part}" for part in ("wk", "k_norm")}
            self._attn(layer, "index_keys", {"latent": f"latent@L{layer}", "index_k": before}, attrs, weights)

    def _select(self, layer: int, normed: str) -> None:
        """The indexer of an index source: query, scores over the shared keys, candidates, selection."""
        spec, ratio = self.spec, self.map.ratios[layer]
        weights = self._rope(layer) | {part: f"layers.{layer}.indexer_{part}" for part in ("wq_b", "weights_proj")}
        attrs: dict[str, Scalar] = {
            "heads": spec.indexer.n_heads,
            "rope_dim": spec.attention.rope_head_dim,
            "activation_quant": spec.numerics.activation_quant,
            "kv_cache": spec.numerics.kv_cache,
        }
        self._attn(layer, "index_query", {"x": normed, "query_latent": f"query_latent@L{layer}"}, attrs, weights)
        reads = {port: f"{port}@L{layer}" for port in ("index_query", "index_weight")}
        reads["index_k"] = self._shared("index_k", layer)
        block = {"ratio": ratio, "block_size": spec.indexer.candidate_block_size}
        if self.map.reads_candidates(layer):
            reads["candidates"] = self._shared("candidates", layer)
        self._attn(layer, "index_score", reads, block)
        score = {"index_score": f"index_score@L{layer}"}
        if self.map.produces("candidates", layer):
            self._attn(layer, "select_candidates", score, {**block, "blocks": spec.indexer.candidate_topk_blocks})
        self._attn(layer, "select_topk", score, {"k": spec.indexer.topk})

    def _attend(self, layer: int) -> None:
        """Attention over window and selection; the ring is written only after it was read."""
        attention, ratio = self.spec.attention, self.map.ratios[layer]
        rows = f"window_rows@L{layer}"
        before = self._input(f"window_kv@L{layer}.before", "window_kv", self._origin("window_store", layer))
        reads = {"query": f"query@L{layer}", "window_kv": before, "window_rows": rows}
        if ratio > 0:
            reads |= {kind: self._shared(kind, layer) for kind in ("compress_kv", "topk")}
        weights = self._rope(layer) | {"sink": f"layers.{layer}.attn_sink"}
        window = {"window": attention.window_size}
        self._attn(layer, "attend", reads, {**window, "ratio": ratio, "rope_dim": attention.rope_head_dim}, weights)
        self._attn(layer, "window_store", {"window_rows": rows, "window_kv": before}, window)
        quant = {"groups": attention.o_groups, "activation_quant": self.spec.numerics.activation_quant}
        self._op(f"layers.{layer}.attn.output", "output", layer, {"attended": f"attended@L{layer}"},
                 {"sublayer_out": f"sublayer_out@L{layer}.attn"}, quant, self._roles(layer, "wo_a wo_b"))  # fmt: skip

    def _ffn(self, layer: int) -> None:
        normed = self._sublayer_input(layer, "ffn", f"pre@L{layer}.attn")
        moe, name, x = self.spec.moe, f"layers.{layer}.ffn", {"x": normed}
        attrs: dict[str, Scalar] = {
            "active": moe.n_activated_experts,
            "score_func": moe.score_func,
            "gate_temp": moe.gate_temp,
            "route_scale": moe.route_scale,
        }
        chosen = {key: f"{key}@L{layer}" for key in ("expert_weights", "expert_ids")}
        gate = {"gate": f"layers.{layer}.gate", "bias": f"layers.{layer}.gate_bias"}
        self._op(f"{name}.route", "route", layer, x, chosen, attrs, gate)
        clamp: dict[str, Scalar] = {
            "limit": moe.swiglu_limit,
            "activation_quant": self.spec.numerics.activation_quant,
        }
        routed = {"routed": f"routed@L{layer}"}
        experts, shared = (
            {w: f"layers.{layer}.{kind}_{w}" for w in ("w1", "w2", "w3")} for kind in ("experts", "shared")
        )
        self._op(f"{name}.experts", "experts", layer, x | chosen, routed, clamp, experts)
        out = {"sublayer_out": f"sublayer_out@L{layer}.ffn"}
        self._op(f"{name}.shared_expert", "shared_expert", layer, x | routed, out, clamp, shared)
        self._sublayer_output(layer, "ffn")
        self.pre = f"pre@L{layer}.ffn"

    def _exit(self) -> None:
        reads = {"streams": self.streams, "pre": self.pre}
        self._op("final.collapse", "collapse", None, reads, {"collapsed": "collapsed@final"})
        self._norm("final.norm", None, "collapsed@final", "normed@final", "final_norm")
        self._op("head", "head", None, {"x": "normed@final"}, {"logits": "logits"}, {}, {"head": "head"})

    # --- one op ---------------------------------------------------------------------------------

    def _norm(self, op_id: str, layer: int | None, read: str, write: str, weight: str) -> None:
        eps = {"eps": self.spec.model.norm_eps}
        self._op(op_id, "norm", layer, {"x": read}, {"normed": write}, eps, {"weight": weight})

    def _attn(
        self,
        layer: int,
        kind: str,
        reads: dict[str, str],
        attrs: Mapping[str, Scalar],
        weights: dict[str, str] | None = None,
    ) -> None:
        """An op of the attention sublayer whose writes are named after its ports."""
        writes = {port.name: f"{port.name}@L{layer}" for port in OPS[kind].writes}
        self._op(f"layers.{layer}.attn.{kind}", kind, layer, reads, writes, dict(attrs), weights)

    def _op(
        self,
        op_id: str,
        kind: str,
        layer: int | None,
        reads: dict[str, str],
        writes: dict[str, str],
        attrs: Mapping[str, Scalar] | None = None,
        weights: dict[str, str] | None = None,
    ) -> None:
        """Append an op, everything in the catalogue's order."""
        entry, span = OPS[kind], self._origin(kind, layer)
        bound = {"embed": "embed"} if kind == "embed" else weights or {}
        given = attrs or {}
        self.ops.append(
            Op(
                op_id,
                kind,
                layer,
                tuple((port.name, reads[port.name]) for port in entry.reads if port.name in reads),
                tuple((port.name, writes[port.name]) for port in entry.writes if port.name in writes),
                tuple((name, bound[name]) for name in (*entry.weights, *entry.optional_weights) if name in bound),
                tuple((name, given[name]) for name in entry.attrs),
                span,
            )
        )
        self.written.extend(self._written(entry, writes, span))

    def _written(self, entry: OpKind, writes: dict[str, str], span: Span) -> list[Value]:
        ports = [port for port in entry.writes if port.name in writes]
        return [self._value(writes[port.name], port.name, port.kind, span) for port in ports]

    def _value(self, value_id: str, name: str, kind: str, span: Span) -> Value:
        value = Value(value_id, kind, (), "", span)
        shape, dtype = self.shapes.of(name, self.map.ratios[value.layer] if value.layer is not None else 0)
        return Value(value_id, kind, shape, dtype, span)

    def _input(self, value_id: str, kind: str, span: Span) -> str:
        """A value that the call finds already there."""
        self.inputs.append(self._value(value_id, kind, kind, span))
        return value_id

    def _shared(self, kind: str, layer: int) -> str:
        """The shared value a layer reads."""
        source = self.map.source(kind, layer)
        return f"{kind}@none" if source is None else f"{kind}@L{source}"

    # --- weights and places ---------------------------------------------------------------------

    def _rope(self, layer: int) -> dict[str, str]:
        """Layers with a compressed branch use the compress theta and YaRN for everything they rotate."""
        return {"rope": "rope.compress" if self.map.ratios[layer] > 0 else "rope.window"}

    def _roles(self, layer: int, names: str) -> dict[str, str]:
        return {name: f"layers.{layer}.{name}" for name in names.split()}

    def _list_origins(self, name: str) -> dict[int, Span]:
        layers: tuple[int, ...] = getattr(self.spec.layers, name)
        return {layer: self.positions.value(("layers", name, index)) for index, layer in enumerate(layers)}

    def _origin(self, kind: str, layer: int | None) -> Span:
        """The YAML position an op comes from."""
        if layer is None:
            return self.positions.value(("engram",) if kind == "engram_ids" else ("model",))
        if kind in _LISTS and layer in self.origins[_LISTS[kind]]:
            return self.origins[_LISTS[kind]][layer]
        if kind == "select_candidates":
            return self.positions.value(("layers", "candidate_source_layer"))
        return self.positions.value(_ORIGINS.get(kind, ("layers", "compress_ratios", layer)))
