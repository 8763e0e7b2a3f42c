"""The attention query: low-rank, rotated, not normed per head."""

from __future__ import annotations

import torch
from torch import Tensor

from dsv41c.kernels.reference.encodings import Packed
from dsv41c.kernels.reference.linear import linear
from dsv41c.kernels.reference.norm import norm
from dsv41c.kernels.reference.rope import apply_rope
from dsv41c.kernels.step import Step


def query(
    step: Step,
    x: Tensor,
    rope: Tensor,
    wq_a: Tensor | Packed,
    q_norm: Tensor,
    wq_b: Tensor | Packed,
    *,
    heads: int,
    rope_dim: int,
    eps: float,
    activation_quant: str,
) -> tuple[Tensor, Tensor]:
    """Query heads [B, T, H, C] = rope(wq_b latent), and the latent [B, T, q_lora_rank] = norm(wq_a x).

    x [B, T, D]; rope f32 [rope_dim / 2]; wq_a [q_lora_rank, D]; q_norm f32; wq_b [H * C, q_lora_rank]. Dtype of x.
    There is no norm on the heads: the previous model generation had one.
    """
    latent = norm(linear(x, wq_a, activation_quant), q_norm, eps=eps)
    flat = torch.unflatten(linear(latent, wq_b, activation_quant), -1, (heads, -1))
    return apply_rope(flat, step.token_positions(x.shape[1]), rope, rope_dim), latent
