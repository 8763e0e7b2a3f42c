"""Plans on a CUDA or ROCm device: the goldens, eager and captured, and what a captured step must not mix up."""

from __future__ import annotations

import planted
import pytest
import torch
from golden_tiny import LOGITS_BOUND, MODES, ORACLE, TINY, apart, golden, ids, packed_weights, plan, prefill_rows
from torch import Tensor

from dsv41c.diagnostics import UserFault
from dsv41c.kernels.registry import kernels_for
from dsv41c.runtime.compare import Comparer
from dsv41c.runtime.device.families import missing
from dsv41c.runtime.device.tensors import on_device
from dsv41c.runtime.engine import Engine
from dsv41c.runtime.plan import Plan
from dsv41c.runtime.recording import Trace
from dsv41c.runtime.run import Prompt, RunOptions, run_plan
from dsv41c.runtime.states import collect, state_keys

FAMILY = "rocm" if torch.version.hip else "cuda"
LACKING = missing(planted.for_family(plan(), FAMILY).manifest)
pytestmark = pytest.mark.skipif(LACKING is not None, reason=f"needs a GPU: {LACKING}")

SELECTIONS = ("topk", "candidates", "experts", "engram_ids")
F32 = [mode for mode in MODES if mode.startswith("f32")]
ONE = ("decode_buckets: [1, 2, 4]", "decode_buckets: [1]")
OFF = ("capture: layer", "capture: off")


def compiled(mode: str, *changes: tuple[str, str]) -> Plan:
    return planted.for_family(plan(mode, *changes), FAMILY)


_MOVED: dict[str, dict[str, object]] = {}


def engine(mode: str = ORACLE, *changes: tuple[str, str], debug: int = 0) -> Engine:
    if mode not in _MOVED:
        _MOVED[mode] = on_device(packed_weights(mode), torch.device("cuda", 0))
    return Engine(compiled(mode, *changes), TINY, weights=_MOVED[mode], debug=debug)


@pytest.fixture(autouse=True)
def whole_products() -> None:
    """The bounds are for products of whole f32 numbers."""
    assert not torch.backends.cuda.matmul.allow_tf32


def test_weights_and_pools_are_on_the_device() -> None:
    running = engine()
    assert running.device.place.type == "cuda"
    assert all(pool.device == running.device.place for pool in running.pools.tensors.values())
    tensors = [weight for weight in running.weights.values() if isinstance(weight, Tensor)]
    assert len(tensors) > 100 and all(tensor.device == running.device.place for tensor in tensors)


@pytest.mark.parametrize("mode", F32)
def test_eager_prefill_gives_the_goldens(mode: str) -> None:
    running, trace = engine(mode, OFF), Trace()
    expected = prefill_rows(mode)
    with running.open() as session:
        trace.only = frozenset(state_keys(running.manifest))
        logits = running.feed(session, ids(), all_logits=True, trace=trace)
        states = collect(running.manifest, trace, running.pools, session.slot, session.length)
    if mode == ORACLE:  # rounding to a few codes turns the last bit of a product into a step of the code
        assert apart(logits, expected["logits"]) <= LOGITS_BOUND
        for key in states.keys() & expected.keys():
            if key.endswith(SELECTIONS):
                assert torch.equal(states[key], expected[key]), key
            else:
                assert apart(states[key], expected[key]) <= LOGITS_BOUND, key
    assert logits.isfinite().all()


@pytest.mark.parametrize("mode", list(MODES))
def test_eager_logits_are_near_those_of_the_cpu(mode: str) -> None:
    """A short prompt, device against host. Where values are rounded to few codes, only roughly: a last bit can turn."""
    running, host = engine(mode, OFF), Engine(plan(mode), TINY, weights=packed_weights(mode))
    with running.open() as session, host.open() as twin:
        got, want = session.feed(ids()[:9], all_logits=True), twin.feed(ids()[:9], all_logits=True)
    print(f"{mode}: logits {apart(got, want):.2e} from the CPU's")
    if mode == ORACLE:
        assert apart(got, want) <= LOGITS_BOUND
    else:
        near = (got.argmax(-1) == want.argmax(-1)).float().mean()
        assert near >= 0.5 and torch.nn.functional.cosine_similarity(got, want, dim=-1).min() > 0.9


