"""Every split gives the numbers of one stage: the toy's, the goldens in every numerics mode, random models."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from golden_tiny import LOGITS_BOUND, MODES, TINY, apart, golden, ids, plan, weights, weights_for
from hypothesis import given, settings
from hypothesis import strategies as st
from planted import CHANGES, FOUR
from random_plans import compiled, models, same, stages, story, weights_of
from splits import ONE, split
from torch import Tensor

from dsv41c.compiler.plan import compile_spec, write_plan
from dsv41c.compiler.spec import load
from dsv41c.runtime.engine import Engine
from dsv41c.runtime.plan import Plan, load_plan
from dsv41c.runtime.recording import Trace
from dsv41c.runtime.states import collect, state_keys
from dsv41c.runtime.tail import TAILS

from ...strategies import specs  # noqa: TID252 (tests are no installed package)

TOY_LAYERS = 8
AGAIN = {3: (0, 1, 0), 4: (0, 1, 0, 1), 5: (0, 1, 2, 0, 1)}  # devices that come twice, by the number of stages


def toy(folder: Path, ends: tuple[int, ...], devices: tuple[int, ...]) -> Plan:
    names = ", ".join(f"cpu:{device}" for device in devices)
    sets = (f"placement.devices=[{names}]", f"placement.layer_ends={list(ends)}", "mhc.sinkhorn_iters=2")
    where = folder / "-".join(map(str, (*ends, *devices)))
    write_plan(compile_spec(load("toy", sets=sets)), where)
    return load_plan(where)


def short(running: Engine) -> list[Tensor]:
    """A prompt in chunks and a token."""
    with running.open() as session:
        found = [session.feed([(7 * number) % 512 for number in range(19)], chunk=10)]
        return [*found, session.feed([3])]


@pytest.fixture(scope="module")
def toys(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, object], list[Tensor]]:
    """A folder for plans, the toy's weights, and what one stage gives."""
    folder = tmp_path_factory.mktemp("toys")
    one = toy(folder, (TOY_LAYERS,), (0,))
    bound = weights_of(one)
    return folder, bound, short(Engine(one, folder, weights=bound))


def every_split(count: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Ends and devices of every split into so many stages; one in five also on devices that come twice."""
    for number, cuts in enumerate(combinations(range(1, TOY_LAYERS), count - 1)):
        yield (*cuts, TOY_LAYERS), tuple(range(count))
        if count in AGAIN and number % 5 == 0:
            yield (*cuts, TOY_LAYERS), AGAIN[count]


@pytest.mark.parametrize("count", [2, 3, 4, 5])
def test_every_split_of_the_toy(count: int, toys: tuple[Path, dict[str, object], list[Tensor]]) -> None:
    folder, bound, expected = toys
    for ends, devices in every_split(count):
        running = Engine(toy(folder, ends, devices), folder, weights=bound)
        assert same(short(running), expected), (ends, devices)


PACKED = ("kv_cache: reference", "kv_cache: packed")
PAIRS = [(mode, ()) for mode in MODES] + [(mode, (PACKED,)) for mode in MODES if mode.endswith("reference")]


def fed(running: Engine) -> dict[str, Tensor]:
    """Logits and every state of a session: a prompt in chunks, tokens one by one."""
    trace, tokens = Trace(frozenset(state_keys(running.manifest))), ids()
    with running.open() as session:
        rows = [running.feed(session, tokens[:61], all_logits=True, chunk=23, trace=trace)]
        rows += [running.decode({session: token}, trace=trace)[session][None] for token in tokens[61:]]
        states = collect(running.manifest, trace, running.pools, session.slot, session.length)
    return {**states, "logits": torch.cat(rows)}


@pytest.mark.parametrize(("mode", "packed"), PAIRS, ids=lambda part: part if isinstance(part, str) else str(len(part)))
def test_goldens_in_every_mode(mode: str, packed: tuple[tuple[str, str], ...]) -> None:
    """Bit for bit those of one stage, and near the released model's own: in bf16 up to the first tie of scores."""
    one = fed(Engine(plan(mode, *packed), TINY, weights=weights(mode)))
    rows = 47 if mode.startswith("bf16") else 64
    got = fed(Engine(split([2, 4, 7, 8, 10], [0, 1, 2, 0, 1], *packed, mode=mode), TINY, weights=weights(mode)))
    assert got.keys() == one.keys() >= {"L2.compress_kv", "L6.index_k", "L8.topk", "L6.candidates", "L9.streams"}
    assert all(torch.equal(got[name], one[name]) for name in one)
    assert apart(got["logits"][:rows], golden(mode)["prefill64.logits"][:rows]) <= LOGITS_BOUND
    for name in ("L4.topk", "L6.topk", "L8.topk", "engram_ids"):
        assert torch.equal(got[name][:rows], golden(mode)[f"prefill64.{name}"][:rows]), name


@settings(max_examples=12, deadline=None)
@given(st.data())
def test_random_models_on_random_stages(data: st.DataObject) -> None:
    spec, number = data.draw(models(specs)), data.draw(st.integers(0, 1 << 20))
    chance, layers = random.Random(number), spec["model"]["n_layers"]
    tail = data.draw(st.sampled_from(TAILS))
    with TemporaryDirectory() as name:
        folder = Path(name)
        one = compiled(spec, folder / "one")
        cut = compiled(spec, folder / "cut", stages(chance, layers, chance.randint(1, min(3, layers))))
        bound = weights_of(one)
        expected, got = (story(Engine(each, folder, weights=bound, tail=tail), number) for each in (one, cut))
        assert same(got, expected)


@pytest.mark.parametrize("family", ["cuda", "rocm", "hpu"])
def test_captured_steps_of_several_stages(family: str) -> None:
    """Steps of two sessions under the rules of a family's graphs, one device coming twice."""
    changes = (*CHANGES, *FOUR, ("decode_buckets: [1]", "decode_buckets: [2]"), ("t: fp8", "t: none"))
    mode, whole, found = "bf16-act_fp8-kv_reference", ONE.replace("[10]", "[4]"), []
    for ends, devices in (((4,), (0,)), ((1, 3, 4), (0, 1, 0))):
        names = ", ".join(f"{family}:{device}" for device in devices)
        cut = plan(mode, *changes, (whole, f"placement: {{devices: [{names}], layer_ends: {list(ends)}}}"))
        running = Engine(cut, TINY, weights=weights_for(cut, mode), strict=True)
        assert running.captured is not None and len(running.layout.stages) == len(ends)
        a, b = running.open(), running.open()
        found.append([a.feed(ids()[:9]), b.feed(ids()[3:8])])
        for step in range(3):
            found[-1] += running.decode({a: 7 + step, b: 20 - step}).values()
    assert same(*found)
