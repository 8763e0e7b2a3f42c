"""Isolation, counted: planted faults are found, named and masked, and random lives of sessions have none."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import planted
import pytest
import torch
from golden_tiny import ids, plan
from splits import engine_of, split
from torch import Tensor

from dsv41c.diagnostics import UserFault
from dsv41c.kernels.step import Step
from dsv41c.runtime.engine import Engine
from dsv41c.runtime.ledger import Ledger
from dsv41c.runtime.plan import Plan
from dsv41c.runtime.session import Session
from dsv41c.runtime.stages.crossing import Crossing

KINDS = {"window_kv", "compress_kv", "index_k", "group_tail", "token_history"}


def ledger_of(running: Engine) -> Ledger:
    assert running.pools.ledger is not None
    return running.pools.ledger


def clean(running: Engine) -> bool:
    """Whether state was read, and all of it by who wrote it."""
    ledger = ledger_of(running)
    return {kind for kind, _ in ledger.reads} >= KINDS and not ledger.first and not running.foreign_reads


def differing(a: Tensor, b: Tensor) -> int:
    """How many elements differ; NaN is NaN."""
    return int(((a != b) & ~(a.isnan() & b.isnan())).sum())


# --- planted faults -------------------------------------------------------------------------------------------------


class Changed:
    """Kernels as a region's code sees them, of which some are replaced: `other(kernels, step, *args, **named)`."""

    def __init__(self, kernels: object, others: Mapping[str, Callable[..., Any]]) -> None:
        self._kernels = kernels
        self._others = others

    def __getattr__(self, kind: str) -> Callable[..., Any]:
        if kind in self._others:
            return lambda *args, **named: self._others[kind](self._kernels, *args, **named)
        return getattr(self._kernels, kind)  # type: ignore[no-any-return]


class Plant:
    """A plan whose regions of some stages do something else while `armed`: in their kernels, or with their step."""

    def __init__(
        self,
        compiled: Plan,
        stages: tuple[int, ...],
        kernels: Mapping[str, Callable[..., Any]] | None = None,
        step: Callable[[Step], Step] = lambda step: step,
    ) -> None:
        self.armed = False
        functions = dict(compiled.functions)
        for region in compiled.manifest.regions:
            if region.stage in stages:
                functions[region.id] = self._wrapped(compiled.functions[region.id], kernels or {}, step)
        self.plan = replace(compiled, functions=functions)

    def _wrapped(
        self, own: Callable[..., Any], others: Mapping[str, Callable[..., Any]], other: Callable[[Step], Step]
    ) -> Callable[..., Any]:
        def call(kernels: object, weights: object, step: Step, *reads: Tensor) -> Any:
            return (
                own(Changed(kernels, others), weights, other(step), *reads)
                if self.armed
                else own(kernels, weights, step, *reads)
            )

        return call


def in_slots(mapping: Mapping[int, int]) -> Callable[[Step], Step]:
    """The step with other slots."""

    def other(step: Step) -> Step:
        return replace(step, slots=torch.tensor([mapping.get(slot, slot) for slot in step.slots.tolist()]))

    return other


def test_a_stage_that_is_given_another_slot_reads_nothing_of_it() -> None:
    plant = Plant(split([6, 10]), (1,), step=in_slots({0: 1}))
    results, held = [], []
    for others in (ids()[20:41], ids()[30:51]):
        running, plant.armed = engine_of(plant.plan, debug=2), False
        a, b = running.open(), running.open()
        a.feed(ids()[:20])
        b.feed(others)
        assert clean(running)
        before = {name: pool[1].clone() for name, pool in running.pools.tensors.items()}
        plant.armed = True
        results.append(a.feed([7]))
        held.append([differing(pool[1], before[name]) for name, pool in running.pools.tensors.items()])
        assert {key for key, count in running.foreign_reads.items() if count} == {
            ("window_kv", "attend"),
            ("compress_kv", "attend"),
            ("index_k", "index_score"),
        }
        assert running.foreign_reads["window_kv", "attend"] == 4 * 15  # four layers, all that the ring has for it
        assert {kind for kind, _ in ledger_of(running).misplaced} == {"window_kv", "compress_kv", "index_k"}
        messages = [found.message for found in ledger_of(running).findings()]
        assert any("`layers.6.attn.attend` reads position 5 of `window_kv@L6.before`" in text for text in messages)
        assert all("the session in slot 0 (epoch 1)" in text and "slot 1 belongs" in text for text in messages)
        plant.armed = False
        b.feed([8])  # what the stage wrote there, position 20, is not b's
        assert running.foreign_reads["window_kv", "attend"] == 4 * 15 + 4
    assert torch.equal(*results)  # masked: whatever the other session holds
    # Beyond what the stage's ops wrote, a row of 64 or 32 channels each, nothing of the pools has changed.
    assert max(map(max, held)) == 64


