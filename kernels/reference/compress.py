"""The compressor: pools groups of tokens into latents, and appends these to the compressed KV."""

from __future__ import annotations

import torch
from torch import Tensor

from dsv41c.kernels.reference.groups import append_groups, group_numbers
from dsv41c.kernels.reference.linear import linear
from dsv41c.kernels.reference.norm import norm
from dsv41c.kernels.reference.rope import apply_rope
from dsv41c.kernels.reference.rows import stored
from dsv41c.kernels.step import Step


def compress(
    step: Step,
    x: Tensor,
    compress_kv: Tensor,
    rope: Tensor,
    wkv: Tensor,
    norm_weight: Tensor,
    *,
    group_tail: Tensor | None = None,
    wgate: Tensor | None = None,
    ratio: int,
    rope_dim: int,
    eps: float,
    kv_cache: str,
) -> tuple[Tensor, ...]:
    """Latents of the groups that this call may complete, and the compressed KV with their rows appended.

    x [B, T, D]; compress_kv [slots, capacity, C], or u8 [slots, capacity, bytes], and group_tail f32 [slots, 2, r, C],
    both updated in place; wkv and wgate [C, D], used as f32 when r > 1; norm_weight f32 [C]. Returns latent [B, G, C]
    with G = (r-1+T) // r, before rope and zero where the group stays open; compress_kv; and group_tail where it was
    given. With r = 1 a group is its token: there is no gate and no tail, and nothing is pooled in f32.
    """
    if ratio == 1:
        latent = norm(linear(x, wkv), norm_weight, eps=eps)
    else:
        assert group_tail is not None and wgate is not None, "a ratio above 1 needs a tail and a gate"
        pooled, complete = _pool(step, x, group_tail, wkv, wgate)
        latent = norm(pooled.to(x.dtype), norm_weight, eps=eps).masked_fill(~complete[..., None], 0)
    rows = apply_rope(latent, group_numbers(step, latent.shape[1], ratio) * ratio, rope, rope_dim)
    append_groups(step, compress_kv, stored("compress_kv", rows, kv_cache), ratio)
    return (latent, compress_kv) if group_tail is None else (latent, compress_kv, group_tail)


def _pool(step: Step, x: Tensor, group_tail: Tensor, wkv: Tensor, wgate: Tensor) -> tuple[Tensor, Tensor]:
    """Pool groups, per channel: sum over a group's tokens of softmax(score) * kv, all f32. Updates the tail in place.

    Returns the pooled rows f32 [B, G, C] and which groups are complete, bool [B, G].
    """
    batch, tokens, _ = x.shape
    ratio = group_tail.shape[2]
    count = (ratio - 1 + tokens) // ratio
    fresh = torch.stack([linear(x, weight.to(torch.float32)) for weight in (wkv, wgate)], dim=1)  # [B, 2, T, C]
    source = torch.cat([group_tail[step.slots], fresh], dim=2)  # [B, 2, r + T, C]
    waiting = step.positions % ratio  # tokens of the open group in the tail
    ended = (waiting + tokens) // ratio  # groups this call completes

    def rows_of(index: Tensor) -> Tensor:
        """Rows counted from the open group's start: the waiting ones, then this call's. [B, 2, n, C]."""
        place = torch.where(index < waiting[:, None], index, ratio - waiting[:, None] + index)
        place = place.clamp(max=ratio + tokens - 1)[:, None, :, None]
        return source.gather(2, place.expand(batch, 2, index.shape[1], source.shape[3]))

    every = torch.arange(count * ratio, device=x.device).expand(batch, -1)
    kv, score = torch.unflatten(rows_of(every), 2, (count, ratio)).unbind(1)  # [B, G, r, C] each
    pooled = (torch.softmax(score, dim=2) * kv).sum(2)

    offset = torch.arange(ratio, device=x.device)
    still_open = offset < ((waiting + tokens) % ratio)[:, None]
    left = rows_of(ended[:, None] * ratio + offset).masked_fill(~still_open[:, None, :, None], 0)
    group_tail[step.slots] = left.to(group_tail.dtype)
    return pooled, torch.arange(count, device=x.device) < ended[:, None]
