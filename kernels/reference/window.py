"""The sliding window: its rows, and the ring that keeps the last of them. Position p lives at p % window."""

from __future__ import annotations

import torch
from torch import Tensor

from dsv41c.kernels.reference.encodings import Packed
from dsv41c.kernels.reference.fake_quant import fake_fp8
from dsv41c.kernels.reference.linear import linear
from dsv41c.kernels.reference.norm import norm
from dsv41c.kernels.reference.rope import apply_rope
from dsv41c.kernels.reference.rows import pack, unpack
from dsv41c.kernels.step import Step


def window_rows(
    step: Step,
    x: Tensor,
    rope: Tensor,
    wkv: Tensor | Packed,
    kv_norm: Tensor,
    *,
    rope_dim: int,
    eps: float,
    activation_quant: str,
    kv_cache: str,
) -> Tensor:
    """This call's window rows [B, T, C], key and value in one: rope(norm(wkv x)), fake FP8 over all channels.

    x [B, T, D]; rope f32 [rope_dim / 2]; wkv [C, D]; kv_norm f32 [C]. `kv_cache="none"` leaves the rounding out; with
    `packed` as well these are the rounded floats.
    """
    rows = norm(linear(x, wkv, activation_quant), kv_norm, eps=eps)
    rows = apply_rope(rows, step.token_positions(x.shape[1]), rope, rope_dim)
    return rows if kv_cache == "none" else fake_fp8(rows)


def rows_before(step: Step, window_kv: Tensor, window: int) -> tuple[Tensor, Tensor]:
    """The ring's rows of the window-1 positions before this call, oldest first, and which of them exist.

    window_kv [slots, W, C], or u8 [slots, W, bytes]. Returns [B, W-1, C], zero where the sequence had not begun or
    the ring lacks a row (`step.window_begin`), and bool [B, W-1].
    """
    position = step.positions[:, None] + torch.arange(1 - window, 0, device=window_kv.device)
    exists = position >= step.window_begin
    rows = unpack("window_kv", window_kv[step.slots[:, None], position % window])
    # Not a product with the mask: what an earlier session left there may be anything.
    return rows.masked_fill(~exists[..., None], 0), exists


def window_store(step: Step, window_rows: Tensor, window_kv: Tensor, *, window: int) -> Tensor:
    """Write the last min(T, W) rows [B, T, C] into the ring, in place; returns the ring.

    window_kv [slots, W, C], or u8 [slots, W, bytes], packed.
    """
    tokens = window_rows.shape[1]
    kept = min(tokens, window)
    place = step.token_positions(tokens)[:, tokens - kept :] % window
    rows = window_rows[:, tokens - kept :]
    packed = window_kv.dtype == torch.uint8
    window_kv[step.slots[:, None], place] = pack("window_kv", rows) if packed else rows.to(window_kv.dtype)
    return window_kv
