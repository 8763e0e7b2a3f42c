"""From a prompt to a stream of tokens: prefill, then one token at a time until EOS or as many as asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from torch import Tensor

from dsv41c.runtime import refusals
from dsv41c.runtime.sample import Sampler
from dsv41c.runtime.session import Session

Finish = Literal["length", "eos"]


@dataclass(frozen=True, slots=True)
class Token:
    """A generated token: its id, and why it is the last one if it is. EOS itself is handed out as well."""

    id: int
    finish: Finish | None


class Feed(Protocol):
    """How tokens get into a session: `feed(session, ids)` gives f32 logits of at least the last one, [n, V]."""

    def __call__(self, session: Session, ids: Sequence[int], /) -> Tensor:
        """Feed and return logits."""
        ...


def plain_feed(session: Session, ids: Sequence[int]) -> Tensor:
    """Feed in the plan's own chunks; logits of the last token only, [1, V]."""
    return session.feed(ids)[None]


def generate(
    session: Session, ids: Sequence[int], n: int, sampler: Sampler, *, eos: int | None, feed: Feed = plain_feed
) -> Iterator[Token]:
    """Feed a prompt, then choose up to `n` tokens and feed each but the last. `eos`: the token to stop at, if any.

    With n = 0 the prompt is fed and nothing chosen. The last token is not fed, so the session then holds
    len(ids) + n - 1 tokens. Raises `UserFault` before anything is fed where that does not fit (DSV851), where n is
    below 0 (DSV860), and as `Session.feed` does.
    """
    refusals.raise_if([*refusals.bad_count(n), *refusals.too_long(session, len(ids) + max(n - 1, 0))])
    return _generate(session, ids, n, sampler, eos, feed)


def _generate(
    session: Session, ids: Sequence[int], n: int, sampler: Sampler, eos: int | None, feed: Feed
) -> Iterator[Token]:
    fed = ids
    for index in range(max(n, 1)):
        logits = feed(session, fed)
        if n == 0:
            return
        chosen = sampler.next(logits[-1])
        finish: Finish | None = "eos" if chosen == eos else "length" if index + 1 == n else None
        yield Token(chosen, finish)
        if finish is not None:
            return
        fed = [chosen]
