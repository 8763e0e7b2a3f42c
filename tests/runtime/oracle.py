"""The model in one piece: whole sequences, f64, no state, no kernels of ours, straight from a spec's data.

It knows nothing of graphs, plans, chunks, rings or tails, so that it can be wrong only in other ways than they are.
Numerics are those of `compute: f32`, `activation_quant: none`, `kv_cache: none`.
"""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

_SPEC = importlib.util.spec_from_file_location(
    "oracle_token_map", Path(__file__).resolve().parents[1] / "kernels" / "token_map.py"
)
_TOKEN_MAP = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(_TOKEN_MAP)
E2M1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6]
NONE = float("-inf")


class Oracle:
    """A spec's plain data (with resolved lists) and a checkpoint in the official layout."""

    def __init__(self, spec: dict[str, Any], checkpoint: Path, hashes: tuple[Any, Any, Any] | None = None) -> None:
        self.spec, self.map = spec, spec["layers"]
        self.eps = float(spec["model"]["norm_eps"])
        self.tensors: dict[str, Tensor] = {}
        for shard in sorted(checkpoint.glob("*.safetensors")):
            with safe_open(shard, "pt") as file:
                self.tensors |= {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        self.hashes = hashes
        self.token_map = _TOKEN_MAP.compressed_ids(checkpoint / "tokenizer.json") if hashes else []
        self.values: dict[str, Tensor] = {}

    def w(self, name: str) -> Tensor:
        """A weight in f64."""
        value = self.tensors.get(name, self.tensors.get(f"{name}.weight"))
        scale = self.tensors.get(f"{name}.scale")
        if scale is None:
            return value.double()
        power = torch.pow(2.0, scale.view(torch.uint8).double() - 127)
        if value.dtype == torch.int8:
            byte = value.view(torch.uint8).long()
            value = torch.tensor(E2M1, dtype=torch.float64)[torch.stack([byte % 16, byte // 16], -1)].flatten(-2)
        elif "engram.embed" not in name:
            power = power.repeat_interleave(32, 0)[: value.shape[0]]
        return value.double() * power.repeat_interleave(32, 1)[:, : value.shape[1]]

    def norm(self, x: Tensor, weight: str) -> Tensor:
        return x / (x.square().mean(-1, keepdim=True) + self.eps).sqrt() * self.w(weight)

    def rope(self, x: Tensor, positions: Tensor, compressed: bool, sign: int = 1) -> Tensor:
        """x [T, ..., C] turned on its last channels."""
        rope, width = self.spec["rope"], self.spec["attention"]["rope_head_dim"]
        theta = rope["compress_theta"] if compressed else rope["theta"]
        turn = torch.tensor([theta ** (-2 * i / width) for i in range(width // 2)], dtype=torch.float64)
        if compressed:
            yarn = rope["yarn"]

            def place(beta: float) -> float:
                return width * math.log(yarn["original_seq_len"] / (beta * 2 * math.pi)) / (2 * math.log(theta))

            low, high = (
                max(math.floor(place(yarn["beta_fast"])), 0),
                min(math.ceil(place(yarn["beta_slow"])), width - 1),
            )
            ramp = [min(max((i - low) / max(high - low, 1e-3), 0), 1) for i in range(width // 2)]
            turn = turn * torch.tensor([1 - r + r / yarn["factor"] for r in ramp], dtype=torch.float64)
        unit = torch.polar(
            torch.ones(len(positions), width // 2, dtype=torch.float64), sign * positions[:, None] * turn
        )
        unit = unit.reshape(len(positions), *[1] * (x.dim() - 2), width // 2)
        tail = torch.view_as_complex(x[..., -width:].unflatten(-1, (-1, 2)).contiguous()) * unit
        return torch.cat([x[..., :-width], torch.view_as_real(tail).flatten(-2)], -1)

    def logits(self, ids: list[int]) -> Tensor:
        """f64 [T, V] of a whole sequence; states by their golden keys in `values`."""
        self.ids, self.at = ids, torch.arange(len(ids))
        streams = self.w("embed")[torch.tensor(ids)][:, None].repeat(1, self.spec["mhc"]["streams"], 1)
        pre = torch.zeros(streams.shape[:2], dtype=torch.float64)
        pre[:, 0] = 1
        for layer in range(self.spec["model"]["n_layers"]):
            name = f"layers.{layer}"
            if layer in self.map.get("engram_layers", []):
                streams = self.engram(layer, streams)
            for part, sublayer in (("attn", self.attention), ("ffn", self.ffn)):
                after, post, comb = self.mix(f"{name}.hc_{part}", streams)
                x = self.norm(torch.einsum("ts,tsd->td", pre, streams), f"{name}.{part}_norm")
                out = sublayer(layer, x)
                streams = post[..., None] * out[:, None] + torch.einsum("tij,tid->tjd", comb, streams)
                pre = after
            self.values |= {f"L{layer}.streams": streams, f"L{layer}.pre": pre}
        return self.norm(torch.einsum("ts,tsd->td", pre, streams), "norm") @ self.w("head").T

    def mix(self, name: str, streams: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        eps, count = self.spec["mhc"]["eps"], streams.shape[1]
        flat = streams.flatten(1)
        m = flat @ self.w(f"{name}_fn").T / (flat.square().mean(-1, keepdim=True) + self.eps).sqrt()
        scale, base = self.w(f"{name}_scale"), self.w(f"{name}_base")
        m = m * torch.cat([scale[:1].repeat(count), scale[1:2].repeat(count), scale[2:].repeat(count**2)]) + base
        comb = m[:, 2 * count :].reshape(-1, count, count).softmax(-1) + eps
        comb = comb / (comb.sum(1, keepdim=True) + eps)
        for _ in range(self.spec["mhc"]["sinkhorn_iters"] - 1):
            comb = comb / (comb.sum(2, keepdim=True) + eps)
            comb = comb / (comb.sum(1, keepdim=True) + eps)
        return m[:, :count].sigmoid() + eps, 2 * m[:, count : 2 * count].sigmoid(), comb

    def engram(self, layer: int, streams: Tensor) -> Tensor:
        engram, name = self.spec["engram"], f"layers.{layer}.engram"
        multipliers, primes, offsets = (part[self.map["engram_layers"].index(layer)] for part in self.hashes)
        rows, pad = [], self.token_map[engram["pad_id"]]
        for at in range(len(self.ids)):
            tokens = [self.token_map[self.ids[at - i]] if at >= i else pad for i in range(engram["max_ngram_size"])]
            for column, prime in enumerate(primes):
                number = 0
                for i in range(column // engram["n_heads"] + 2):
                    number ^= tokens[i] * multipliers[i]
                rows.append(number % prime + offsets[column])
        picked = torch.tensor(rows).view(len(self.ids), -1)
        self.values[f"L{layer}.engram_ids"] = picked
        table = self.w(f"{name}.embed")[picked].flatten(1)
        keys = (table @ self.w(f"{name}.wkv").T).unflatten(1, (streams.shape[1] + 1, -1))
        keys, value = keys[:, :-1], keys[:, -1]

        def unit(x: Tensor) -> Tensor:
            return x / (x.square().mean(-1, keepdim=True) + self.eps).sqrt()

        weight = self.w(f"{name}.q_weight") * self.w(f"{name}.k_weight")
        dot = (unit(streams) * weight * unit(keys)).sum(-1) / math.sqrt(streams.shape[-1])
        gate = (dot.abs().clamp(min=1e-6).sqrt() * torch.where(dot < 0, -1.0, 1.0)).sigmoid()
        return streams + gate[..., None] * value[:, None]

    def source(self, layer: int, kind: str) -> int:
        """Who made what a layer reads."""
        lists = {"compress_kv": self.map["kv_source_layers"], "topk": self.map["index_source_layers"]}
        lists["index_k"] = [n for n in lists["compress_kv"] if n in lists["topk"]]
        reads = {int(n): named for n, named in self.map.get("reads", {}).items()}
        return reads.get(layer, {}).get(kind, max([n for n in lists[kind] if n <= layer], default=-1))

    def attention(self, layer: int, x: Tensor) -> Tensor:
        a, name, ratio = self.spec["attention"], f"layers.{layer}.attn", self.map["compress_ratios"][layer]
        latent = self.norm(x @ self.w(f"{name}.wq_a").T, f"{name}.q_norm")
        query = (latent @ self.w(f"{name}.wq_b").T).unflatten(1, (a["n_heads"], -1))
        query = self.rope(query, self.at, ratio > 0)
        rows = self.rope(self.norm(x @ self.w(f"{name}.wkv").T, f"{name}.kv_norm"), self.at, ratio > 0)
        back = self.at[:, None] - self.at
        there = (back >= 0) & (back < a["window_size"])
        if ratio:
            if layer in self.map["kv_source_layers"]:
                self.compress(layer, x, ratio)
            if layer in self.map["index_source_layers"]:
                self.select(layer, x, latent, ratio)
            rows = torch.cat([rows, self.values[f"L{self.source(layer, 'compress_kv')}.compress_kv"]])
            there = torch.cat([there, self.values[f"L{self.source(layer, 'topk')}.selected"]], 1)
        score = torch.einsum("thc,nc->thn", query, rows) / math.sqrt(query.shape[-1])
        score = score.masked_fill(~there[:, None], NONE)
        sink = self.w(f"{name}.attn_sink")[None, :, None].expand(len(x), -1, 1)
        weight = torch.cat([score, sink], -1).softmax(-1)[..., :-1]
        out = self.rope(torch.einsum("thn,nc->thc", weight, rows), self.at, ratio > 0, -1)
        grouped = out.unflatten(1, (a["o_groups"], -1)).flatten(2)
        low = torch.einsum("tgi,goi->tgo", grouped, self.w(f"{name}.wo_a").unflatten(0, (a["o_groups"], -1)))
        return low.flatten(1) @ self.w(f"{name}.wo_b").T

    def compress(self, layer: int, x: Tensor, ratio: int) -> None:
        name, groups = f"layers.{layer}.attn.compressor", len(x) // ratio
        kv = x @ self.w(f"{name}.wkv").T
        if ratio > 1:
            gate = (x @ self.w(f"{name}.wgate").T)[: groups * ratio].unflatten(0, (groups, ratio)).softmax(1)
            kv = (gate * kv[: groups * ratio].unflatten(0, (groups, ratio))).sum(1)
        latent, at = self.norm(kv, f"{name}.norm"), torch.arange(groups) * ratio
        self.values[f"L{layer}.compress_kv"] = self.rope(latent, at, True)
        if layer in self.map["index_source_layers"]:
            name = f"layers.{layer}.attn.indexer"
            self.values[f"L{layer}.index_k"] = self.rope(
                self.norm(latent @ self.w(f"{name}.wk").T, f"{name}.k_norm"), at, True
            )

    def select(self, layer: int, x: Tensor, latent: Tensor, ratio: int) -> None:
        i, name = self.spec["indexer"], f"layers.{layer}.attn.indexer"
        query = self.rope((latent @ self.w(f"{name}.wq_b").T).unflatten(1, (i["n_heads"], -1)), self.at, True)
        weight = x @ self.w(f"{name}.weights_proj").T / math.sqrt(i["head_dim"] * i["n_heads"])
        keys = self.values[f"L{self.source(layer, 'index_k')}.index_k"]
        score = torch.einsum("thn,th->tn", torch.einsum("thc,nc->thn", query, keys).relu(), weight)
        seen = (self.at + 1) // ratio
        score = score.masked_fill(torch.arange(len(keys)) >= seen[:, None], NONE)
        first = self.map.get("candidate_source_layer", -1)
        if first >= 0 and layer > first:
            score = score.masked_fill(~self.values[f"L{first}.candidates"], NONE)
        selected = torch.zeros(score.shape, dtype=torch.bool)
        candidates = selected.clone()
        size = i["candidate_block_size"]
        for t, row in enumerate(score.tolist()):
            for j in sorted((j for j, s in enumerate(row) if s != NONE), key=lambda j: (-row[j], j))[: i["topk"]]:
                selected[t, j] = True
            if layer == first and seen[t]:
                blocks = {b: max(row[b * size : (b + 1) * size]) for b in range(-(-int(seen[t]) // size))}
                blocks[(int(seen[t]) - 1) // size] = float("inf")
                for b in sorted(blocks, key=lambda b: (-blocks[b], b))[: i["candidate_topk_blocks"]]:
                    candidates[t, b * size : min((b + 1) * size, int(seen[t]))] = True
        self.values[f"L{layer}.selected"] = selected
        if layer == first:
            self.values[f"L{layer}.candidates"] = candidates

    def ffn(self, layer: int, x: Tensor) -> Tensor:
        m, name = self.spec["moe"], f"layers.{layer}.ffn"
        scores = torch.nn.functional.softplus(x @ self.w(f"{name}.gate").T / m["gate_temp"]).sqrt()
        order = torch.sort(scores + self.w(f"{name}.gate.bias"), dim=-1, descending=True, stable=True).indices
        chosen = order[:, : m["n_activated_experts"]]
        self.values[f"L{layer}.experts"] = chosen
        weights = scores.gather(1, chosen)
        weights = weights / weights.sum(-1, keepdim=True) * m["route_scale"]

        def expert(which: str, x: Tensor) -> Tensor:
            gate, up = x @ self.w(f"{which}.w1").T, x @ self.w(f"{which}.w3").T
            if m["swiglu_limit"]:
                gate, up = gate.clamp(max=m["swiglu_limit"]), up.clamp(-m["swiglu_limit"], m["swiglu_limit"])
            return (gate * gate.sigmoid() * up) @ self.w(f"{which}.w2").T

        out = expert(f"{name}.shared_experts", x)
        for e in chosen.unique().tolist():
            share = torch.where(chosen == e, weights, 0).sum(-1, keepdim=True)
            used = share[:, 0] != 0
            out[used] += share[used] * expert(f"{name}.experts.{e}", x[used])
        return out
