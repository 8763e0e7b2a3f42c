"""Reading a prompt in the plan's chunks: with the exact tail, with every row, and with bounded replay."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from dsv41c.runtime.bench.flops import prefill_flops
from dsv41c.runtime.bench.measure import Clock, Spread, by_turns, ratios
from dsv41c.runtime.bench.options import Prompt
from dsv41c.runtime.engine import Engine
from dsv41c.runtime.tail import TailKind
from dsv41c.runtime.weights.row_cache import Lookups
from dsv41c.runtime.weights.table import lookups

MOST_ROUNDS = 3  # a prompt takes long, and two turns are a round
KINDS: dict[str, TailKind] = {"tail": "exact", "every": "every", "bounded": "bounded"}


@dataclass(slots=True)
class PromptResult:
    """Seconds of a prompt by kind in each round, and the operations that each kind takes.

    `row_cache`: rows of engram tables that the timed readings looked up; None where tables are in memory.
    """

    prompt: Prompt
    chunk: int
    flops: dict[str, float]
    seconds: dict[str, list[float]] = field(default_factory=dict)
    ratios: dict[str, Spread] = field(default_factory=dict)
    row_cache: Lookups | None = None


def measure_prompt(engine: Engine, prompt: Prompt, rounds: int, seed: int, clock: Clock) -> PromptResult:
    """Time a prompt of random ids, fed to an empty session up to its last logits on the host."""
    drawing = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, engine.manifest.model.vocab_size, (prompt.tokens,), generator=drawing).tolist()

    def reading(kind: str) -> Callable[[], float]:
        def read() -> None:
            engine.tail = KINDS[kind]
            with engine.open() as session:
                session.feed(ids)

        return lambda: clock.wall(read)

    kept = engine.tail
    works = {kind: reading(kind) for kind in KINDS if kind in prompt.kinds}
    try:
        short = ids[: engine.manifest.runtime.prefill_chunk]
        for kind in works:  # compiles kernels and wakes libraries
            engine.tail = KINDS[kind]
            with engine.open() as session:
                session.feed(short)
        before = lookups(engine.weights)
        times = by_turns(works, min(rounds, MOST_ROUNDS))
        after = lookups(engine.weights)
    finally:
        engine.tail = kept
    flops = {kind: prefill_flops(engine.manifest, prompt.tokens, tail=KINDS[kind]) for kind in works}
    looked_up = None if after is None else after.since(before)
    return PromptResult(prompt, engine.manifest.runtime.prefill_chunk, flops, times, ratios(times), looked_up)