def test_a_mirror_that_misses_appended_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    arrive = Crossing.arrive

    def forgetful(self: Crossing, wired: list[Tensor], values: Any, pools: Any, rows: Any) -> None:
        boundary = self.boundary
        if rows.tokens == 1 and rows.positions[0] == 21:
            self.boundary = replace(boundary, mirrors=())
            wired = wired[: len(boundary.chunk)]
        arrive(self, wired, values, pools, rows)
        self.boundary = boundary

    monkeypatch.setattr(Crossing, "arrive", forgetful)
    running = engine_of(split([7, 10]), debug=2)
    a = running.open()
    a.feed(ids()[:21])
    a.feed([3])
    (first, *_) = ledger_of(running).findings()
    assert running.foreign_reads["index_k", "index_score"] == 1
    assert "group 21" in first.message and "nothing was written there" in first.message
    assert {foreign.value for foreign in ledger_of(running).first.values()} <= {"index_k@L6.S1", "compress_kv@L6.S1"}
    running.reset(a)
    counted = running.foreign_reads
    a.feed(ids()[:21])
    a.feed([3])  # the mirror has the row of the epoch before
    assert running.foreign_reads["index_k", "index_score"] == counted["index_k", "index_score"] + 1


@pytest.mark.parametrize(("kind", "layer", "wrong"), [("index_k", 6, 4), ("compress_kv", 4, 2)])
def test_rows_mirrored_from_the_wrong_source_layer(kind: str, layer: int, wrong: int) -> None:
    compiled = split([7, 10] if layer == 6 else [5, 10])
    transfers = [
        move.model_copy(update={"value": f"{kind}@L{wrong}"}) if move.value == f"{kind}@L{layer}" else move
        for move in compiled.manifest.transfers
    ]
    manifest = compiled.manifest.model_copy(update={"transfers": transfers})
    running = engine_of(replace(compiled, manifest=manifest), debug=2)
    running.open().feed(ids()[:20])
    reader = "index_score" if kind == "index_k" else "attend"
    assert running.foreign_reads.keys() == {(kind, "mirror"), (kind, reader)}
    first = ledger_of(running).findings()[0].message
    assert f"`stages.1.mirror.{kind}.L{layer}` reads group 0 of `{kind}@L{layer}.S1`" in first
    assert f"of `{kind}@L{wrong}`" in first
    assert not running.pools.rows(f"{kind}@L{layer}.S1", 0)[:10].any()  # zeros crossed instead


def test_a_slot_that_goes_on_from_the_length_of_its_last_session() -> None:
    running = engine_of(plan(), debug=2)
    a = running.open()
    a.feed(ids()[:21])
    a.close()
    b = running.open()
    b.length = 21
    b.feed([5, 6])
    assert {kind for kind, _ in running.foreign_reads} == KINDS
    assert running.foreign_reads["group_tail", "compress"] == 2  # layers 2 and 4
    assert running.foreign_reads["token_history", "engram_ids"] == 3
    told = "reads position 20 of `group_tail@L2.before` for the session in slot 0 (epoch 3), and what is there is"
    assert any(
        f"{told} position 20, written for the session in slot 0 (epoch 1)" in f.message
        for f in ledger_of(running).findings()
    )


def test_a_group_tail_that_is_not_reset() -> None:
    """A compressor that takes a token to be waiting from before, in the first step of a session."""

    def shifted(kernels: Any, step: Step, *args: Any, **named: Any) -> Any:
        return kernels.compress(replace(step, positions=step.positions + 1), *args, **named)

    results = []
    for before in (ids()[:21], ids()[30:51]):
        plant = Plant(split([3, 10]), (0,), {"compress": shifted})
        running = engine_of(plant.plan, debug=2)
        with running.open() as a:
            a.feed(before)
        b, plant.armed = running.open(), True
        b.feed([5])
        assert running.foreign_reads == {("group_tail", "compress"): 1}
        results.append(running.pools.rows("compress_kv@L2", b.slot)[0])  # pooled with what was there
    assert torch.equal(*results)  # NaN was, which is not equal


