"""The two ends of the model: token embedding and logits."""

from __future__ import annotations

import torch
from torch import Tensor


def embed(ids: Tensor, embed: Tensor, *, streams: int) -> tuple[Tensor, Tensor]:
    """Embeddings repeated over the streams [B, T, S, D], and the first pre, f32 [B, T, S]: one-hot of stream 0.

    ids int64 [B, T]; embed [V, D], whose dtype the streams get.
    """
    rows = torch.nn.functional.embedding(ids, embed)
    first = (torch.arange(streams, device=ids.device) == 0).to(torch.float32)
    pre = first.repeat(*ids.shape, 1)
    return rows[:, :, None].repeat(1, 1, streams, 1), pre


def head(x: Tensor, head: Tensor) -> Tensor:
    """Logits f32 [B, T, V]: f32(x) f32(head)^T, with x [B, T, D] and head [V, D] f32 or bf16."""
    return torch.nn.functional.linear(x.to(torch.float32), head.to(torch.float32))
