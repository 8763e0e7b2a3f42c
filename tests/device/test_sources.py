"""Where weights and rows come from makes no difference on a GPU: engram tables by storage, and a GGUF file."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch
from test_native import FAMILY, TOKENS, sources
from torch import Tensor

from dsv41c.compiler.cli import main
from dsv41c.runtime.engine import Engine
from dsv41c.runtime.plan import load_plan

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
PROMPT, STEPS = 37, 24
NO_CACHE = ("engram.row_cache_bytes=0",)


def story(folder: Path, checkpoint: Path, *sets: str, spec: str) -> tuple[Engine, Tensor]:
    """An engine, and logits [n, V] of a prompt, of captured steps of one and two sessions, and of steps in flight."""
    options = [word for each in ("numerics.activation_quant=none", *sets) for word in ("--set", each)]
    assert main(["compile", spec, "--target", FAMILY, *options, "-o", str(folder)]) == 0
    engine = Engine(load_plan(folder), checkpoint)
    assert engine.captured is not None
    first, second = engine.open(), engine.open()
    rows = [engine.feed(first, TOKENS[:PROMPT], all_logits=True, chunk=16), engine.feed(second, TOKENS[5:16])[None]]
    for step, token in enumerate(TOKENS[PROMPT : PROMPT + STEPS]):
        batch = {first: token} if step % 3 else {second: token, first: token + 1}
        rows += [row[None] for row in engine.decode(batch).values()]
    other = engine.fork(first)  # goes on from rows that nobody has read for it
    begun = [engine.start({other: token}) for token in TOKENS[:8]]
    rows += [row[None] for each in begun for row in each.logits().values()]
    return engine, torch.cat([row.cpu() for row in rows])


@pytest.mark.parametrize("model", ["tiny", "toy"])
def test_logits_are_the_same_wherever_engram_rows_are(model: str, tmp_path: Path) -> None:
    spec, checkpoint = sources(model)
    engine, want = story(tmp_path / "device", checkpoint, "engram.storage=device", spec=spec)
    assert engine.steps.prefetch is None
    assert want.isfinite().all()
    for storage in ("host", "mapped", "disk"):
        for number, sets in enumerate(((), NO_CACHE) if storage != "host" else ((),)):
            engine, got = story(
                tmp_path / f"{storage}{number}", checkpoint, f"engram.storage={storage}", *sets, spec=spec
            )
            assert engine.steps.prefetch is not None, "rows are read ahead"
            assert torch.equal(got, want), (storage, sets, (got - want).abs().max())


@pytest.mark.skipif(importlib.util.find_spec("gguf") is None, reason="needs the package gguf")
def test_a_gguf_file_gives_the_logits_of_the_release_layout(tmp_path: Path) -> None:
    import gguf_made as made

    spec, checkpoint = sources("tiny")
    file = made.write(tmp_path / "x.gguf", made.tensors("c"), made.keys("c"))
    _, want = story(tmp_path / "release", checkpoint, spec=spec)
    engine, got = story(tmp_path / "gguf", file, spec=spec)
    assert engine.executor.kernels.variant == "triton"  # type: ignore[attr-defined]
    assert torch.equal(got, want), (got - want).abs().max()
