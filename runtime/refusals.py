"""What a session refuses, as coded findings: bad token ids, no room, handles that are closed, broken or foreign."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from dsv41c.diagnostics import Diagnostic, UserFault
from dsv41c.runtime.manifest import Manifest
from dsv41c.runtime.tail import TAILS
from dsv41c.words import counted, joined

if TYPE_CHECKING:
    from dsv41c.runtime.engine import Engine
    from dsv41c.runtime.session import Session


def raise_if(faults: Sequence[Diagnostic]) -> None:
    """Raise `UserFault` with all findings, if there are any."""
    if faults:
        raise UserFault(faults)


def token(value: object) -> int:
    """A token id as an int; what is no integer at all is refused (DSV850)."""
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise UserFault([Diagnostic("DSV850", f"`{value!r}` is no token id: it is not an integer")]) from None


def token_list(ids: Iterable[object]) -> list[int]:
    """Token ids as ints, from a list, a tensor or any iterable."""
    tolist = getattr(ids, "tolist", None)
    return [token(value) for value in (tolist() if tolist is not None else ids)]


def not_tokens(tokens: Sequence[object], manifest: Manifest, length: int) -> list[Diagnostic]:
    """Findings for ids outside the vocabulary and for an empty list; `length` tokens are in the session already."""
    size = manifest.model.vocab_size
    if not tokens:
        return [Diagnostic("DSV854", "there is no token to feed", help="feed at least one id; BOS alone is a prompt")]
    wrong = [(index, value) for index, value in enumerate(tokens) if not (isinstance(value, int) and 0 <= value < size)]
    if not wrong:
        return []
    index, value = wrong[0]
    more = f"; {len(wrong) - 1} more like it" if len(wrong) > 1 else ""
    return [
        Diagnostic(
            "DSV850",
            f"token id {value} at position {length + index} is not in the vocabulary of {size}{more}",
            facts=(("index in this call", str(index)), ("vocab_size", str(size))),
            help=f"give ids from 0 to {size - 1}, as the checkpoint's own tokenizer does",
        )
    ]


def too_long(session: Session, count: int) -> list[Diagnostic]:
    """A finding where a session has no room for `count` more tokens."""
    return no_room(session.engine.manifest, session.length, count)


def no_room(manifest: Manifest, length: int, count: int) -> list[Diagnostic]:
    """A finding where a session of `length` tokens has no room for `count` more."""
    limit = manifest.runtime.max_context
    if length + count <= limit:
        return []
    return [
        Diagnostic(
            "DSV851",
            f"no room for {counted(count, 'token')}: the session holds {length} of {limit}, {limit - length} more fit",
            facts=(("runtime.max_context", str(limit)),),
            help="feed fewer tokens, reset the session, or compile the plan with a larger `runtime.max_context`",
        )
    ]


def no_slot(manifest: Manifest, free: int) -> list[Diagnostic]:
    """A finding where every slot is taken."""
    if free:
        return []
    limit = manifest.runtime.max_sessions
    return [
        Diagnostic(
            "DSV852",
            "the one session is open" if limit == 1 else f"all {limit} sessions are open",
            facts=(("runtime.max_sessions", str(limit)),),
            help="close a session, or compile the plan with a larger `runtime.max_sessions`",
        )
    ]


def foreign(engine: Engine, session: Session) -> list[Diagnostic]:
    """A finding where a session was opened by another engine."""
    if session.engine is engine:
        return []
    message = f"session in slot {session.slot} belongs to another engine; slots and state are not shared"
    return [Diagnostic("DSV855", message, help="use the engine that opened it: `session.engine`")]


def not_of(engine: Engine, session: Session) -> list[Diagnostic]:
    """A finding where a session is of another engine, or closed: its slot may be somebody else's by now."""
    faults = foreign(engine, session)
    if faults or not session.closed:
        return faults
    message = f"the session is closed: slot {session.slot} has started again since (epoch {session.epoch})"
    return [Diagnostic("DSV853", message, help="open a new session")]


def broken(session: Session) -> list[Diagnostic]:
    """A finding where an earlier step of the session failed half-way."""
    if not session.broken:
        return []
    message = "an earlier step of this session failed half-way, so its state is neither old nor new"
    return [Diagnostic("DSV856", message, help="reset the session and feed its tokens again, or close it")]


def repeated(sessions: Sequence[Session]) -> list[Diagnostic]:
    """Findings for sessions that come twice in one batch."""
    seen: set[int] = set()
    faults = []
    for session in sessions:
        if id(session) in seen:
            message = f"session in slot {session.slot} comes twice in one batch; a step appends one token to each"
            faults.append(Diagnostic("DSV857", message, help="decode once for each token"))
        seen.add(id(session))
    return faults


def bad_chunk(chunk: int | None) -> list[Diagnostic]:
    """A finding for a chunk of less than one token."""
    if chunk is None or chunk >= 1:
        return []
    return [Diagnostic("DSV859", f"a chunk of {chunk} tokens feeds nothing", help="give 1 or more, or leave it out")]


def unknown_tail(tail: str) -> list[Diagnostic]:
    """A finding for rows of a prompt that are none of `exact`, `every` and `bounded`."""
    if tail in TAILS:
        return []
    help_text = f"give {joined([f'`{name}`' for name in TAILS], 'or')}"
    return [Diagnostic("DSV849", f"`{tail[:40]}` is no tail of a prompt", help=help_text)]


def bad_count(n: int) -> list[Diagnostic]:
    """A finding for a negative number of tokens to generate."""
    if n >= 0:
        return []
    return [Diagnostic("DSV860", f"{n} tokens cannot be generated", help="0 feeds the prompt and generates nothing")]
