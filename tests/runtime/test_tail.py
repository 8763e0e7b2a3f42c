"""The tail: fewer rows, and the logits, tokens and state of computing every row; bounded, close to these."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from golden_tiny import LOGITS_BOUND, ORACLE, TINY, apart, engine, ids, plan, weights
from hypothesis import given, settings
from torch import Tensor

from dsv41c.compiler.engram_hash import hash_constants
from dsv41c.compiler.importing.hf_config import to_hf_config
from dsv41c.compiler.plan import compile_spec, write_plan
from dsv41c.runtime.device.cpu import CpuDevice
from dsv41c.runtime.engine import Engine
from dsv41c.runtime.executor import Executor
from dsv41c.runtime.plan import load_plan
from dsv41c.runtime.recording import Trace
from dsv41c.runtime.run import Prompt, RunOptions, run_plan
from dsv41c.runtime.session import Session
from dsv41c.runtime.synth import synth
from dsv41c.runtime.tail import Tail

from ..strategies import loaded, specs  # noqa: TID252 (tests are no installed package)

STATE_BOUND = 1e-5
BOUNDED = 0.05, 1.5  # 0.19 to 0.59 off at 17 to 200 tokens, of logits that spread by 2
ROOM = ("max_context: 80", "max_context: 400")
FEWER = ("sinkhorn_iters: 20", "sinkhorn_iters: 2")  # of a loop that is a sixth of a step and looks at one row
PROMPT = (ids() * 4)[:230]


def windowed(size: int) -> tuple[tuple[str, str], ...]:
    """The tiny model with room for long prompts, and another window: its weights do not depend on that."""
    return ROOM, FEWER, ("window_size: 16", f"window_size: {size}")


def readable(session: Session) -> dict[str, Tensor]:
    """What a later step of a session can read of its state, by value."""
    manifest, pools, length = session.engine.manifest, session.engine.pools, session.length
    ratios = {value: int(op.attrs["ratio"]) for op in manifest.ops if op.kind in ("compress", "index_keys")
              for value in op.writes.values()}  # fmt: skip
    found = {}
    for entry in manifest.values:
        if entry.scope != "session" or entry.producer is None:
            continue
        rows = pools.rows(entry.id, session.slot)
        if entry.kind == "window_kv":
            rows = rows[torch.arange(max(0, length - len(rows)), length) % len(rows)]
        elif entry.kind in ("compress_kv", "index_k"):
            rows = rows[: length // ratios[entry.id]]
        elif entry.kind == "group_tail":
            rows = rows[:, : length % ratios[entry.id]]
        found[entry.id] = rows.clone()
    return found


def expect_equal_state(one: Session, two: Session) -> None:
    ours, theirs = readable(one), readable(two)
    assert ours.keys() == theirs.keys() and ours
    for value, rows in ours.items():
        assert not (rows.is_floating_point() and rows.isnan().any()), value
        assert apart(rows, theirs[value]) <= STATE_BOUND, value


def greedy(session: Session, logits: Tensor, count: int) -> list[int]:
    tokens = []
    for _ in range(count):
        tokens.append(int(logits.argmax()))
        logits = session.engine.decode({session: tokens[-1]})[session]
    return tokens


def feed_both(tail: Session, full: Session, sizes: list[int], chunk: int, steps: int) -> None:
    """Feed the prompt in pieces to both; the last logits of each piece, the state after it, then what follows."""
    tokens = iter(PROMPT)
    for size in sizes:
        piece = [next(tokens) for _ in range(size)]
        ours, theirs = tail.feed(piece, chunk=chunk), full.feed(piece, chunk=chunk)
        assert apart(ours, theirs) <= LOGITS_BOUND
        expect_equal_state(tail, full)
    assert greedy(tail, ours, steps) == greedy(full, theirs, steps)
    expect_equal_state(tail, full)


@pytest.mark.parametrize(("window", "chunk"), [(1, 16), (3, 64), (3, 1), (16, 7)])
def test_the_same_as_every_row(window: int, chunk: int) -> None:
    """Poisoned slots: a row that was left out and is read all the same shows as NaN, within a turn of the ring."""
    changes = windowed(window)
    tail, full = engine(ORACLE, *changes, debug=2), engine(ORACLE, *changes, debug=2, tail="every")
    sizes = [20, 1, 4] if chunk == 1 else [70, 1, 30, 2, 67]
    with tail.open() as one, full.open() as two:
        feed_both(one, two, sizes, chunk, window + 2)


@pytest.mark.parametrize("cache", ["reference", "packed"])
def test_with_rounded_caches(cache: str) -> None:
    changes = (*windowed(16), ("kv_cache: reference", f"kv_cache: {cache}"))
    mode = "f32-act_none-kv_reference"
    tail, full = engine(mode, *changes, debug=2), engine(mode, *changes, debug=2, tail="every")
    with tail.open() as one, full.open() as two:
        ours, theirs = one.feed(PROMPT), two.feed(PROMPT)
        assert apart(ours, theirs) <= LOGITS_BOUND
        assert greedy(one, ours, 8) == greedy(two, theirs, 8)


def test_sessions_by_turns() -> None:
    """Two sessions fed in turn, and a slot that was used before: nothing of one is in the other."""
    tail = engine(ORACLE, *windowed(4), debug=2)
    full = engine(ORACLE, *windowed(4), debug=2, tail="every")
    with tail.open() as before:
        before.feed(PROMPT[:70])
    pairs = [(tail.open(), full.open()) for _ in range(2)]
    parts = [PROMPT[:90], PROMPT[30:75]], [PROMPT[10:60], PROMPT[5:77]]
    for turn in range(2):
        for (one, two), part in zip(pairs, parts, strict=True):
            assert apart(one.feed(part[turn]), two.feed(part[turn])) <= LOGITS_BOUND
    for one, two in pairs:
        expect_equal_state(one, two)
    fork = tail.fork(pairs[0][0])
    assert torch.equal(fork.feed([5, 6, 7]), pairs[0][0].feed([5, 6, 7]))


def test_steps_of_one_token_that_are_captured() -> None:
    """Captured steps compute every row; they go on from a tail, and a tail from them."""
    changes = (*windowed(3), ("decode_buckets: [1, 2, 4]", "decode_buckets: [1]"))
    tail, full = engine(ORACLE, *changes, debug=2, strict=True), engine(ORACLE, *changes, debug=2, tail="every")
    assert tail.captured is not None
    tail.captured.device = CpuDevice()  # calls through: what a graph may hold is not the question
    with tail.open() as one, full.open() as two:
        for part, chunk in ((PROMPT[:12], 5), (PROMPT[12:14], 1), (PROMPT[14:30], 7)):
            assert apart(one.feed(part, chunk=chunk), two.feed(part)) <= LOGITS_BOUND
        expect_equal_state(one, two)


@settings(max_examples=8, deadline=None)
@given(specs())
def test_random_models(tmp_path_factory: pytest.TempPathFactory, spec: dict[str, Any]) -> None:
    spec = copy.deepcopy(spec)
    spec.pop("placement", None)
    spec["attention"]["window_size"] = 3
    spec["numerics"] = {"compute": "f32", "activation_quant": "none", "kv_cache": "none"}
    spec["runtime"] = {"max_context": 128, "max_sessions": 1, "prefill_chunk": 32, "decode_buckets": [1]}
    if "engram" in spec:  # small tables, and a vocabulary that a tokenizer can have
        spec["model"]["vocab_size"] = 300
        spec["engram"] |= {"vocab_size": 50, "compressed_vocab_size": 250}
        hashes = hash_constants(SimpleNamespace(**spec["engram"]), spec["layers"]["engram_layers"])
        spec["engram"]["num_embeddings"] = [layer.rows for layer in hashes]
    found = loaded(spec)
    assert found.spec is not None, found.diagnostics
    folder = tmp_path_factory.mktemp("random")
    write_plan(compile_spec(found), folder / "plan")
    compiled = load_plan(folder / "plan")
    synth(compiled.manifest, to_hf_config(found.spec), folder / "checkpoint")
    tail = Engine(compiled, folder / "checkpoint", debug=2)
    full = Engine(compiled, folder / "checkpoint", weights=tail.weights, debug=2, tail="every")
    tokens = [token % spec["model"]["vocab_size"] for token in PROMPT]
    with tail.open() as one, full.open() as two:
        for part in (tokens[:50], tokens[50:61], tokens[61:107]):
            assert apart(one.feed(part, chunk=23), two.feed(part, chunk=23)) <= LOGITS_BOUND
            expect_equal_state(one, two)


WHOLE = {"logits_out": "logits.safetensors"}, {"states_out": "states.safetensors"}, {"compare": True}


@pytest.mark.parametrize("options", [{}, {"chunk": 16}, {"tail": "every"}, *WHOLE])
def test_runs_use_it_where_no_row_is_wanted(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int | None] = []
    original = Executor.run_stages

    def run(self: Executor, *arguments: Any, tail: Tail | None = None, **more: Any) -> Tensor | None:
        asked.append(None if tail is None else tail.after)
        return original(self, *arguments, tail=tail, **more)

    monkeypatch.setattr(Executor, "run_stages", run)
    given = {name: tmp_path / value if name.endswith("_out") else value for name, value in options.items()}
    result = run_plan(plan(), TINY, Prompt(ids=PROMPT[:40]), RunOptions(n=2, **given))
    assert len(result.ids) == 2
    expected = [24, 8, 0, 0] if "chunk" in options else [None, None] if options in WHOLE else [0, 0]
    assert asked == expected


# --- counted rows ---------------------------------------------------------------------------------------------------


def counted(rows: Counter[str], **options: Any) -> Engine:
    """An engine whose regions add the rows that they compute to `rows`."""
    compiled = plan(ORACLE, ROOM, FEWER)

    def counting(region: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(kernels: object, weights: object, step: object, first: Tensor, *reads: Tensor) -> Any:
            rows[region] += first.shape[1]
            return function(kernels, weights, step, first, *reads)

        return call

    functions = {region: counting(region, function) for region, function in compiled.functions.items()}
    shown = SimpleNamespace(manifest=compiled.manifest, functions=functions)
    return Engine(shown, TINY, weights=weights(), **options)


EVERY = ["embed", *(f"layers.{layer}" for layer in range(7))]  # up to the last KV source, layer 6


@pytest.mark.parametrize("chunk", [1, 7, 16, 64])
def test_rows_that_are_computed(chunk: int) -> None:
    rows: Counter[str] = Counter()
    with counted(rows).open() as session:
        session.feed(PROMPT[:49], chunk=chunk)
        assert rows == {**dict.fromkeys(EVERY, 49), "layers.7": 46, "layers.8": 31, "layers.9": 16, "head": 1}
        rows.clear()
        session.feed(PROMPT[:17], chunk=chunk)
        assert rows == {**dict.fromkeys(EVERY, 17), "layers.7": 17, "layers.8": 17, "layers.9": 16, "head": 1}


def test_every_row_where_it_is_wanted() -> None:
    rows: Counter[str] = Counter()
    with counted(rows).open() as session:
        for options in ({"all_logits": True}, {"trace": Trace()}):
            rows.clear()
            session.engine.feed(session, PROMPT[:90], **options)
            assert set(rows.values()) == {90}
    with counted(rows, tail="every").open() as session:
        rows.clear()
        session.feed(PROMPT[:90])
        assert rows.pop("head") == 1  # the logits of one row are wanted, whatever layers compute
        assert set(rows.values()) == {90}


def test_the_logits_are_those_of_the_last_token() -> None:
    with engine(ORACLE, ROOM, debug=2).open() as session:
        shapes = {tuple(session.feed(PROMPT[:size], chunk=chunk).shape) for size, chunk in ((1, 1), (33, 16), (64, 64))}
    assert shapes == {(512,)}


# --- bounded replay -------------------------------------------------------------------------------------------------


def test_bounded_rows_that_are_computed() -> None:
    for chunk in (1, 7, 16, 64):
        rows: Counter[str] = Counter()
        with counted(rows, tail="bounded").open() as session:
            session.feed(PROMPT[:33], chunk=chunk)
        behind = dict.fromkeys(["layers.7", "layers.8", "layers.9"], 16)
        assert rows == {**dict.fromkeys(EVERY, 33), **behind, "head": 1}


@pytest.mark.parametrize("chunk", [5, 64])
def test_bounded_is_exact_up_to_a_window(chunk: int) -> None:
    """Pieces of at most a window leave nothing out, whatever the session held before."""
    ours, theirs = engine(ORACLE, ROOM, debug=2, tail="bounded"), engine(ORACLE, ROOM, debug=2)
    with ours.open() as one, theirs.open() as two:
        for part in (PROMPT[:16], PROMPT[16:19], PROMPT[19:35]):
            assert torch.equal(one.feed(part, chunk=chunk), two.feed(part, chunk=chunk))
        expect_equal_state(one, two)


@pytest.mark.parametrize("cache", ["none", "packed"])
def test_bounded_beyond_a_window_is_close(cache: str) -> None:
    """Poisoned slots show a read of what was left out. State of layers that compute every row is exact."""
    mode = ORACLE if cache == "none" else "f32-act_none-kv_reference"
    changes = (ROOM,) if cache == "none" else (ROOM, ("kv_cache: reference", "kv_cache: packed"))
    ours, theirs = engine(mode, *changes, debug=2, tail="bounded"), engine(mode, *changes, debug=2)
    with ours.open() as one, theirs.open() as two:
        near, exact = one.feed(PROMPT[:100]), two.feed(PROMPT[:100])
        assert BOUNDED[0] < apart(near, exact) < BOUNDED[1]
        mine, its = readable(one), readable(two)
        other = {value for value in mine if apart(mine[value].float(), its[value].float()) > STATE_BOUND}
        assert other == {"window_kv@L8", "window_kv@L9"}
        assert not ours.decode({one: 5})[one].isnan().any()


@pytest.mark.parametrize("chunk", [17, 33])
def test_bounded_does_not_depend_on_chunks_or_what_was_there(chunk: int) -> None:
    """A later piece behind a gap in the rings, a used slot, and steps of a single row at the window's begin."""
    whole, parts = engine(ORACLE, ROOM, tail="bounded"), engine(ORACLE, ROOM, debug=2, tail="bounded")
    with parts.open() as before:
        before.feed(PROMPT[:90])
    with whole.open() as one, parts.open() as two:
        for piece in (PROMPT[:50], PROMPT[50:83], PROMPT[83:101], PROMPT[101:200]):
            assert apart(one.feed(piece), two.feed(piece, chunk=chunk)) <= LOGITS_BOUND
            expect_equal_state(one, two)


def test_bounded_only_where_it_is_asked_for_and_no_row_is_wanted() -> None:
    assert engine().tail == RunOptions().tail == "exact"
    rows: Counter[str] = Counter()
    with counted(rows, tail="bounded").open() as session:
        for options in ({"all_logits": True}, {"trace": Trace()}):
            rows.clear()
            session.engine.feed(session, PROMPT[:90], **options)
            assert set(rows.values()) == {90}
