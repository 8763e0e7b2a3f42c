"""Engram: n-gram hashes of the token ids pick table rows, and each residual stream adds its gated value of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from dsv41c.kernels.reference.encodings import Packed, dense
from dsv41c.kernels.reference.linear import linear
from dsv41c.kernels.step import Step

DEAD = -1  # a token that ends the walk back: it and all older ones count as padding


class RowTable(Protocol):
    """A table of rows, wherever it is stored."""

    def rows(self, ids: Tensor) -> Tensor:
        """The decoded rows of int64 ids [...], float [..., head_dim]."""
        ...


@dataclass(frozen=True, eq=False, slots=True)
class HeldTable:
    """A table in memory, on any device: E4M3 codes uint8 [rows, C] with scales uint8 [rows, C / 32], or floats."""

    codes: Tensor
    scale: Tensor | None

    def rows(self, ids: Tensor) -> Tensor:
        """The decoded rows of int64 ids [...], f32 [..., C], on their device."""
        flat = ids.reshape(-1).to(self.codes.device)
        codes = self.codes.index_select(0, flat)
        if self.scale is None:
            values = codes.to(torch.float32)
        else:
            values = dense(Packed(codes, self.scale.index_select(0, flat), "fp8_row32"), torch.float32)
        return values.view(*ids.shape, values.shape[-1]).to(ids.device)


def engram_ids(
    step: Step,
    ids: Tensor,
    token_history: Tensor,
    token_map: Tensor,
    multipliers: Tensor,
    primes: Tensor,
    offsets: Tensor,
    *,
    pad_id: int,
) -> tuple[Tensor, Tensor]:
    """Table rows of every n-gram that ends at each token, int64 [B, T, E, columns], and the updated history.

    ids int64 [B, T], raw; a negative one is DEAD. token_history int64 [slots, n-1]: compressed ids, newest last,
    updated in place. token_map int64 [V]; multipliers int64 [E, n]; primes and offsets int64 [E, columns], columns by
    n-gram size, then head. `pad_id` is a raw id. t_0 is the token, t_i the i-th before it; from the start of the
    sequence or a DEAD token on, this and all older ones are padding. The (i+1)-gram hash is t_0 m_0 ^ ... ^ t_i m_i in
    64 bits; its row is hash mod prime + offset.
    """
    tokens, size = ids.shape[1], multipliers.shape[1]
    compressed = torch.where(ids < 0, DEAD, token_map[ids.clamp(min=0)])
    before = step.positions[:, None] + torch.arange(1 - size, 0, device=ids.device)
    known = token_history[step.slots].masked_fill(before < 0, DEAD)
    line = torch.cat([known, compressed], dim=1)  # [B, n-1+T]
    token_history[step.slots] = line[:, tokens:]

    heads = primes.shape[1] // (size - 1)
    ended = torch.zeros_like(ids, dtype=torch.bool)
    mixed = torch.zeros_like(ids)[..., None]
    columns = []
    for back in range(size):
        token = line[:, size - 1 - back : size - 1 - back + tokens]
        ended = ended | (token == DEAD)
        token = torch.where(ended, token_map[pad_id], token)
        mixed = mixed ^ (token[..., None] * multipliers[:, back])  # [B, T, E]
        if back:
            part = slice((back - 1) * heads, back * heads)
            columns.append(mixed[..., None] % primes[:, part] + offsets[:, part])
    return torch.cat(columns, dim=-1), token_history


def engram_rows(engram_ids: Tensor, table: RowTable, *, index: int) -> Tensor:
    """The rows of one engram layer, side by side: [B, T, columns * head_dim], in the dtype the table gives.

    engram_ids int64 [B, T, E, columns]; `index` is the layer's place among the engram layers.
    """
    return table.rows(engram_ids[:, :, index]).flatten(-2)


def engram_gate(
    streams: Tensor,
    engram_rows: Tensor,
    wkv: Tensor | Packed,
    q_weight: Tensor,
    k_weight: Tensor,
    *,
    eps: float,
    activation_quant: str,
) -> tuple[Tensor, Tensor]:
    """Add to each stream its gate times the shared value; streams [B, T, S, D], and the gates f32 [B, T, S].

    engram_rows [B, T, width]; wkv [(S+1) * D, width] gives a key for each stream, then the value; q_weight and k_weight
    f32 [S, D]. Per stream, dot = sum(h q k key) / (rms(h) rms(key) sqrt(D)) and
    gate = sigmoid(copysign(sqrt(max(|dot|, 1e-6)), dot)): +0 counts as positive. f32 inside, one rounding.
    """
    dim = streams.shape[-1]
    projected = linear(engram_rows.to(streams.dtype), wkv, activation_quant).to(torch.float32)
    keys, value = torch.split(torch.unflatten(projected, -1, (-1, dim)), [streams.shape[2], 1], dim=2)
    wide = streams.to(torch.float32)
    dot = (wide * (q_weight * k_weight) * keys).sum(-1)
    dot = dot * torch.rsqrt(wide.square().mean(-1) + eps) * torch.rsqrt(keys.square().mean(-1) + eps) * dim**-0.5
    gate = torch.sigmoid(torch.copysign(dot.abs().clamp(min=1e-6).sqrt(), dot))
    return (wide + gate[..., None] * value).to(streams.dtype), gate
