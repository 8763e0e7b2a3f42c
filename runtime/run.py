"""One run of a plan, whole: prompt in, tokens, text, logits, states and a comparison out."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from dsv41c.diagnostics import Diagnostic, UserFault
from dsv41c.runtime import refusals
from dsv41c.runtime.compare import Comparer, Comparison
from dsv41c.runtime.device.families import not_runnable
from dsv41c.runtime.engine import Engine
from dsv41c.runtime.executor import LoadedPlan
from dsv41c.runtime.files import check_writable, save_tensors
from dsv41c.runtime.generate import Finish, generate
from dsv41c.runtime.recording import Trace
from dsv41c.runtime.reference import unknown_value
from dsv41c.runtime.sample import Sampler
from dsv41c.runtime.session import Session
from dsv41c.runtime.stages.world import World
from dsv41c.runtime.states import collect, state_keys
from dsv41c.runtime.tail import TailKind
from dsv41c.runtime.text import TOKENIZER, Text, TextStream
from dsv41c.runtime.weights.gguf.files import is_gguf
from dsv41c.runtime.weights.index import list_files
from dsv41c.runtime.weights.row_cache import Lookups
from dsv41c.runtime.weights.table import lookups


@dataclass(frozen=True, slots=True)
class Prompt:
    """What to feed: exactly one of token ids, plain text (BOS is put in front), and one user turn of a chat."""

    ids: Sequence[int] | None = None
    text: str | None = None
    chat: str | None = None


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How to run. `n` tokens at most; temperature 0 is greedy; `chunk` cuts the prompt (None: the plan's own).

    `logits_out` and `states_out` are safetensors files to write. `compare` runs the reference beside, up to `until`.
    `debug`, `check_finite`, `strict` and `tail` as for `Engine`; for those files and for comparing every row is
    computed anyway.
    """

    n: int = 0
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    chunk: int | None = None
    logits_out: Path | None = None
    states_out: Path | None = None
    compare: bool = False
    until: str | None = None
    debug: int = 0
    check_finite: bool = False
    strict: bool = False
    tail: TailKind = "exact"


@dataclass(slots=True)
class RunResult:
    """What came of it. `text` is None where the checkpoint has no tokenizer; seconds by part in `timings`.

    `foreign`: with debug 2, findings of state that was touched and was another session's. `row_cache`: rows of engram
    tables that were looked up; None where tables are in memory.
    """

    prompt_ids: list[int]
    ids: list[int] = field(default_factory=list)
    text: str | None = None
    finish: Finish | None = None
    seed: int | None = None
    timings: dict[str, float] = field(default_factory=dict)
    comparison: Comparison | None = None
    foreign: tuple[Diagnostic, ...] = ()
    row_cache: Lookups | None = None


def run_plan(
    plan: LoadedPlan,
    checkpoint: Path | str,
    prompt: Prompt,
    options: RunOptions | None = None,
    *,
    on_text: Callable[[str], None] | None = None,
    on_part: Callable[[str], None] | None = None,
    world: World | None = None,
) -> RunResult:
    """Run a plan on one session. `on_text` gets text as it grows, `on_part` the name of each part as it begins.

    In a `world`, every process makes the call, and the first one's prompt and options are for all; it writes the files.

    Raises `UserFault` for everything that a user can get wrong, before weights are loaded where that is possible; a
    failed comparison is no fault but a result.
    """
    options = options or RunOptions()
    if world is not None:
        prompt, options = world.agreed((prompt, options))
    writes = world is None or world.rank == 0
    check_writable([path for path in (options.logits_out, options.states_out) if path is not None and writes])
    sampler = Sampler(options.temperature, options.top_p, options.seed)
    if world is not None:
        sampler = Sampler(options.temperature, options.top_p, world.agreed(sampler.seed))
    here = None if world is None else world.local
    unfit = not_runnable(plan.manifest, strict=options.strict, only=here)
    refusals.raise_if([*unfit, *refusals.bad_chunk(options.chunk)])
    text = _text(checkpoint, plan, prompt)
    result = RunResult(_prompt_ids(prompt, text))
    refusals.raise_if(_prompt_faults(result.prompt_ids, plan, options))
    clock = _Clock(result.timings, on_part)
    with clock.part("load"):
        engine = Engine(
            plan,
            checkpoint,
            debug=options.debug,
            check_finite=options.check_finite,
            strict=options.strict,
            tail=options.tail,
            world=world,
        )
    run = _Run(engine, options, clock)
    stream = TextStream(text) if text is not None else None
    result.text = "" if stream is not None else None
    if options.temperature > 0:
        result.seed = sampler.seed
    eos = plan.manifest.tokens.eos
    for token in generate(run.session, result.prompt_ids, options.n, sampler, eos=eos, feed=run.feed):
        result.ids.append(token.id)
        result.finish = token.finish
        if stream is not None:
            new = stream.push(token.id) + (stream.finish() if token.finish else "")
            result.text = (result.text or "") + new
            if on_text is not None and new:
                on_text(new)
    with clock.part("write"):
        if writes:
            run.write()
    result.comparison = run.comparer.result() if run.comparer is not None else None
    result.row_cache = lookups(engine.weights)
    result.foreign = tuple(engine.pools.ledger.findings()) if engine.pools.ledger is not None else ()
    return result


