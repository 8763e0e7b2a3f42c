"""The reference executor, and the comparison of a plan with it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from faults import Changed
from golden_tiny import MODES, TINY, engine, ids, plan, prefill_rows, weights

from dsv41c.diagnostics import UserFault
from dsv41c.kernels.registry import kernels_for
from dsv41c.kernels.step import Step
from dsv41c.runtime.compare import Comparer, distance
from dsv41c.runtime.engine import Engine
from dsv41c.runtime.reference import ReferenceExecutor

STEP = Step(torch.tensor([1]), torch.tensor([0]), 9)


def reference() -> ReferenceExecutor:
    return ReferenceExecutor(plan().manifest, weights())


def prompt(count: int = 9) -> dict[str, torch.Tensor]:
    return {"ids": torch.tensor([ids()[:count]])}


def test_it_computes_what_the_plan_computes() -> None:
    with engine().open() as session:
        expected = session.feed(ids()[:9], all_logits=True)
    assert torch.equal(reference().run(STEP, prompt())["logits"][0], expected)


def test_ranges_by_layer_op_and_value() -> None:
    executor = reference()
    values = executor.run(STEP, prompt(), until=3)
    assert "streams@L3.ffn" in values and "pre@L4.attn" not in values
    values = executor.run(STEP, prompt(), until="topk@L2")
    assert "topk@L2" in values and "attended@L2" not in values
    values = executor.run(STEP, prompt(), until="layers.2.attn.attend")
    assert "attended@L2" in values and "sublayer_out@L2.attn" not in values
    rows = prefill_rows()
    feeds = {"streams@L8.ffn": rows["L8.streams"][None, :9], "pre@L8.ffn": rows["L8.pre"][None, :9]}
    feeds |= {"topk@L8": rows["L8.topk"][None, :9].long(), "compress_kv@L6": rows["L6.compress_kv"][None, :9]}
    values = executor.run(STEP, feeds, first=9)
    assert torch.equal(executor.pools.rows("compress_kv@L6", 1)[:9], rows["L6.compress_kv"][:9])
    assert (values["logits"][0] - rows["logits"][:9]).abs().max() < 5e-5


def test_a_feed_replaces_what_an_op_writes() -> None:
    zeros = torch.zeros(1, 9, 128)
    values = reference().run(STEP, prompt() | {"sublayer_out@L0.attn": zeros}, until=0)
    assert values["sublayer_out@L0.attn"] is zeros
    assert not torch.equal(values["streams@L0.attn"], reference().run(STEP, prompt(), until=0)["streams@L0.attn"])


def test_what_is_missing_is_named() -> None:
    with pytest.raises(KeyError, match=r"streams@L4\.ffn"):
        reference().run(STEP, prompt(), first=5)
    for name in ("streams@L44.ffn", 44):
        with pytest.raises(UserFault, match="44") as fault:
            reference().run(STEP, prompt(), until=name)
        assert fault.value.diagnostics[0].code == "DSV867"


# --- comparison -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", list(MODES))
def test_a_plan_equals_the_reference(mode: str) -> None:
    running = engine(mode)
    comparer = Comparer(running)
    with running.open() as session:
        for start, end in ((0, 7), (7, 8), (8, 20)):
            comparer.feed(session, ids()[start:end])
    result = comparer.result()
    assert result.first is None and result.diagnostics == ()
    written = [value for op in running.manifest.ops for value in op.writes.values()]
    assert (result.steps, result.values) == (3, 3 * len(written))


def test_until_looks_no_further() -> None:
    running = engine()
    comparer = Comparer(running, until="topk@L2")
    with running.open() as session:
        comparer.feed(session, ids()[:5])
    ops = [op for op in running.manifest.ops]
    before = ops[: [op.id for op in ops].index("layers.2.attn.select_topk") + 1]
    assert comparer.result().values == sum(len(op.writes) for op in before)
    with pytest.raises(UserFault) as fault:
        Comparer(running, until="topk@L3")
    assert fault.value.diagnostics[0].code == "DSV867" and "topk@L" in (fault.value.diagnostics[0].help or "")


def test_the_first_value_past_its_bound_is_named() -> None:
    """A kernel that is slightly wrong in every layer is found in the first, not where it grew large."""
    kernels = kernels_for("cpu")
    wrong = Changed({"output": lambda *args, **named: kernels.output(*args, **named) * 1.001})
    running = engine(kernels=wrong)
    comparer = Comparer(running)
    with running.open() as session:
        comparer.feed(session, ids()[:9])
    result = comparer.result()
    assert result.first is not None and result.first.value == "sublayer_out@L0.attn"
    (finding,) = result.diagnostics
    assert finding.code == "DSV866" and "sublayer_out@L0.attn" in finding.message


def test_wrong_state_is_found() -> None:
    """A ring written one place too far shows as the ring, not one step later as attention."""
    kernels = kernels_for("cpu")

    def shifted(step: Step, rows: torch.Tensor, ring: torch.Tensor, *, window: int) -> torch.Tensor:
        return kernels.window_store(Step(step.slots, step.positions + 1, step.context + 1), rows, ring, window=window)

    running = engine(kernels=Changed({"window_store": shifted}), debug=2)
    comparer = Comparer(running)
    with running.open() as session:
        comparer.feed(session, ids()[:3])
    first = comparer.result().first
    assert first is not None and first.value == "window_kv@L0"


def test_wrong_wiring_of_code_is_found() -> None:
    """Layer 5 of the code gets layer 3's carried pre-mix; the manifest says layer 4's."""
    compiled, kept = plan(), {}

    def keep(kernels, weights, step, *reads):  # type: ignore[no-untyped-def]
        kept["result"] = compiled.functions["layers.3"](kernels, weights, step, *reads)
        return kept["result"]

    def swapped(kernels, weights, step, *reads):  # type: ignore[no-untyped-def]
        regions = {region.id: region for region in compiled.manifest.regions}
        place = regions["layers.5"].reads.index("pre@L4.ffn")
        pre = kept["result"][regions["layers.3"].writes.index("pre@L3.ffn")]
        return compiled.functions["layers.5"](kernels, weights, step, *reads[:place], pre, *reads[place + 1 :])

    wrong = replace(compiled, functions={**compiled.functions, "layers.3": keep, "layers.5": swapped})
    running = Engine(wrong, TINY, weights=weights())
    comparer = Comparer(running)
    with running.open() as session:
        comparer.feed(session, ids()[:9])
    first = comparer.result().first
    assert first is not None and first.value == "collapsed@L5.attn"


def test_distance() -> None:
    inf = float("inf")
    assert distance(torch.tensor([1.0, -inf]), torch.tensor([1.5, -inf])) == pytest.approx(0.5 / 1.5)
    assert distance(torch.tensor([0.1]), torch.tensor([0.2])) == pytest.approx(0.1)
    assert distance(torch.tensor([float("nan")]), torch.tensor([0.2])) == inf
    assert distance(torch.tensor([inf]), torch.tensor([0.2])) == inf
    assert distance(torch.tensor([1, 2]), torch.tensor([1, 3])) == 0.5
    assert distance(torch.ones(2), torch.ones(3)) == inf
    assert distance(torch.ones(2), torch.ones(2).double()) == inf
    assert distance(torch.ones(0), torch.ones(0)) == 0
