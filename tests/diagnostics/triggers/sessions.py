"""What sets off each code of sessions and text (85x, 86x). `TRIGGERS[code](tmp_path)` gives findings that hold it."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from dsv41c.diagnostics import Diagnostic, UserFault
from dsv41c.kernels.registry import kernels_for
from dsv41c.runtime.chat import render
from dsv41c.runtime.compare import Comparer
from dsv41c.runtime.engine import Engine
from dsv41c.runtime.files import check_writable
from dsv41c.runtime.recording import Trace
from dsv41c.runtime.sample import Sampler
from dsv41c.runtime.text import Text, load_tokenizer

_NAME = "golden_tiny"
_PATH = Path(__file__).resolve().parents[2] / "runtime" / f"{_NAME}.py"
if _NAME not in sys.modules:  # one copy with the runtime's tests: it caches plans and weights
    _spec = importlib.util.spec_from_file_location(_NAME, _PATH)
    sys.modules[_NAME] = importlib.util.module_from_spec(_spec)
    _spec.loader.exec_module(sys.modules[_NAME])
tiny = sys.modules[_NAME]


def _closed() -> None:
    session = tiny.engine().open()
    session.close()
    session.feed([1])


def _foreign() -> None:
    tiny.engine().feed(tiny.engine().open(), [1])


def _broken() -> None:
    session = tiny.engine().open()
    session.broken = True
    session.feed([1])


def _twice() -> None:
    running = tiny.engine()
    session = running.open()
    running.decode([(session, 1), (session, 2)])


def _no_slot() -> None:
    running = tiny.engine()
    for _ in range(5):
        running.open()


def _other_machine() -> None:
    plan = tiny.plan()
    manifest = plan.manifest.model_copy(update={"target": plan.manifest.target.model_copy(update={"family": "hpu"})})
    Engine(replace(plan, manifest=manifest), tiny.TINY, weights=tiny.weights())


class _Wrong:
    """Kernels of which the last one is wrong."""

    def __getattr__(self, kind: str) -> Callable[..., object]:
        kernel = getattr(kernels_for("cpu"), kind)
        return (lambda *args: kernel(*args) + 1) if kind == "head" else kernel


def _compared() -> tuple[Diagnostic, ...]:
    running = tiny.engine(kernels=_Wrong())
    comparer = Comparer(running, until="logits")
    comparer.feed(running.open(), [3])
    return comparer.result().diagnostics


def _out_of_step() -> None:
    def edited(kernels, weights, step, *reads):  # type: ignore[no-untyped-def]
        return kernels.norm(reads[0], torch.ones(128), eps=1e-6)

    plan = tiny.plan()
    plan = replace(plan, functions={**plan.functions, "layers.3": edited})
    running = Engine(plan, tiny.TINY, weights=tiny.weights())
    running.feed(running.open(), [3], trace=Trace())


def _foreign_state() -> list[Diagnostic]:
    """A session that goes on from the length of another one that had its slot."""
    running = tiny.engine(debug=2)
    session = running.open()
    session.feed([5, 6, 7])
    session.close()
    again = running.open()
    again.length = 3
    again.feed([8])
    return running.pools.ledger.findings()


def _raised(make: Callable[[], object]) -> list[Diagnostic]:
    try:
        return list(make() or ())  # type: ignore[call-overload]
    except UserFault as fault:
        return list(fault.diagnostics)


def _trigger(make: Callable[[], object]) -> Callable[[Path], list[Diagnostic]]:
    return lambda _: _raised(make)


TRIGGERS: dict[str, Callable[[Path], list[Diagnostic]]] = {
    "DSV848": _trigger(_foreign_state),
    "DSV849": _trigger(
        lambda: Engine(tiny.plan(), tiny.TINY, weights=tiny.weights(), tail="short")  # type: ignore[arg-type]
    ),
    "DSV850": _trigger(lambda: tiny.engine().open().feed([5, 512, -1])),
    "DSV851": _trigger(lambda: tiny.engine().open().feed([5] * 81)),
    "DSV852": _trigger(_no_slot),
    "DSV853": _trigger(_closed),
    "DSV854": _trigger(lambda: tiny.engine().open().feed([])),
    "DSV855": _trigger(_foreign),
    "DSV856": _trigger(_broken),
    "DSV857": _trigger(_twice),
    "DSV858": _trigger(_other_machine),
    "DSV859": _trigger(lambda: tiny.engine().open().feed([5], chunk=0)),
    "DSV860": _trigger(lambda: Sampler(temperature=-1.0, top_p=0.0, seed=-1)),
    "DSV861": lambda folder: _raised(lambda: load_tokenizer(folder, 512)),
    "DSV862": _trigger(lambda: Text.load(tiny.TINY, tiny.plan().manifest).encode_prompt("a\udcff")),
    "DSV863": _trigger(lambda: Text.load(tiny.TINY, tiny.plan().manifest).encode_chat("hi")),
    "DSV864": _trigger(lambda: render([{"role": "user", "content": "<｜deepseek_image｜>"}], "")),
    "DSV865": lambda folder: _raised(lambda: check_writable([folder / "none" / "x.safetensors", folder])),
    "DSV866": _trigger(_compared),
    "DSV867": _trigger(lambda: Comparer(tiny.engine(), until="topk@L77")),
    "DSV868": _trigger(lambda: Sampler().next(torch.tensor([0.0, float("nan")]))),
    "DSV869": _trigger(_out_of_step),
}