def test_a_window_that_is_written_before_it_is_read() -> None:
    kept = []

    def store_first(
        kernels: Any, step: Step, query: Tensor, ring: Tensor, rows: Tensor, *args: Any, **named: Any
    ) -> Any:
        kept.append(kernels.window_store(step, rows, ring, window=16))
        return kernels.attend(step, query, ring, rows, *args, **named)

    def stored(kernels: Any, *args: Any, **named: Any) -> Any:
        return kept.pop()

    compiled = plan()
    regions = []
    for region in compiled.manifest.regions:
        ops = list(region.ops)
        if region.id == "layers.3":
            read, write = (ops.index(f"layers.3.attn.{kind}") for kind in ("attend", "window_store"))
            ops[read], ops[write] = ops[write], ops[read]
        regions.append(region.model_copy(update={"ops": ops}))
    compiled = replace(compiled, manifest=compiled.manifest.model_copy(update={"regions": regions}))
    plant = Plant(compiled, (0,), {"attend": store_first, "window_store": stored})
    own, plant.armed = dict(compiled.functions), True
    functions = {**own, "layers.3": plant.plan.functions["layers.3"]}
    running = engine_of(replace(compiled, functions=functions), debug=2)
    a = running.open()
    a.feed(ids()[:20])
    a.feed([1])  # one token overwrites none that it sees
    assert not running.foreign_reads
    a.feed([2, 3, 4])
    assert running.foreign_reads == {("window_kv", "attend"): 2}
    (found,) = ledger_of(running).findings()
    assert "`layers.3.attn.attend` reads position 6 of `window_kv@L3.before`" in found.message
    assert "what is there is position 22, written for the session in slot 0 (epoch 1)" in found.message


def test_padding_rows_touch_the_spare_slot_alone() -> None:
    plant = Plant(split([6, 10]), (1,), step=in_slots({4: 0}))
    running = engine_of(plant.plan, debug=2)
    sessions = [running.open() for _ in range(3)]
    for session in sessions:
        session.feed(ids()[:9])
    running.decode(dict.fromkeys(sessions, 5))
    assert clean(running)
    plant.armed = True
    running.decode(dict.fromkeys(sessions, 5))
    assert ledger_of(running).misplaced["window_kv", "window_store"] == 4
    assert running.foreign_reads["index_k", "index_score"] >= 1
    messages = [found.message for found in ledger_of(running).findings()]
    assert any(
        "`layers.6.attn.window_store` writes position 0" in text and "a padding row" in text for text in messages
    )


def test_a_captured_step_ends_before_it_reads_a_foreign_row(monkeypatch: pytest.MonkeyPatch) -> None:
    few = (("decode_buckets: [1, 2, 4]", "decode_buckets: [1]"), ("sinkhorn_iters: 20", "sinkhorn_iters: 2"))
    running = engine_of(split([6, 10], None, *few), debug=2, strict=True, kernels=planted.Faulty("", lambda *_: None))
    assert running.captured is not None
    a, b = running.open(), running.open()
    for session in (a, b):
        session.feed(ids()[:9])
        running.decode({session: 4})
    assert clean(running)
    fill = running.captured._fill

    def other_slots(bucket: int, tokens: Any, slots: list[int], positions: Any) -> None:
        fill(bucket, tokens, [1 - slot for slot in slots], positions)

    monkeypatch.setattr(running.captured, "_fill", other_slots)
    with pytest.raises(UserFault) as fault:
        running.decode({a: 4})
    assert {found.code for found in fault.value.diagnostics} == {"DSV848"} and a.broken
    monkeypatch.undo()
    counted = running.foreign_reads
    running.decode({b: 4})
    assert counted and running.foreign_reads == counted and not b.broken


# --- lives ----------------------------------------------------------------------------------------------------------

SAID = 5  # tokens after a prompt, and after what follows it