def read_ids(text: str, where: str = "<ids>") -> list[int]:
    """Token ids from text: integers between commas, blanks or brackets. Raises `UserFault` (DSV850) otherwise.

    So does a comma with no integer before it: an id may be missing there. One at the end is fine.
    """
    if re.search(r"(^|[,\[])\s*,", text):
        message = f"{where} has a comma with no token id before it"
        raise UserFault([Diagnostic("DSV850", message, help="write ids as 1,2,3")])
    words = [word for word in re.split(r"[\s,\[\]]+", text) if word]
    wrong = [word for word in words if not re.fullmatch(r"[+-]?[0-9]{1,18}", word)]
    if wrong:
        message = f"`{wrong[0][:40]}` in {where} is no token id: it is not an integer"
        raise UserFault([Diagnostic("DSV850", message, help="write ids as 1,2,3")])
    return [int(word) for word in words]


class _Run:
    """The session of a run, and what is kept on the way."""

    def __init__(self, engine: Engine, options: RunOptions, clock: _Clock) -> None:
        self.engine = engine
        self.options = options
        self.clock = clock
        self.session = engine.open()
        compare = options.compare or options.until is not None
        self.comparer = Comparer(engine, until=options.until) if compare else None
        self.trace = Trace(frozenset(state_keys(engine.manifest))) if options.states_out is not None else None
        self.logits: list[Tensor] = []

    def feed(self, session: Session, ids: Sequence[int], /) -> Tensor:
        """Feed with all that was asked for on the way; logits of every token where wanted, else of the last."""
        every = self.options.logits_out is not None
        with self.clock.part("decode" if session.length else "prefill"):
            if self.comparer is not None:
                logits = self._compared(self.comparer, session, ids)
            else:
                logits = self.engine.feed(session, ids, all_logits=every, chunk=self.options.chunk, trace=self.trace)
        logits = logits if logits.dim() == 2 else logits[None]
        if every:
            self.logits.append(logits)
        return logits

    def _compared(self, comparer: Comparer, session: Session, ids: Sequence[int]) -> Tensor:
        limit = self.engine.manifest.runtime.prefill_chunk
        size = min(self.options.chunk or limit, limit)
        refusals.raise_if(refusals.too_long(session, len(ids)))
        parts = [ids[start : start + size] for start in range(0, len(ids), size)]
        return torch.cat([comparer.feed(session, part, self.trace) for part in parts])

    def write(self) -> None:
        """Write the files that were asked for."""
        if self.options.logits_out is not None:
            save_tensors({"logits": torch.cat(self.logits)}, self.options.logits_out)
        if self.options.states_out is not None and self.trace is not None:
            states = collect(
                self.engine.manifest, self.trace, self.engine.pools, self.session.slot, self.session.length
            )
            save_tensors(states, self.options.states_out)


class _Clock:
    """Adds up the seconds of each part."""

    def __init__(self, seconds: dict[str, float], on_part: Callable[[str], None] | None) -> None:
        self.seconds = seconds
        self.on_part = on_part

    def part(self, name: str) -> _Part:
        """A context that times a part."""
        if self.on_part is not None and name not in self.seconds:
            self.on_part(name)
        return _Part(self.seconds, name)


class _Part:
    def __init__(self, seconds: dict[str, float], name: str) -> None:
        self.seconds = seconds
        self.name = name
        self.began = 0.0

    def __enter__(self) -> None:
        self.began = time.perf_counter()

    def __exit__(self, *exception: object) -> None:
        self.seconds[self.name] = self.seconds.get(self.name, 0.0) + time.perf_counter() - self.began


def _prompt_faults(ids: list[int], plan: LoadedPlan, options: RunOptions) -> list[Diagnostic]:
    """What would only come up after loading the weights otherwise."""
    faults = [*refusals.bad_count(options.n), *refusals.not_tokens(ids, plan.manifest, 0)]
    faults += refusals.no_room(plan.manifest, 0, len(ids) + max(options.n - 1, 0))
    known = {value for op in plan.manifest.ops for value in op.writes.values()}
    if options.until is not None and options.until not in known:
        faults.append(unknown_value(plan.manifest, options.until))
    return faults


def _text(checkpoint: Path | str, plan: LoadedPlan, prompt: Prompt) -> Text | None:
    """The text side, which plain ids can do without."""
    folder = Path(checkpoint)
    if is_gguf(folder):
        try:
            return Text.load(folder, plan.manifest)
        except UserFault:
            if prompt.ids is not None:
                return None
            raise
    folder = folder if folder.is_dir() else folder.parent
    if prompt.ids is not None and not (folder / TOKENIZER).exists():
        return None
    refusals.raise_if([finding for finding in list_files(Path(checkpoint)).findings if finding.code == "DSV700"])
    return Text.load(checkpoint, plan.manifest)


def _prompt_ids(prompt: Prompt, text: Text | None) -> list[int]:
    if prompt.ids is not None:
        return refusals.token_list(prompt.ids)
    assert text is not None, "a prompt of text loads the tokenizer"
    if prompt.chat is not None:
        return text.encode_chat(prompt.chat)
    return text.encode_prompt(prompt.text or "")
