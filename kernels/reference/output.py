"""The grouped low-rank output projection of attention."""

from __future__ import annotations

import torch
from torch import Tensor

from dsv41c.kernels.reference.encodings import Packed, dense
from dsv41c.kernels.reference.linear import linear


def output(
    attended: Tensor,
    wo_a: Tensor | Packed,
    wo_b: Tensor | Packed,
    *,
    groups: int,
    activation_quant: str,
    shards: int = 1,
) -> Tensor:
    """wo_b(concat over groups of wo_a[g] heads[g]); [B, T, D] in the input's dtype, part of a sum in f32.

    attended [B, T, H, C]; wo_a [groups * o_lora_rank, H/groups * C], block-diagonal: group g takes H/groups consecutive
    heads; wo_b [D, groups * o_lora_rank]. The input of wo_a is never rounded to FP8: the release uses it as bf16. Of
    several `shards` each has its own groups, with their heads and their columns of wo_b.
    """
    grouped = torch.unflatten(attended, 2, (groups, -1)).flatten(3)  # [B, T, groups, H/groups * C]
    if isinstance(wo_a, Packed):
        wo_a = dense(wo_a, attended.dtype)
    low_rank = torch.einsum("btgi,goi->btgo", grouped, torch.unflatten(wo_a, 0, (groups, -1)))
    return linear(low_rank.flatten(2), wo_b, activation_quant, part=shards > 1)
