"""The mixture of experts: routing, routed experts, and the shared expert."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dsv41c.kernels.reference.encodings import Packed, dense
from dsv41c.kernels.reference.linear import linear
from dsv41c.kernels.reference.select import best


def route(
    x: Tensor, gate: Tensor, bias: Tensor, *, active: int, score_func: str, gate_temp: float, route_scale: float
) -> tuple[Tensor, Tensor]:
    """The experts of each token: weights f32 [B, T, active] and ids int64 [B, T, active], best first.

    x [B, T, D]; gate f32 or bf16 [experts, D]; bias f32 [experts]. Scores are sqrt(softplus(x gate^T / temperature)) in
    f32. The bias takes part in the choice only; weights are the chosen scores over their sum, times `route_scale`.
    """
    if score_func != "sqrtsoftplus":
        raise ValueError(f"unknown score function `{score_func}`; known: sqrtsoftplus")
    logits = torch.nn.functional.linear(x.to(torch.float32), gate.to(torch.float32)) / gate_temp
    # softplus here is log1p(exp(x)): log(1 + exp(x)) would be 0 from -16.7 down.
    scores = torch.nn.functional.softplus(logits).sqrt()
    ids = best(scores + bias, active)
    chosen = scores.gather(-1, ids)
    return chosen / (chosen.sum(-1, keepdim=True) + 1e-20) * route_scale, ids


def _swiglu(gate: Tensor, up: Tensor, limit: float) -> Tensor:
    """silu(gate) * up in f32; a limit above 0 clamps the gate from above only and the up value on both sides."""
    gate, up = gate.to(torch.float32), up.to(torch.float32)
    if limit > 0:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return torch.nn.functional.silu(gate) * up


def _expert(
    x: Tensor,
    share: Tensor | None,
    w1: Tensor | Packed,
    w2: Tensor | Packed,
    w3: Tensor | Packed,
    limit: float,
    activation_quant: str,
    part: bool = False,
) -> Tensor:
    """One expert on rows x [n, D] or [B, T, D]: w2(share * swiglu(w1 x, w3 x)), rounded to x's dtype, as f32.

    `share` f32 is the routing weight of each row, None for 1. With `part` nothing is rounded behind w2.
    """
    gate = linear(x, dense(w1, x.dtype), activation_quant)
    hidden = _swiglu(gate, linear(x, dense(w3, x.dtype), activation_quant), limit)
    hidden = (hidden if share is None else share * hidden).to(x.dtype)
    return linear(hidden, dense(w2, x.dtype), activation_quant, part=part).to(torch.float32)


def experts(
    x: Tensor,
    expert_weights: Tensor,
    expert_ids: Tensor,
    w1: Sequence[Tensor | Packed],
    w2: Sequence[Tensor | Packed],
    w3: Sequence[Tensor | Packed],
    *,
    limit: float,
    activation_quant: str,
    shards: int = 1,
) -> Tensor:
    """The routed sum, f32 [B, T, D]: of each chosen expert, w2 applied to (weight * silu(w1 x) * w3 x).

    x [B, T, D]; expert_weights f32 and expert_ids int64 [B, T, active]; w1[e], w3[e] [inter, D] and w2[e] [D, inter],
    decoded when used. The routing weight comes before w2 and before its input is rounded. Experts are added in
    ascending order. This is the one kernel whose work depends on data: it asks the device which experts are present.
    `experts_static` does not.

    Of several `shards` each has its own part of every expert's inner width, and no expert's result is rounded.
    """
    flat, ids, weights = x.flatten(0, 1), expert_ids.flatten(0, 1), expert_weights.flatten(0, 1)
    routed = torch.zeros(flat.shape, dtype=torch.float32, device=x.device)
    for expert in sorted(set(ids.flatten().tolist())):
        token, place = torch.where(ids == expert)
        share, parts = weights[token, place, None], (w1[expert], w2[expert], w3[expert])
        # A token has an expert once, so no two rows of this sum are the same.
        routed[token] += _expert(flat[token], share, *parts, limit, activation_quant, shards > 1)
    return torch.unflatten(routed, 0, x.shape[:2])


def experts_static(
    x: Tensor,
    expert_weights: Tensor,
    expert_ids: Tensor,
    w1: Sequence[Tensor | Packed],
    w2: Sequence[Tensor | Packed],
    w3: Sequence[Tensor | Packed],
    *,
    limit: float,
    activation_quant: str,
    shards: int = 1,
) -> Tensor:
    """`experts` with shapes and work that no data decides, so that a graph can hold it: f32 [B, T, D].

    Every expert takes every token, and what nobody chose is masked out. The same sums in the same order; a matrix
    product over more rows may round otherwise in its last bit.
    """
    flat, ids, weights = x.flatten(0, 1), expert_ids.flatten(0, 1), expert_weights.flatten(0, 1)
    routed = torch.zeros(flat.shape, dtype=torch.float32, device=x.device)
    for expert in range(len(w1)):
        chosen = ids == expert
        share = weights.masked_fill(~chosen, 0).sum(-1, keepdim=True)
        added = _expert(flat, share, w1[expert], w2[expert], w3[expert], limit, activation_quant, shards > 1)
        # Not a product with the mask: of a token that did not choose the expert anything may come.
        routed = torch.where(chosen.any(-1, keepdim=True), routed + added, routed)
    return torch.unflatten(routed, 0, x.shape[:2])


def shared_expert(
    x: Tensor,
    routed: Tensor,
    w1: Tensor | Packed,
    w2: Tensor | Packed,
    w3: Tensor | Packed,
    *,
    limit: float,
    activation_quant: str,
    shards: int = 1,
) -> Tensor:
    """routed + w2(silu(w1 x) * w3 x), with the routed experts' clamps and weight 1; [B, T, D] in x's dtype.

    x [B, T, D]; routed f32 [B, T, D]; w1, w3 [inter, D]; w2 [D, inter]. The sum is f32 and rounded once. Of several
    `shards` each has its own part of the inner width, and gives its part of the sum: f32, not rounded.
    """
    part = shards > 1
    added = routed + _expert(x, None, w1, w2, w3, limit, activation_quant, part)
    return added if part else added.to(x.dtype)
