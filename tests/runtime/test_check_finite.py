"""`--check-finite` names the op that makes the first value that is not finite, and is silent where all is well."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import planted
import pytest
import torch
from golden_tiny import LOGITS_BOUND, MODES, ORACLE, TINY, apart, golden, ids, plan, weights, weights_for
from spoiled import Fused, Spoiled, facts, put, told

from dsv41c.compiler.cli import main
from dsv41c.runtime.engine import Engine
from dsv41c.runtime.faults.weights import unfit_weights
from dsv41c.runtime.plan import Plan, load_plan
from dsv41c.runtime.recording import Trace
from dsv41c.runtime.stages.crossing import Crossing, Rows
from dsv41c.runtime.state import Pools

NAN, INF = float("nan"), float("inf")
PACKED = ("kv_cache: reference", "kv_cache: packed")
ONE = 'placement: {devices: ["cpu:0"], layer_ends: [10]}'
CUT = (ONE, "placement: {devices: [cpu:0, cpu:1, cpu:0], layer_ends: [3, 7, 10]}")


def checked(kernels: object = None, mode: str = ORACLE, *changes: tuple[str, str], **options: Any) -> Engine:
    bound = options.pop("weights", None) or weights(mode)
    return Engine(plan(mode, *changes), TINY, weights=bound, kernels=kernels, check_finite=True, **options)


# --- no false alarms -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_goldens_of_every_mode_pass(mode: str) -> None:
    running = checked(None, mode)
    session = running.open()
    logits = [session.feed(ids()[:63], all_logits=True, chunk=40)]
    logits += [running.decode({session: token})[session][None] for token in ids()[63:]]
    if mode == ORACLE:
        assert apart(torch.cat(logits), golden()["prefill64.logits"]) <= LOGITS_BOUND


@pytest.mark.parametrize(("changes", "tail"), [((PACKED,), "bounded"), ((CUT,), "every"), ((PACKED, CUT), "exact")])
def test_packed_caches_stages_and_tails_pass(changes: tuple[tuple[str, str], ...], tail: Any) -> None:
    """Slots hold NaN where nobody wrote (debug 2), a batch has padding, a slot comes again, states are recorded."""
    mode = "bf16-act_fp8-kv_reference"
    running, plain = (
        Engine(plan(mode, *changes), TINY, weights=weights(mode), tail=tail, **options)
        for options in ({"check_finite": True, "debug": 2}, {})
    )
    found = []
    for each in (running, plain):
        a, b = each.open(), each.open()
        got = [a.feed(ids()[:25], chunk=12), b.feed(ids()[40:42])]
        a.reset()
        c = b.fork()
        got += [a.feed(ids()[7:9]), *each.decode({a: 5, b: 6, c: 7}).values()]
        got.append(each.feed(c, ids()[:5], trace=Trace()))
        found.append(got)
    assert all(torch.equal(got, expected) for got, expected in zip(*found, strict=True))


def test_fused_calls_pass() -> None:
    running = Engine(plan(*planted.FUSED), TINY, weights=weights(planted.FUSED[0]), strict=True, check_finite=True)
    assert running.captured is None
    session = running.open()
    session.feed(ids()[:25], chunk=8)
    running.decode({session: 3})


class TwoShards:
    """Stands for the other of two processes: its parts are zeros, or what is given."""

    size, rank = 2, 0

    def __init__(self, added: float = 0.0) -> None:
        self.added = added
        self.sums = 0

    def all_reduce(self, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """The sum of both parts."""
        self.sums += 1
        return (x + self.added).to(dtype)

    def all_gather(self, x: torch.Tensor, axis: int) -> torch.Tensor:
        """Both parts."""
        return torch.cat([x, x], dim=axis)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> tuple[Plan, Path]:
    """The toy model for two processes, and random weights."""
    folder = tmp_path_factory.mktemp("shards")
    assert main(["compile", "toy", "-o", str(folder / "plan"), "--set", "placement.tensor_parallel=2"]) == 0
    assert main(["synth", "toy", "-o", str(folder / "checkpoint")]) == 0
    return load_plan(folder / "plan"), folder / "checkpoint"


@pytest.mark.parametrize("added", [0.0, INF])
def test_a_shard_goes_on_to_where_all_have_met(added: float, shards: tuple[Plan, Path]) -> None:
    compiled, checkpoint = shards
    other = TwoShards(added)
    running = Engine(compiled, checkpoint, check_finite=True, collectives=other)
    if not added:
        running.feed(running.open(), ids()[:9])
        return
    finding = told(lambda: running.feed(running.open(), ids()[:9]))
    assert "`layers.0.attn.all_reduce` made" in finding.message
    assert other.sums == sum(op.kind == "all_reduce" for op in compiled.manifest.ops)
    assert facts(finding)["inputs"] == "this process's part is finite, another's is not"


# --- what is found ---------------------------------------------------------------------------------------------------


def _first(value: float) -> Callable[[Any], Any]:
    """Puts a number into the last row of a step value, or of a pool into the first row of the session's slot."""

    def change(result: Any) -> Any:
        parts = list(result) if isinstance(result, tuple) else [result]
        place = next(index for index, part in enumerate(parts) if part.is_floating_point() and part.numel())
        if parts[place].shape[0] == 5:  # session state is updated where it is
            parts[place][0, 0] = value
        else:
            parts[place] = parts[place].clone()
            parts[place][(-1,) * parts[place].dim()] = value
        return tuple(parts) if isinstance(result, tuple) else parts[0]

    return change


