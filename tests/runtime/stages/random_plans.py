"""Random small models on random stages, and random stories of sessions on them: the same ones for every cut."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from torch import Tensor

from dsv41c.compiler.plan import compile_spec, write_plan
from dsv41c.compiler.spec import load
from dsv41c.kernels.reference.encodings import Stacked, dense
from dsv41c.runtime.bench.random_weights import random_weights
from dsv41c.runtime.engine import Engine
from dsv41c.runtime.plan import Plan, load_plan

Spec = dict[str, Any]
NUMERICS = (("f32", "none", "none"), ("f32", "fp8", "reference"), ("f32", "none", "packed"), ("bf16", "fp8", "packed"))
CONTEXT, SESSIONS, VOCABULARY = 40, 3, 128


@st.composite
def models(draw: Callable[[Any], Any], specs: Callable[..., Any]) -> Spec:
    """A model of `specs`, with buckets of every number of sessions: no padding rows, so numbers are equal."""
    spec: Spec = copy.deepcopy(draw(specs(buckets=60)))
    spec.pop("placement", None)
    names = ("compute", "activation_quant", "kv_cache")
    spec["numerics"] = dict(zip(names, draw(st.sampled_from(NUMERICS)), strict=True))
    chunk = draw(st.integers(3, 20))
    spec["runtime"] = {"max_context": CONTEXT, "max_sessions": SESSIONS, "prefill_chunk": chunk}
    spec["runtime"]["decode_buckets"] = [1, 2, 3]
    return spec


def drawn(specs: Callable[..., Any], count: int, least: int) -> list[Spec]:
    """The same models in every run, of at least so many layers, that share state between layers."""
    found: list[Spec] = []

    @seed(11)
    @settings(max_examples=60, phases=[Phase.generate], database=None, suppress_health_check=list(HealthCheck))
    @given(models(specs))
    def collect(spec: Spec) -> None:
        sources = spec["layers"]["kv_source_layers"]
        if spec["model"]["n_layers"] >= least and sources and spec not in found:
            found.append(spec)

    collect()
    assert len(found) >= count
    return found[-count:]


def stages(chance: random.Random, layers: int, devices: int) -> Spec:
    """A placement on so many devices, which come again as it happens, in five stages at most."""
    count = chance.randint(devices, max(devices, min(5, layers)))
    ends = [*sorted(chance.sample(range(1, layers), count - 1)), layers]
    extra = [chance.randrange(devices) for _ in range(count - devices)]
    order = [*range(devices), *extra]
    chance.shuffle(order)
    names = list(dict.fromkeys(order))  # numbered as they first come, as processes are
    return {"devices": [f"cpu:{names.index(device)}" for device in order], "layer_ends": ends}


def compiled(spec: Spec, folder: Path, placement: Spec | None = None) -> Plan:
    """The plan of a model in a folder, on one CPU without a placement."""
    text = json.dumps(spec if placement is None else {**spec, "placement": placement})
    write_plan(compile_spec(load("-", stdin=text.encode)), folder)
    return load_plan(folder)


def write(found: Sequence[Spec], devices: int, folder: Path) -> None:
    """The plans of models, `N.one` of one stage and `N.cut` on so many devices."""
    for number, spec in enumerate(found):
        compiled(spec, folder / f"{number}.one")
        layers = spec["model"]["n_layers"]
        compiled(spec, folder / f"{number}.cut", stages(random.Random(number), layers, devices))


def weights_of(one: Plan) -> dict[str, object]:
    """The same weights wherever they are made, with experts decoded once."""
    made = random_weights(one.manifest, torch.device("cpu"), table_rows=1 << 10)
    dtype = torch.bfloat16 if one.manifest.numerics.compute == "bf16" else torch.float32
    return {
        name: [dense(item, dtype) for item in weight] if isinstance(weight, Stacked) else weight
        for name, weight in made.items()
    }


def story(running: Engine, number: int) -> list[Tensor]:
    """Prompts in random chunks, decode steps of some sessions, forks, resets, sessions in freed slots."""
    chance, found = random.Random(number), []
    sessions = [running.open()]
    for _ in range(12):
        act = chance.choice(("feed", "feed", "decode", "decode", "decode", "other"))
        room = [session for session in sessions if session.length + 9 < CONTEXT]
        if act == "feed" and room:
            tokens = chance.choices(range(VOCABULARY), k=chance.randint(1, 9))
            every = chance.random() < 0.3
            found.append(chance.choice(room).feed(tokens, chunk=chance.randint(1, 9), all_logits=every))
        elif act == "decode" and room:
            some = chance.sample(room, chance.randint(1, len(room)))
            found += running.decode({session: chance.randrange(VOCABULARY) for session in some}).values()
        elif len(sessions) < SESSIONS:
            sessions.append(chance.choice(sessions).fork() if chance.random() < 0.5 else running.open())
        else:
            session = sessions.pop(chance.randrange(len(sessions)))
            if chance.random() < 0.5:
                session.close()
            else:
                session.reset()
                sessions.append(session)
    return found


def same(got: Sequence[Tensor], expected: Sequence[Tensor]) -> bool:
    """Number by number; no NaN."""
    return len(got) == len(expected) > 0 and all(map(torch.equal, got, expected))
