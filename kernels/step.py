"""Where a call stands: which sessions its rows belong to, and at which positions their tokens are."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Step:
    """The place of one call of T tokens for B sessions.

    `slots` int64 [B]: the pool row of each session; padding rows use the spare slot, the last row of every pool.
    `positions` int64 [B]: the position of each session's first token of this call.
    `context`: a number known on the host, at least the largest `positions + T` of the batch; it sizes what depends on
    the length so far (N = context // ratio groups), so shapes never depend on what a tensor holds.
    `window_begin`: a number on the host; rings lack rows of positions before it, and no query sees these.
    """

    slots: Tensor
    positions: Tensor
    context: int
    window_begin: int = 0

    def token_positions(self, tokens: int) -> Tensor:
        """The positions of this call's tokens, int64 [B, tokens]."""
        return self.positions[:, None] + torch.arange(tokens, device=self.positions.device)