FLOATS = sorted(
    {op.kind for op in plan().manifest.ops} - {"engram_ids", "select_topk", "select_candidates"}
)  # the rest gives numbers of things


@pytest.mark.parametrize(("kind", "value"), [*((kind, NAN) for kind in FLOATS), ("attend", INF), ("compress", INF)])
def test_the_first_op_of_a_kind_is_named(kind: str, value: float) -> None:
    running = checked(Spoiled(kind, _first(value)))
    finding = told(lambda: running.feed(running.open(), ids()[:4]))
    op = next(op for op in running.manifest.ops if op.kind == kind)
    got = facts(finding)
    assert finding.code == "DSV845" and finding.message.startswith(f"`{op.id}` made `")
    assert got["op"] == op.id and got["kind"] == kind and got["inputs"] == "all finite"
    assert got["layer"] == ("none" if op.layer is None else str(op.layer)) and str(finding.span) == op.span
    assert got["value"] in op.writes.values() and got["session"] == "slot 0 (epoch 1)"
    assert ("NaN" if value != value else "infinite") in got["not finite"]
    entry = next(each for each in running.manifest.values if each.id == got["value"])
    expected = {"window_kv": "0", "compress_kv": "0", "index_k": "0"}.get(
        entry.kind, "2" if "latent" in entry.id else "3"
    )
    assert got["position"] == expected


def test_hidden_scores_are_fine_and_others_are_not() -> None:
    running = checked(Spoiled("index_score", put(-INF, 0, 3, 0)))
    running.feed(running.open(), ids()[:9])
    running = checked(Spoiled("index_score", put(INF, 0, 3, 0)))
    finding = told(lambda: running.feed(running.open(), ids()[:9]))
    assert facts(finding)["index"] == "[0, 3, 0]" and "index_score" in finding.message


def test_one_step_of_decoding_of_one_of_two_sessions() -> None:
    """The fifth step: the first layer's norm has come twice in each call before."""
    kernels = Spoiled("shared_expert", put(INF, 1, 0, 7), since=10 * 6)
    running = checked(kernels)
    a, b = running.open(), running.open()
    a.feed(ids()[:3])
    b.feed(ids()[:8])
    for token in range(5, 9):
        running.decode({a: token, b: token})
    finding = told(lambda: running.decode({a: 9, b: 9}))
    got = facts(finding)
    assert (got["session"], got["position"], got["index"]) == ("slot 1 (epoch 1)", "12", "[1, 0, 7]")
    assert got["sessions with such"] == "slot 1 (epoch 1)" and got["step"] == "decode, eager"
    assert got["not finite"] == "1 infinite of 256 elements"


