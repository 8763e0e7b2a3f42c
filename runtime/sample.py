"""Choosing the next token: greedy, or by temperature and top-p from a seeded generator."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from dsv41c.diagnostics import Diagnostic, UserFault

MAX_SEED = 2**63 - 1
_DRAWN = 2**32 - 1  # a drawn seed is short enough to be typed


class Sampler:
    """Picks tokens from logits. Temperature 0 is greedy: the highest logit, the lowest id where several are equal.

    Otherwise softmax(logits / temperature), cut to the smallest set of likeliest tokens whose probability reaches
    `top_p`, and one uniform number of the sampler's own generator. The same seed gives the same tokens; without one the
    sampler draws a seed and keeps it in `seed`. Raises `UserFault` (DSV860) for parameters out of range, all at once.
    """

    def __init__(self, temperature: float = 0.0, top_p: float = 1.0, seed: int | None = None) -> None:
        faults = [*_bad_temperature(temperature), *_bad_top_p(top_p), *_bad_seed(seed)]
        if faults:
            raise UserFault(faults)
        self.temperature = temperature
        self.top_p = top_p
        self.generator = torch.Generator()
        self.seed = self.generator.seed() & _DRAWN if seed is None else seed
        self.generator.manual_seed(self.seed)

    def next(self, logits: Tensor) -> int:
        """The next token for f32 logits [V]. Raises `UserFault` (DSV868) where they hold NaN or nothing finite."""
        largest = logits.max()
        if not largest.isfinite():  # the maximum of anything with NaN in it is NaN
            raise UserFault([_not_finite(logits)])
        if self.temperature == 0:
            return int((logits == largest).nonzero()[0])
        return self._draw((logits.double() - largest.double()) / self.temperature)

    def _draw(self, scaled: Tensor) -> int:
        """A token by softmax over scaled f64 logits, of which the largest is 0: no temperature makes them overflow."""
        probability, order = torch.softmax(scaled, dim=-1).sort(descending=True, stable=True)
        total = probability.cumsum(-1)
        kept = int((total - probability < self.top_p).sum())  # a token stays while those before it do not reach top_p
        place = torch.rand((), generator=self.generator, dtype=torch.float64) * total[kept - 1]
        return int(order[min(int(torch.searchsorted(total[:kept], place, right=True)), kept - 1)])


def _bad_temperature(temperature: float) -> list[Diagnostic]:
    if math.isfinite(temperature) and temperature >= 0:
        return []
    help_text = "give 0 for the likeliest token, or 1 for the model's own distribution"
    return [Diagnostic("DSV860", f"temperature {temperature} is not a finite number from 0 up", help=help_text)]


def _bad_top_p(top_p: float) -> list[Diagnostic]:
    if 0 < top_p <= 1:
        return []
    help_text = "give 1 to keep every token, or less to keep the likeliest"
    return [Diagnostic("DSV860", f"top-p {top_p} is not above 0 and at most 1", help=help_text)]


def _bad_seed(seed: int | None) -> list[Diagnostic]:
    if seed is None or 0 <= seed <= MAX_SEED:
        return []
    return [Diagnostic("DSV860", f"seed {seed} is not between 0 and {MAX_SEED}", help="leave it out to get a new one")]


def _not_finite(logits: Tensor) -> Diagnostic:
    count = int((~logits.isfinite()).sum())
    return Diagnostic(
        "DSV868",
        f"{count} of {logits.numel()} logits are not finite, so no token can be chosen",
        help="`--check-finite` finds the op that makes the first of them",
    )
