"""Wrong wirings of the model, each as an edit of the manifest's ops, of weights, or of one kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from golden_tiny import ORACLE, plan, weights
from torch import Tensor

from dsv41c.kernels.reference import rope as rope_tables
from dsv41c.kernels.reference.groups import visible_groups
from dsv41c.kernels.reference.linear import linear
from dsv41c.kernels.reference.moe import route
from dsv41c.kernels.reference.select import best
from dsv41c.kernels.registry import kernels_for
from dsv41c.kernels.step import Step
from dsv41c.runtime.manifest import OpEntry

KERNELS = kernels_for("cpu")


@dataclass(frozen=True)
class Model:
    """What an executor runs: ops in order, weights, kernels that differ, and values given from outside."""

    ops: tuple[OpEntry, ...]
    weights: dict[str, Any]
    kernels: dict[str, Callable[..., Any]] = field(default_factory=dict)
    feeds: dict[str, Tensor] = field(default_factory=dict)


Edit = Callable[[Model], Model]
ROOMY = ("max_context: 80", "max_context: 128")  # so that 64 rows of a ratio-2 source exist as well


def right() -> Model:
    """The model as compiled."""
    return Model(tuple(plan(ORACLE, ROOMY).manifest.ops), dict(weights()))


class Changed:
    """Kernels of which some are replaced."""

    def __init__(self, own: dict[str, Callable[..., Any]]) -> None:
        self._own = own

    def __getattr__(self, kind: str) -> Callable[..., Any]:
        return self._own.get(kind) or getattr(KERNELS, kind)


def chosen(ops: Iterable[OpEntry], suffix: str, layers: Iterable[int] | None = None) -> list[OpEntry]:
    """The ops of a kind, or whose id ends so, on some layers."""
    wanted = None if layers is None else set(layers)
    found = [
        op for op in ops if (op.id.endswith(suffix) or op.kind == suffix) and (wanted is None or op.layer in wanted)
    ]
    assert found, suffix
    return found


def edit(suffix: str, layers: Iterable[int] | None = None, **changes: Callable[[OpEntry], dict[str, Any]]) -> Edit:
    """Replace `reads`, `weights` or `attrs` of ops by what functions of the op give."""
    kept = None if layers is None else tuple(layers)

    def apply(model: Model) -> Model:
        hit = {op.id for op in chosen(model.ops, suffix, kept)}
        ops = tuple(
            op.model_copy(update={name: change(op) for name, change in changes.items()}) if op.id in hit else op
            for op in model.ops
        )
        return replace(model, ops=ops)

    return apply


def reread(suffix: str, layers: Iterable[int] | None = None, **sources: str | None) -> Edit:
    """Take reads from other values; None drops the read. `{}` stands for the layer."""

    def reads(op: OpEntry) -> dict[str, str]:
        assert set(sources) <= set(op.reads), (op.id, sources)
        named = {**op.reads, **{port: value and value.format(op.layer) for port, value in sources.items()}}
        return {port: value for port, value in named.items() if value is not None}

    return edit(suffix, layers, reads=reads)


def reattr(suffix: str, **attrs: Any) -> Edit:
    """Other attributes."""
    return edit(suffix, attrs=lambda op: {**op.attrs, **attrs})


def reweight(suffix: str, change: Callable[[Any], Any]) -> Edit:
    """Other values of the weights whose id ends so."""

    def apply(model: Model) -> Model:
        hit = [key for key in model.weights if key.endswith(suffix)]
        assert hit, suffix
        return replace(model, weights={**model.weights, **{key: change(model.weights[key]) for key in hit}})

    return apply


def rekernel(kind: str, kernel: Callable[..., Any]) -> Edit:
    """Another kernel."""
    return lambda model: replace(model, kernels={**model.kernels, kind: kernel})


def given(value: str, tensor: Tensor) -> Edit:
    """A value from outside."""
    return lambda model: replace(model, feeds={**model.feeds, value: tensor})


def both(*edits: Edit) -> Edit:
    """Several edits together."""

    def apply(model: Model) -> Model:
        for one in edits:
            model = one(model)
        return model

    return apply


def filter_source(model: Model) -> Model:
    """The candidate source selects inside its own candidates."""
    (score,) = chosen(model.ops, "layers.6.attn.index_score")
    again = score.model_copy(
        update={
            "id": "layers.6.attn.index_score_again",
            "reads": {**score.reads, "candidates": "candidates@L6"},
            "writes": {"index_score": "index_score@L6.again"},
        }
    )
    model = reread("layers.6.attn.select_topk", index_score="index_score@L6.again")(model)
    place = [op.id for op in model.ops].index("layers.6.attn.select_candidates") + 1
    return replace(model, ops=(*model.ops[:place], again, *model.ops[place:]))


# --- kernels that are wrong in one way --------------------------------------------------------------------------------


def select_candidates(pin: bool, mean: bool) -> Callable[..., Tensor]:
    """Candidates without the pin, or by block mean."""

    def kernel(step: Step, index_score: Tensor, *, ratio: int, block_size: int, blocks: int) -> Tensor:
        score = index_score.unflatten(-1, (-1, block_size))
        there = score.isfinite()
        average = score.masked_fill(~there, 0).sum(-1) / there.sum(-1).clamp(min=1)
        score = average.masked_fill(~there.any(-1), float("-inf")) if mean else score.amax(-1)
        if pin:
            newest = (visible_groups(step, score.shape[1], ratio) - 1).div(block_size, rounding_mode="floor")
            score = score.masked_fill(torch.arange(score.shape[-1]) == newest[..., None], float("inf"))
        kept = torch.zeros_like(score, dtype=torch.bool).scatter_(-1, best(score, blocks), True)
        return kept & (score != float("-inf"))

    return kernel


def index_score_without_relu(
    step: Step,
    index_query: Tensor,
    index_weight: Tensor,
    index_k: Tensor,
    *,
    candidates: Tensor | None = None,
    ratio: int,
    block_size: int,
) -> Tensor:
    right_one = KERNELS.index_score(
        step, index_query, index_weight, index_k, candidates=candidates, ratio=ratio, block_size=block_size
    )
    dots = torch.einsum("bthc,bnc->bthn", index_query, index_k[:, : right_one.shape[2]][step.slots])
    score = (dots * index_weight[..., None]).sum(2)
    return score.masked_fill(right_one == float("-inf"), float("-inf"))


def rotated_at_last_token(kind: str) -> Callable[..., Any]:
    """Rows of groups turned by r-1 positions more, which is at the group's last token."""

    def kernel(step: Step, x: Tensor, pool: Tensor, rope: Tensor, *rest: Any, **named: Any) -> Any:
        result = getattr(KERNELS, kind)(step, x, pool, rope, *rest, **named)
        extra = torch.full((1, pool.shape[1]), named["ratio"] - 1)
        pool[step.slots] = rope_tables.apply_rope(pool[step.slots], extra, rope, named["rope_dim"])
        return result

    return kernel


