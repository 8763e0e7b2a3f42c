"""Where weights and rows come from on a GPU: engram tables by storage, and a GGUF file."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch
from test_native import FAMILY, TOKENS, WORSE, apart, exact, prompt_rows, sources, token_by_token
from torch import Tensor

from dsv41c.compiler.cli import main
from dsv41c.runtime.engine import Engine
from dsv41c.runtime.plan import load_plan
from dsv41c.runtime.weights.table import StoredTable

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
PROMPT, STEPS = 37, 24
NO_CACHE = ("engram.row_cache_bytes=0",)


def started(folder: Path, checkpoint: Path, *sets: str, spec: str) -> Engine:
    options = [word for each in ("numerics.activation_quant=none", *sets) for word in ("--set", each)]
    assert main(["compile", spec, "--target", FAMILY, *options, "-o", str(folder)]) == 0
    engine = Engine(load_plan(folder), checkpoint)
    assert engine.captured is not None
    return engine


def story(folder: Path, checkpoint: Path, *sets: str, spec: str) -> tuple[Engine, Tensor]:
    """An engine, and logits [n, V] of a prompt, of captured steps of one and two sessions, and of steps in flight."""
    engine = started(folder, checkpoint, *sets, spec=spec)
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
def test_logits_are_the_same_wherever_engram_rows_are(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, checkpoint = sources(model)
    read: list[int] = []  # rows by the host, which it does for `mapped` and `disk` alone
    rows = StoredTable.rows
    monkeypatch.setattr(StoredTable, "rows", lambda table, ids: read.append(ids.numel()) or rows(table, ids))
    engine, want = story(tmp_path / "device", checkpoint, "engram.storage=device", spec=spec)
    assert engine.steps.prefetch is None
    assert want.isfinite().all()
    for storage in ("host", "mapped", "disk"):
        for number, sets in enumerate(((), NO_CACHE) if storage != "host" else ((),)):
            engine, got = story(
                tmp_path / f"{storage}{number}", checkpoint, f"engram.storage={storage}", *sets, spec=spec
            )
            pinned = storage == "host"
            assert (engine.steps.prefetch is None) == pinned, "rows are read ahead, or by the GPU out of pinned memory"
            assert engine.captured is not None and bool(engine.captured.tables) != pinned
            assert bool(read) != pinned
            read.clear()
            tables = [weight for name, weight in engine.weights.items() if name.endswith("engram_table")]
            assert not pinned or all(table.codes.is_pinned() for table in tables)  # type: ignore[attr-defined]
            assert torch.equal(got, want), (storage, sets, (got - want).abs().max())


@pytest.mark.skipif(importlib.util.find_spec("gguf") is None, reason="needs the package gguf")
def test_logits_of_a_gguf_file_are_as_near_to_f32_as_those_of_the_host(tmp_path: Path) -> None:
    """Not those of the release layout to the bit: matrices that a file has in BF16 go through other kernels."""
    import gguf_made as made

    file = made.write(tmp_path / "x.gguf", made.tensors("c"), made.keys("c"))
    engine = started(tmp_path / "plan", file, spec=sources("tiny")[0])
    assert engine.executor.kernels.variant == "triton"  # type: ignore[attr-defined]
    want, host = exact("reference")
    for way in (prompt_rows, token_by_token):
        distance = apart(way(engine), want)
        print(f"{way.__name__}: {distance:.4f} from f32, the host {host:.4f}")
        assert distance <= WORSE * host
