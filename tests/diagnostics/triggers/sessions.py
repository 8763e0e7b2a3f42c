"""What sets off each code of sessions and text (848 to 86x), and the same mended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import golden_tiny as tiny
import torch

from dsv41c.diagnostics import Diagnostic
from dsv41c.kernels.registry import kernels_for
from dsv41c.runtime.chat import Special, render
from dsv41c.runtime.compare import Comparer
from dsv41c.runtime.engine import Engine
from dsv41c.runtime.files import check_writable
from dsv41c.runtime.recording import Trace
from dsv41c.runtime.sample import Sampler
from dsv41c.runtime.session import Session
from dsv41c.runtime.text import Text, load_tokenizer


def _session() -> Session:
    return tiny.engine().open()


def _feed(*ids: int, **options: object) -> Callable[[Path], object]:
    return lambda _: _session().feed(list(ids), **options)  # type: ignore[arg-type]


def _closed(*, again: bool) -> None:
    session = _session()
    session.close()
    (session.engine.open() if again else session).feed([1])


def _other_engine(*, own: bool) -> None:
    session = _session()
    (session.engine if own else tiny.engine()).feed(session, [1])


def _broken(*, reset: bool) -> None:
    session = _session()
    session.broken = True
    if reset:
        session.reset()
    session.feed([1])


def _decoded(*, twice: bool) -> None:
    running = tiny.engine()
    one, other = running.open(), running.open()
    running.decode([(one, 1), (one if twice else other, 2)])


def _opened(count: int) -> None:
    running = tiny.engine()
    for _ in range(count):
        running.open()


def _placed_on(family: str) -> None:
    plan = tiny.plan()
    target = plan.manifest.target.model_copy(update={"family": family})
    manifest = plan.manifest.model_copy(update={"target": target})
    Engine(replace(plan, manifest=manifest), tiny.TINY, weights=tiny.weights())


class _Wrong:
    """Kernels of which the last one is wrong."""

    def __getattr__(self, kind: str) -> Callable[..., object]:
        kernel = getattr(kernels_for("cpu"), kind)
        return (lambda *args: kernel(*args) + 1) if kind == "head" else kernel


def _compared(**options: object) -> tuple[Diagnostic, ...]:
    running = tiny.engine(**options)
    comparer = Comparer(running, until="logits")
    comparer.feed(running.open(), [3])
    return comparer.result().diagnostics


def _recorded(*, edited: bool) -> None:
    def other(kernels, weights, step, *reads):  # type: ignore[no-untyped-def]
        return kernels.norm(reads[0], torch.ones(128), eps=1e-6)

    plan = tiny.plan()
    if edited:
        plan = replace(plan, functions={**plan.functions, "layers.3": other})
    running = Engine(plan, tiny.TINY, weights=tiny.weights())
    running.feed(running.open(), [3], trace=Trace())


def _slot_again(length: int) -> list[Diagnostic]:
    """A session in a slot that another one had, going on from some length: only 0 has nothing of the other's."""
    running = tiny.engine(debug=2)
    session = running.open()
    session.feed([5, 6, 7])
    session.close()
    again = running.open()
    again.length = length
    again.feed([8])
    return running.pools.ledger.findings()


def _tail(name: str) -> None:
    Engine(tiny.plan(), tiny.TINY, weights=tiny.weights(), tail=name)  # type: ignore[arg-type]


def _text() -> Text:
    return Text.load(tiny.TINY, tiny.plan().manifest)


def _chat(*, known: bool) -> None:
    """A chat with the golden checkpoint's tokenizer, which lacks the special tokens of the format."""
    text = _text()
    if known:
        parts = render([{"role": "user", "content": "hi"}], "")
        text.tokenizer.add_special_tokens([str(part) for part in parts if isinstance(part, Special)])
    text.encode_chat("hi")


def _message(content: str) -> None:
    render([{"role": "user", "content": content}], "")


def _chosen(logit: float) -> None:
    Sampler().next(torch.tensor([0.0, logit]))


TRIGGERS = {
    "DSV848": (lambda _: _slot_again(3), lambda _: _slot_again(0)),
    "DSV849": (lambda _: _tail("short"), lambda _: _tail("exact")),
    "DSV850": (_feed(5, 512, -1), _feed(5, 511, 0)),
    "DSV851": (_feed(*[5] * 81), _feed(*[5] * 3)),
    "DSV852": (lambda _: _opened(5), lambda _: _opened(4)),
    "DSV853": (lambda _: _closed(again=False), lambda _: _closed(again=True)),
    "DSV854": (_feed(), _feed(0)),
    "DSV855": (lambda _: _other_engine(own=False), lambda _: _other_engine(own=True)),
    "DSV856": (lambda _: _broken(reset=False), lambda _: _broken(reset=True)),
    "DSV857": (lambda _: _decoded(twice=True), lambda _: _decoded(twice=False)),
    "DSV858": (lambda _: _placed_on("hpu"), lambda _: _placed_on("cpu")),
    "DSV859": (_feed(5, chunk=0), _feed(5, chunk=1)),
    "DSV860": (
        lambda _: Sampler(temperature=-1.0, top_p=0.0, seed=-1),
        lambda _: Sampler(temperature=0.0, top_p=1.0, seed=0),
    ),
    "DSV861": (lambda folder: load_tokenizer(folder, 512), lambda _: load_tokenizer(tiny.TINY, 512)),
    "DSV862": (lambda _: _text().encode_prompt("a\udcff"), lambda _: _text().encode_prompt("aÿ")),
    "DSV863": (lambda _: _chat(known=False), lambda _: _chat(known=True)),
    "DSV864": (lambda _: _message("<｜deepseek_image｜>"), lambda _: _message("an image")),
    "DSV865": (
        lambda folder: check_writable([folder / "none" / "x.safetensors", folder]),
        lambda folder: check_writable([folder / "x.safetensors"]),
    ),
    "DSV866": (lambda _: _compared(kernels=_Wrong()), lambda _: _compared()),
    "DSV867": (
        lambda _: Comparer(tiny.engine(), until="topk@L77"),
        lambda _: Comparer(tiny.engine(), until="topk@L6"),
    ),
    "DSV868": (lambda _: _chosen(float("nan")), lambda _: _chosen(1.0)),
    "DSV869": (lambda _: _recorded(edited=True), lambda _: _recorded(edited=False)),
}