@pytest.mark.parametrize("tail", ["exact", "every", "bounded"])
def test_positions_of_chunks(tail: Any) -> None:
    """The last token of a chunk is bad, whichever rows of it are computed."""
    running = checked(Spoiled("window_rows", put(NAN, 0, -1, 3), since=17), tail=tail)
    session = running.open()
    finding = told(lambda: running.feed(session, ids()[:24], chunk=8))
    assert facts(finding)["position"] == facts(finding)["sessions"].rpartition("-")[2] in ("15", "23")


def test_groups_say_their_first_position() -> None:
    """Layer 2 has groups of two tokens: of seven tokens the last group stays open, and may hold anything."""

    def group(number: int) -> Callable[[Any], Any]:
        return lambda result: put(NAN, 0, number, 0)(result) if result[0].shape[1] == 4 else result

    running = checked(Spoiled("compress", group(3)))
    running.feed(running.open(), ids()[:7])
    running = checked(Spoiled("compress", group(1)))
    finding = told(lambda: running.feed(running.open(), ids()[:7]))
    assert facts(finding)["value"] == "latent@L2" and facts(finding)["position"] == "2"


def test_state_that_an_earlier_step_left_is_named() -> None:
    running = checked()
    session = running.open()
    session.feed(ids()[:20])
    pool = running.pools.tensors[running.pools.storage_of["window_kv@L4"]]
    pool[session.slot, 20 % 16] = NAN  # position 4, which the next token sees no more
    running.decode({session: 3})
    pool[session.slot, 19 % 16] = NAN
    finding = told(lambda: running.decode({session: 3}))
    assert "`layers.4.attn.attend` made `attended@L4`" in finding.message
    assert facts(finding)["inputs"] == "not finite: `window_kv@L4.before`"