def attend_without_inverse_rope(step: Step, query: Tensor, *rest: Any, **named: Any) -> Tensor:
    out = KERNELS.attend(step, query, *rest, **named)
    rope = rest[2]
    return rope_tables.apply_rope(out, step.token_positions(query.shape[1]), rope, named["rope_dim"])


def mix_transposed(*args: Any, **named: Any) -> tuple[Tensor, Tensor, Tensor]:
    pre, post, comb = KERNELS.mix(*args, **named)
    return pre, post, comb.transpose(-1, -2)


def no_engram(streams: Tensor, *rest: Any, **named: Any) -> tuple[Tensor, Tensor]:
    return streams, torch.zeros(streams.shape[:3])


def engram_gate(joint: bool, root: bool) -> Callable[..., tuple[Tensor, Tensor]]:
    """The gate with norms over all streams together, or without the signed root."""

    def kernel(
        streams: Tensor, rows: Tensor, wkv: Tensor, q: Tensor, k: Tensor, *, eps: float, activation_quant: str
    ) -> Any:
        dim, axes = streams.shape[-1], (-2, -1) if joint else (-1,)
        keys, value = linear(rows, wkv, activation_quant).unflatten(-1, (-1, dim)).split([streams.shape[2], 1], 2)
        norms = [torch.rsqrt(x.square().mean(axes, keepdim=True) + eps) for x in (streams, keys)]
        dot = (streams * q * k * keys * norms[0] * norms[1]).sum(-1) * dim**-0.5
        gate = torch.sigmoid(torch.copysign(dot.abs().clamp(min=1e-6).sqrt(), dot) if root else dot)
        return streams + gate[..., None] * value, gate

    return kernel


def route_with_bias_in_weights(x: Tensor, gate: Tensor, bias: Tensor, **named: Any) -> tuple[Tensor, Tensor]:
    _, picked = route(x, gate, bias, **named)
    scores = torch.nn.functional.softplus(x @ gate.T / named["gate_temp"]).sqrt() + bias
    part = scores.gather(-1, picked)
    return part / (part.sum(-1, keepdim=True) + 1e-20) * named["route_scale"], picked


def clamped_on_both_sides(kind: str) -> Callable[..., Any]:
    """An expert kernel whose gate is clamped from below too."""
    from unittest.mock import patch

    def swiglu(gate: Tensor, up: Tensor, limit: float) -> Tensor:
        return torch.nn.functional.silu(gate.clamp(-limit, limit)) * up.clamp(-limit, limit)

    def kernel(*args: Any, **named: Any) -> Any:
        with patch("dsv41c.kernels.reference.moe._swiglu", swiglu):
            return getattr(KERNELS, kind)(*args, **named)

    return kernel
