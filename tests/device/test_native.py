"""Plans with native kernels as users run them, in bf16 on the GPU: the golden checkpoint and the toy.

What counts is how far f32 on the host is: bf16 on the host is some way off, and the GPU may be half as far again.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import pytest
import torch
from torch import Tensor

from dsv41c.compiler.cli import main
from dsv41c.runtime.engine import Engine
from dsv41c.runtime.plan import load_plan
from dsv41c.runtime.session import Session

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

TINY = Path(__file__).resolve().parents[1] / "golden" / "tiny"
FAMILY = "rocm" if torch.version.hip else "cuda"
MODES = ("none", "reference", "packed")
torch.set_num_threads(1)  # the host's models are small
WORSE = 1.5  # times as far from f32 as bf16 on the host
TOKENS = [(7 * index * index + 3 * index + 1) % 500 for index in range(100)]
PROMPT = TOKENS[:61]


@cache
def sources(model: str) -> tuple[str, Path]:
    """A spec and its checkpoint, made by the command line."""
    folder = Path(mkdtemp())
    if model == "toy":
        assert main(["synth", "toy", "-o", str(folder / "toy")]) == 0
        return "toy", folder / "toy"
    assert main(["import", str(TINY / "config.json"), "-o", str(folder / "tiny.yaml")]) == 0
    return str(folder / "tiny.yaml"), TINY


@cache
def engine(model: str, kv_cache: str, family: str, compute: str = "bf16", capture: str = "layer") -> Engine:
    spec, checkpoint = sources(model)
    folder = str(Path(mkdtemp()) / "plan")
    sets = {
        "numerics.compute": compute,
        "numerics.kv_cache": kv_cache,
        "numerics.activation_quant": "none",
        "runtime.max_context": "512",
        "runtime.capture": capture,
    }
    options = [word for path, value in sets.items() for word in ("--set", f"{path}={value}")]
    assert main(["compile", spec, "--target", family, *options, "-o", folder]) == 0
    running = Engine(load_plan(Path(folder)), checkpoint)
    assert family != FAMILY or running.executor.kernels.variant == "triton"  # type: ignore[attr-defined]
    return running


def prompt_rows(running: Engine, chunk: int | None = None) -> Tensor:
    with running.open() as session:
        return session.feed(PROMPT, all_logits=True, chunk=chunk)


def token_by_token(running: Engine) -> Tensor:
    with running.open() as session:
        return torch.stack([running.decode({session: token})[session] for token in PROMPT])


@cache
def exact(kv_cache: str) -> tuple[Tensor, float]:
    """Logits [61, V] of f32 on the host, and how far bf16 on the host is from them."""
    want = prompt_rows(engine("tiny", kv_cache, "cpu", "f32"))
    return want, apart(prompt_rows(engine("tiny", kv_cache, "cpu")), want)


def apart(got: Tensor, want: Tensor) -> float:
    """The root of the mean square of all differences: single experts and codes that turn do not decide."""
    assert got.shape == want.shape and got.isfinite().all()
    return float((got.double() - want.double()).square().mean().sqrt())


WAYS: dict[str, Callable[[Engine], Tensor]] = {
    "in one": prompt_rows,
    "seven at a time": lambda running: prompt_rows(running, 7),
    "token by token": token_by_token,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kv_cache", MODES)
def test_logits_are_as_near_to_f32_as_those_of_the_host(kv_cache: str, way: str) -> None:
    want, host = exact(kv_cache)
    distance = apart(WAYS[way](engine("tiny", kv_cache, FAMILY)), want)
    print(f"{kv_cache}, {way}: {distance:.4f} from f32, the host {host:.4f}, logits {float(want.std()):.3f}")
    assert distance <= WORSE * host


@pytest.mark.parametrize("kv_cache", MODES)
def test_last_logits_are_those_of_all_rows(kv_cache: str) -> None:
    """Where only the last logits are asked for, fewer rows are computed, by other kernels."""
    running = engine("tiny", kv_cache, FAMILY)
    want, host = exact(kv_cache)
    for chunk in (None, 7):
        with running.open() as session:
            distance = apart(session.feed(PROMPT, chunk=chunk), want[-1])
        print(f"{kv_cache}, chunks of {chunk}: {distance:.4f} from f32, the host {host:.4f}")
        assert distance <= 2 * WORSE * host  # one row, so that one code or expert shows


@pytest.mark.parametrize("kv_cache", MODES)
def test_sessions_of_a_batch_are_as_alone(kv_cache: str) -> None:
    running, (_, host) = engine("tiny", kv_cache, FAMILY), exact(kv_cache)

    def fed(place: int) -> Session:
        session = running.open()
        session.feed(TOKENS[place : 2 * place + 30])
        return session

    sessions = [fed(place) for place in range(3)]
    together = [running.decode({session: 5 + place for place, session in enumerate(sessions)})]
    together.append(running.decode({session: 9 + place for place, session in enumerate(sessions)}))
    rows = [torch.stack([step[session] for step in together]) for session in sessions]
    for session in sessions:
        session.close()
    for place in range(3):
        with fed(place) as session:
            alone = torch.stack([running.decode({session: first + place})[session] for first in (5, 9)])
        distance = apart(rows[place], alone)
        print(f"{kv_cache}, session {place}: {distance:.5f} from alone, bf16 {host:.4f}")
        assert distance <= WORSE * host


@pytest.mark.parametrize("kv_cache", MODES)
def test_forks_and_reset_sessions_repeat_to_the_bit(kv_cache: str) -> None:
    running = engine("tiny", kv_cache, FAMILY)
    with running.open() as session:
        first = session.feed(PROMPT)
        with running.fork(session) as copy:
            running.decode({copy: 3})
            after = running.decode({session: 11})[session]
            running.decode({copy: 4})
        with running.fork(session) as copy:
            assert torch.equal(running.decode({copy: 12})[copy], running.decode({session: 12})[session])
        running.reset(session)
        assert torch.equal(session.feed(PROMPT), first)
        assert torch.equal(running.decode({session: 11})[session], after)


def steps(running: Engine, tokens: list[int]) -> Tensor:
    """Logits behind a prompt of 20 tokens, and behind each of the tokens that come next."""
    with running.open() as session:
        rows = [session.feed(TOKENS[:20])]
        rows += [running.decode({session: token})[session] for token in tokens]
    return torch.stack(rows)


def greedy(running: Engine) -> tuple[list[int], Tensor]:
    """32 tokens behind the same prompt, each the most likely, and the logits that they were taken from."""
    with running.open() as session:
        rows = [session.feed(TOKENS[:20])]
        while len(rows) < 32:
            rows.append(running.decode({session: int(rows[-1].argmax())})[session])
    return [int(row.argmax()) for row in rows], torch.stack(rows)


@pytest.mark.parametrize("kv_cache", MODES)
def test_greedy_tokens_of_the_toy_are_those_of_the_host(kv_cache: str) -> None:
    """On the host's tokens, wherever bf16 on the host leaves no doubt about the next one."""
    tokens, want = greedy(engine("toy", kv_cache, "cpu"))
    with engine("toy", kv_cache, "cpu", "f32").open() as session:
        wide = session.feed(TOKENS[:20] + tokens[:-1], all_logits=True)[19:]
    got = steps(engine("toy", kv_cache, FAMILY), tokens[:-1])
    noise = (want - wide).square().mean(-1).sqrt()  # of each step
    best = want.topk(2).values
    certain = best[:, 0] - best[:, 1] > 5 * noise
    same = got.argmax(-1) == want.argmax(-1)
    distance, host = apart(got, wide), apart(want, wide)
    print(
        f"{kv_cache}: {int(same.sum())} of 32 tokens, {int(certain.sum())} certain; {distance:.4f} from f32, {host:.4f}"
    )
    assert certain.any() and same[certain].all() and same.sum() >= 24
    assert distance <= WORSE * host


@pytest.mark.parametrize("kv_cache", ["reference", "packed"])
def test_tokens_do_not_depend_on_what_is_captured(kv_cache: str) -> None:
    tokens, want = greedy(engine("toy", kv_cache, FAMILY))
    for capture in ("all", "off"):
        found, rows = greedy(engine("toy", kv_cache, FAMILY, "bf16", capture))
        print(f"{kv_cache}, capture {capture}: {apart(rows, want):.2e} from `layer`")
        assert found == tokens, capture