@dataclass
class Life:
    """A prompt, greedy tokens, more tokens, and greedy tokens again. `fed`: what its session holds."""

    prompt: tuple[int, ...]
    more: tuple[int, ...]
    said: list[int] = field(default_factory=list)
    fed: list[int] = field(default_factory=list)

    @property
    def next(self) -> list[int]:
        """What to feed for its next token; nothing at its end."""
        if not self.said:
            return list(self.prompt)
        if len(self.said) == 2 * SAID:
            return []
        return [self.said[-1], *(self.more if len(self.said) == SAID else ())]

    def took(self, logits: Tensor) -> None:
        self.fed += self.next
        self.said.append(int(logits.argmax()))

    def copy(self) -> Life:
        return replace(self, said=list(self.said), fed=list(self.fed))


class Lives:
    """Lives in an engine, at random: up to four sessions, and those that were preempted and wait."""

    def __init__(self, running: Engine, seed: int) -> None:
        self.running = running
        self.random = random.Random(seed)
        self.open: dict[Session, Life] = {}
        self.waiting: list[Life] = []
        self.ended: list[Life] = []
        self.scripts = [
            (tuple(self.random.choices(range(3, 512), k=self.random.choice((1, 2, 7, 17, 24)))), (5, 9, 4)[: 1 + n % 3])
            for n in range(6)
        ]

    def act(self) -> str:
        names = ["step"] * 6 + ["start", "fork", "reset", "preempt", "resume"]
        name = self.random.choice(names if self.open else ["start", "resume"])
        getattr(self, name)()
        return name

    def step(self) -> None:
        """A batch of those that have one token to feed, or a chunk of one that has more."""
        session = self.random.choice(list(self.open))
        tokens = self.open[session].next
        if len(tokens) > 1:
            self.open[session].took(session.feed(tokens, chunk=self.random.choice((3, 64))))
        elif tokens:
            batch = [each for each, life in self.open.items() if len(life.next) == 1]
            batch = list(dict.fromkeys([session, *self.random.sample(batch, self.random.randint(1, len(batch)))]))
            for each, logits in self.running.decode([(each, self.open[each].next[0]) for each in batch]).items():
                self.open[each].took(logits)
        if not self.open[session].next:
            self.ended.append(self.open.pop(session))
            session.close()

    def start(self) -> None:
        if self.running.free_sessions:
            self.open[self.running.open()] = Life(*self.random.choice(self.scripts))

    def fork(self) -> None:
        session = self.random.choice(list(self.open))
        if self.running.free_sessions:
            self.open[session.fork()] = self.open[session].copy()

    def reset(self) -> None:
        session = self.random.choice(list(self.open))
        session.reset()
        self.open[session] = Life(*self.random.choice(self.scripts))

    def preempt(self) -> None:
        session = self.random.choice(list(self.open))
        self.waiting.append(self.open.pop(session))
        session.close()

    def resume(self) -> None:
        if self.waiting and self.running.free_sessions:
            life = self.waiting.pop(self.random.randrange(len(self.waiting)))
            session = self.running.open()
            if life.fed:
                session.feed(life.fed, chunk=self.random.choice((5, 64)))
            self.open[session] = life


@pytest.fixture(scope="module")
def alone() -> Callable[[Life], list[int]]:
    """The tokens of a life that nothing disturbs, in an engine that has one session at a time and no ledger."""
    running, known = engine_of(plan()), {}

    def tokens(life: Life) -> list[int]:
        key = life.prompt, life.more
        if key not in known:
            whole = Life(*key)
            with running.open() as session:
                while whole.next:
                    whole.took(session.feed(whole.next))
            known[key] = whole.said
        return known[key]

    return tokens


@pytest.mark.parametrize("ends", [[10], [5, 10], [2, 5, 8, 10]], ids=len)
def test_random_lives_touch_nothing_foreign_and_say_what_each_says_alone(
    ends: list[int], alone: Callable[[Life], list[int]]
) -> None:
    lives = Lives(engine_of(split(ends), debug=2), seed=11)
    acts = [lives.act() for _ in range(110)]
    assert {name: acts.count(name) >= 5 for name in set(acts)} == dict.fromkeys(
        ("step", "start", "fork", "reset", "preempt", "resume"), True
    )
    told = [*lives.ended, *lives.waiting, *lives.open.values()]
    assert len(lives.ended) >= 5 and all(life.said == alone(life)[: len(life.said)] for life in told)
    assert clean(lives.running)
    assert sum(ledger_of(lives.running).reads.values()) > 10_000