@pytest.mark.parametrize("value", ["streams@L2.ffn.S1", "compress_kv@L2.S1"])
def test_what_breaks_on_the_way_to_another_stage(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    arrive = Crossing.arrive

    def broken(self: Crossing, wired: Any, values: dict[str, Any], pools: Pools, rows: Rows) -> None:
        arrive(self, wired, values, pools, rows)
        if value.startswith("streams") and value in values:
            values[value][0, 2, 1, 5] = NAN
        elif value in pools.storage_of and self.boundary.to == 1:
            pools.tensors[pools.storage_of[value]][rows.slots[0], 1, 5] = NAN

    monkeypatch.setattr(Crossing, "arrive", broken)
    running = checked(None, ORACLE, CUT)
    finding = told(lambda: running.feed(running.open(), ids()[:7]))
    got = facts(finding)
    assert (got["value"], got["position"], got["session"]) == (value, "2", "slot 0 (epoch 1)")
    assert got["kind"] in ("transfer", "mirror") and got["stage"] == "1 on cpu:1" and "was sent" in got["inputs"]


def test_too_large_numbers_are_the_ops_own() -> None:
    """Weights are finite, their product is not."""
    large = dict(weights())
    large["layers.3.wo_b"] = large["layers.3.wo_b"] * 1e38
    finding = told(lambda: checked(weights=large).open().feed(ids()[:4]))
    assert facts(finding)["layer"] == "3" and finding.code == "DSV845" and facts(finding)["inputs"] == "all finite"


ROLES = sorted({entry.role for entry in plan().manifest.weights if entry.role != "engram_table"})


@pytest.mark.parametrize("role", ROLES)
def test_weights_of_every_role_are_named(role: str) -> None:
    """The last layer that has one; -inf has a meaning in two of them."""
    entry = [entry for entry in plan().manifest.weights if entry.role == role][-1]
    for value in (NAN, INF, -INF):
        bound = dict(weights())
        several = isinstance(bound[entry.id], list)
        spoiled = (bound[entry.id][2] if several else bound[entry.id]).clone()  # type: ignore[index, attr-defined]
        spoiled.view(-1)[1] = value
        whole = [*bound[entry.id]] if several else spoiled  # type: ignore[misc]
        if several:
            whole[2] = spoiled
        found = unfit_weights(plan().manifest, {**bound, entry.id: whole})
        if value == -INF and role in ("attn_sink", "gate_bias"):
            assert not found
            continue
        (finding,) = found
        assert f"`{entry.name.replace('{expert}', '2')}`" in finding.message and finding.code == "DSV846"
        assert facts(finding)["read by"]


# --- fused calls -----------------------------------------------------------------------------------------------------


def fused(kernels: object) -> Engine:
    compiled = plan(*planted.FUSED)
    bound = weights(planted.FUSED[0])
    return Engine(compiled, TINY, kernels=kernels, weights=bound, strict=True, check_finite=True)


@pytest.mark.parametrize("kind", ["attend", "window_store", "route", "experts", "norm", "head"])
def test_the_op_inside_a_fused_call_is_named(kind: str) -> None:
    """After a wrap of the ring, which the call has overwritten by the time that it is looked at."""
    kernels = Fused(kind, _first(NAN))
    kernels.since = 10**9
    running = fused(kernels)
    session = running.open()
    session.feed(ids()[:30], chunk=30)
    kernels.since = 0
    finding = told(lambda: running.feed(session, ids()[30:34]))
    assert facts(finding)["kind"] == kind and facts(finding)["inputs"] == "all finite"
    assert "run again op by op" in finding.notes[0] and f"`{facts(finding)['op']}` is the first" in finding.notes[0]


def test_state_that_a_fused_call_overwrites_is_looked_at_as_it_was() -> None:
    """Tokens 20 to 23 take the rows of 4 to 7, of which token 20 still sees 5 to 7."""
    running = fused(None)
    session = running.open()
    session.feed(ids()[:20])
    running.pools.tensors[running.pools.storage_of["window_kv@L4"]][session.slot, 6] = NAN
    got = facts(told(lambda: session.feed(ids()[20:24])))
    assert got["op"] == "layers.4.attn.attend" and got["inputs"] == "not finite: `window_kv@L4.before`"
    assert (got["position"], got["index"][:4]) == ("20", "[0, ")


def test_a_fused_kernel_that_is_wrong_itself_is_told_so() -> None:
    running = fused(Fused("ffn", lambda result: (result[0], result[1] / 0)))
    finding = told(lambda: running.feed(running.open(), ids()[:4]))
    assert finding.message.startswith("the fused call `ffn` made `streams@L0.ffn` not finite")
    assert "none of them makes such a value: the fused kernel does" in finding.notes[0]


# --- the command -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "more", [(), ("--chunk", "3"), ("--tail", "bounded"), ("--compare", "reference"), ("--states-out", "s.safetensors")]
)
def test_the_command(
    more: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    command = ["run", str(plan().folder), "--checkpoint", str(TINY), "--ids", "3,4,5,6,7", "-n", "3", "--json", *more]
    assert main([*command]) == 0
    expected = json.loads(capsys.readouterr().out)["ids"]
    assert main([*command, "--check-finite"]) == 0
    assert json.loads(capsys.readouterr().out)["ids"] == expected
    monkeypatch.setattr("dsv41c.runtime.steps.kernels_for", lambda *_: Spoiled("head", put(NAN, 0, -1, 5), since=2))
    assert main([*command, "--check-finite"]) == 1
    (finding,) = json.loads(capsys.readouterr().out)["diagnostics"]
    fields = {fact["name"]: fact["value"] for fact in finding["facts"]}
    assert finding["code"] == "DSV845" and finding["span"]["file"] == "tiny.yaml" and fields["value"] == "logits"
    assert {"op", "layer", "session", "position", "index", "not finite", "inputs", "step", "stage"} <= fields.keys()
    assert fields["op"] == fields["kind"] == "head"


def test_strict_mode_says_that_its_rules_are_not_held(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DSV41C_STRICT", "1")
    command = ["run", str(plan().folder), "--checkpoint", str(TINY), "--ids", "3", "-n", "2", "--check-finite"]
    assert main(command) == 0
    assert "nothing is captured" in capsys.readouterr().err


def test_nothing_is_captured() -> None:
    compiled = planted.for_family(plan(ORACLE, *planted.CHANGES, *planted.FOUR), "cuda")
    running = Engine(compiled, TINY, weights=weights_for(compiled), strict=True, check_finite=True)
    assert running.captured is None
    running.decode({running.open(): 3})