@pytest.mark.parametrize("capture", ["layer", "{every: 3}", "all"])
def test_captured_decode_gives_the_goldens(capture: str) -> None:
    running = engine(ORACLE, ONE, ("capture: layer", f"capture: {capture}"), debug=2)
    with running.open() as session:
        rows = [session.feed(ids()[:15], all_logits=True)]
        rows += [running.decode({session: token})[session][None] for token in ids()[15:40]]
    assert running.captured is not None and set(running.captured.values) == {(1, 16), (1, 32), (1, 64)}
    assert apart(torch.cat(rows), golden()["p15.logits"][:40]) <= LOGITS_BOUND


def test_captured_selections_are_the_goldens() -> None:
    running = engine(ORACLE, ONE)
    rows = prefill_rows()
    with running.open() as session:
        session.feed(ids()[:39])
        running.decode({session: ids()[39]})
        assert running.captured is not None
        values = running.captured.values[1, 64]
        for layer in (2, 4, 6, 8):
            want = rows[f"L{layer}.topk"][39].long()
            assert torch.equal(values[f"topk@L{layer}"][0, 0].cpu(), want[: values[f"topk@L{layer}"].shape[-1]]), layer


def test_captured_is_eager() -> None:
    """Any bucket and order of sessions, padding rows, and a slot that was used before; on the same kernels."""
    captured, eager = engine(debug=1), engine(ORACLE, OFF)
    prompts = {name: ids()[start : start + 17 + start] for start, name in enumerate("abc")}
    pairs = {name: (captured.open(), eager.open()) for name in prompts}

    def decode(tokens: dict[str, int]) -> None:
        got = captured.decode({pairs[name][0]: token for name, token in tokens.items()})
        reference, eager.executor.kernels = eager.executor.kernels, kernels_for(FAMILY, "static")
        want = eager.decode({pairs[name][1]: token for name, token in tokens.items()})
        eager.executor.kernels = reference
        for name in tokens:
            assert apart(got[pairs[name][0]], want[pairs[name][1]]) <= LOGITS_BOUND / 10, name

    for name, sessions in pairs.items():
        for session in sessions:
            session.feed(prompts[name])
    for tokens in ({"a": 3}, {"c": 4, "a": 5}, {"b": 6, "a": 7, "c": 8}, {"c": 9, "b": 10, "a": 11}):
        decode(tokens)
    for session in pairs.pop("b"):
        session.close()
    pairs["d"] = captured.open(), eager.open()
    for session in pairs["d"]:
        session.feed(ids()[5:25])
    decode({"d": 12, "c": 13})
    decode({"a": 14, "d": 15, "c": 16})


def test_a_moved_pool_is_refused_in_debug_mode() -> None:
    running = engine(ORACLE, ONE, debug=2)
    with running.open() as session:
        session.feed([1, 2, 3, 4])
        running.decode({session: 5})
        name = running.pools.storage_of["window_kv@L3"]
        running.pools.tensors[name] = running.pools.tensors[name].clone()
        with pytest.raises(UserFault, match="not where it was") as fault:
            running.decode({session: 6})
    assert [finding.code for finding in fault.value.diagnostics] == ["DSV873"]


def test_released_graphs_are_captured_again() -> None:
    running = engine(ORACLE, ONE)
    with running.open() as session:
        session.feed(ids()[:20])
        running.decode({session: ids()[20]})
        assert running.captured is not None
        running.captured.release()
        got = running.decode({session: ids()[21]})[session]
    assert apart(got, golden()["prefill64.logits"][21]) <= LOGITS_BOUND


def test_a_run_writes_what_the_cpu_writes() -> None:
    options = RunOptions(n=12, compare=False)
    tokens = ids()[:20]
    here = run_plan(compiled(ORACLE), TINY, Prompt(ids=tokens), options)
    assert here.ids == run_plan(plan(), TINY, Prompt(ids=tokens), options).ids


def test_regions_keep_their_bounds_beside_the_reference() -> None:
    running = engine(ORACLE, OFF)
    comparer = Comparer(running)
    with running.open() as session:
        comparer.feed(session, ids()[:30])
        comparer.feed(session, ids()[30:31])
    result = comparer.result()
    assert result.first is None and result.values > 200
