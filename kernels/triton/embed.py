"""Token embedding: the streams and the first pre-mix in one launch."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def embed_rows(ids, table, streams, pre, rows, D: tl.constexpr, S: tl.constexpr, BLOCK: tl.constexpr):
    """Grid (ceil(D / BLOCK), tokens): a token's row of table [rows, D] to streams [tokens, S, D]; pre f32 [tokens, S].

    An id that is no row of the table reads as zeros.
    """
    token = tl.program_id(1)
    row = tl.load(ids + token)
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    end = tl.where(row < 0, 0, tl.where(row < rows, D, 0))
    value = tl.load(table + row * D + column, mask=column < end, other=0.0)
    for stream in tl.static_range(S):
        tl.store(streams + (token.to(tl.int64) * S + stream) * D + column, value, mask=column < D)
    if tl.program_id(0) == 0:
        place = tl.arange(0, triton.next_power_of_2(S))
        tl.store(pre + token * S + place, (place == 0).to(tl.float32), mask=place < S)


def embed(ids: Tensor, embed: Tensor, *, streams: int) -> tuple[Tensor, Tensor]:
    """Embeddings repeated over the streams [B, T, S, D] in embed's dtype, and pre f32 [B, T, S], one-hot of stream 0.

    ids int64 [B, T]; embed [V, D].
    """
    dim, block = embed.shape[1], min(1024, triton.next_power_of_2(embed.shape[1]))
    out = torch.empty(*ids.shape, streams, dim, dtype=embed.dtype, device=embed.device)
    pre = torch.empty(*ids.shape, streams, dtype=torch.float32, device=embed.device)
    embed_rows[triton.cdiv(dim, block), ids.numel()](
        ids.contiguous(), embed, out, pre, embed.shape[0], D=dim, S=streams, BLOCK=block
    )
    return out, pre
