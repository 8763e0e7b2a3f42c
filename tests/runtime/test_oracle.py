"""Compiled plans against an oracle that shares nothing with them: odd layer maps, every kind of cut, batches."""

from __future__ import annotations

import copy
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from golden_tiny import SPEC, TINY, golden
from oracle import Oracle
from torch import Tensor

from dsv41c.compiler.importing.hf_config import to_hf_config
from dsv41c.compiler.plan import compile_spec, write_plan
from dsv41c.compiler.spec import load
from dsv41c.runtime.engine import Engine
from dsv41c.runtime.plan import load_plan
from dsv41c.runtime.synth import synth

from ..kernels.harness import hash_constants  # noqa: TID252 (tests are no installed package)
from ..strategies import MODEL, PARTS, loaded  # noqa: TID252

BOUND = 5e-5  # measured: 4e-6
TOKENS = 19
# name: (ratios, KV sources, index sources, candidate source, engram layers, what else differs)
LAYOUTS: dict[str, tuple[list[int], list[int], list[int], int, list[int], dict[str, Any]]] = {
    "one window layer": ([0], [], [], -1, [], {}),
    "one layer of all": ([2], [0], [0], 0, [0], {"mhc.streams": 1, "moe.n_activated_experts": 1}),
    "no branch": ([0, 0], [], [], -1, [0, 1], {"engram.max_ngram_size": 2, "attention.window_size": 1}),
    "ratios 3 and 4": ([3, 3, 4, 4], [0, 2], [0, 1, 2, 3], -1, [], {"runtime.max_context": TOKENS + 1}),
    "all sources": ([2, 1, 1], [0, 1, 2], [0, 1, 2], -1, [0, 1, 2], {"mhc.streams": 3, "mhc.sinkhorn_iters": 1}),
    "holes": ([1, 0, 1, 0, 2, 0, 2], [0, 4], [0, 2, 4, 6], 4, [], {"runtime.prefill_chunk": 3}),
    "nothing left out": ([0, 2, 2, 1, 1], [1, 3], [1, 2, 3, 4], 3, [1, 4], {"indexer.topk": 999}),
    "blocks of one": ([0, 1, 1, 1], [1], [1, 2, 3], 1, [], {"indexer.candidate_block_size": 1, "indexer.topk": 1}),
    "few blocks of three": ([3, 3, 3], [0], [0, 2], 0, [], {"indexer.candidate_block_size": 3}),
    "other reads": ([0, 2, 2, 2, 2], [1], [1, 2, 3], -1, [], {"layers.reads": {"4": {"topk": 1}}}),
    "ratio beyond the context": ([40, 40, 1], [0, 2], [0, 1, 2], -1, [], {"moe.swiglu_limit": 0}),
    "other widths": ([0, 2, 1], [1, 2], [1, 2], -1, [1], {"attention.rope_head_dim": 32, "attention.o_groups": 4}),
}


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def spec_of(name: str) -> dict[str, Any]:
    ratios, kv, index, candidate, engram, changes = LAYOUTS[name]
    spec: dict[str, Any] = {"format": "dsv41c.spec/1", "name": "odd", **copy.deepcopy(PARTS)}
    spec["model"] = {"n_layers": len(ratios), **MODEL, "vocab_size": 300}
    spec["layers"] = {"compress_ratios": ratios, "kv_source_layers": kv, "index_source_layers": index}
    spec["numerics"] = {"compute": "f32", "activation_quant": "none", "kv_cache": "none"}
    spec["runtime"] = {"max_context": 32, "max_sessions": 3, "prefill_chunk": TOKENS, "decode_buckets": [1, 2]}
    if candidate >= 0:
        spec["layers"]["candidate_source_layer"] = candidate
    if engram:
        spec["layers"]["engram_layers"] = engram
        spec["engram"] = {"max_ngram_size": 3, "n_heads": 2, "vocab_size": 50, "compressed_vocab_size": 250}
        spec["engram"] |= {"head_dim": 32, "pad_id": 2, "storage": "mapped"}
    for path, value in changes.items():
        section, key = path.split(".")
        spec[section][key] = value
    if engram:
        spec["engram"]["num_embeddings"] = [sum(primes) for primes in hashes(spec)[1]]
    return spec


def hashes(spec: dict[str, Any]) -> Any:
    """Hash constants by the tests' own recipe; None without engram."""
    engram = spec.get("engram")
    sizes = ("max_ngram_size", "n_heads", "vocab_size", "compressed_vocab_size")
    return engram and hash_constants(spec["layers"]["engram_layers"], *(engram[size] for size in sizes))


def expect(got: Tensor, expected: Tensor) -> None:
    assert got.shape == expected.shape
    assert (got.double() - expected).abs().max() <= BOUND


def test_the_oracle_is_right() -> None:
    """It reproduces the golden end to end, so that what it says of other layer maps can be believed."""
    text = SPEC.replace("COMPUTE", "f32").replace("QUANT", "none").replace("CACHE", "none")
    tiny = load("-", stdin=text.encode).spec
    assert tiny is not None
    spec = tiny.model_dump()
    oracle = Oracle(spec, TINY, hashes(spec))
    expect(golden()["prefill64.logits"], oracle.logits(golden()["ids"].tolist()))
    for layer in (2, 4, 6):
        expect(golden()[f"prefill64.L{layer}.compress_kv"], oracle.values[f"L{layer}.compress_kv"])


@pytest.mark.parametrize("name", LAYOUTS)
def test_odd_layouts(name: str, tmp_path: Path) -> None:
    """One prefill, fixed chunks, then three sessions cut and batched at random: the oracle's logits at every token."""
    spec = spec_of(name)
    found = loaded(spec)
    assert found.spec is not None, found.diagnostics
    write_plan(compile_spec(found), tmp_path / "plan")
    compiled = load_plan(tmp_path / "plan")
    synth(compiled.manifest, to_hf_config(found.spec), tmp_path / "checkpoint")
    oracle = Oracle(spec, tmp_path / "checkpoint", hashes(spec))
    generator = random.Random(name)
    prompts = [generator.choices(range(300), k=TOKENS) for _ in range(3)]
    expected = [oracle.logits(prompt) for prompt in prompts]
    engine = Engine(compiled, tmp_path / "checkpoint", debug=2)
    for chunk in (None, 1, 4):
        with engine.open() as session:
            expect(session.feed(prompts[0], all_logits=True, chunk=chunk), expected[0])
    sessions = [engine.open() for _ in prompts]
    while waiting := [i for i in range(3) if sessions[i].length < TOKENS]:
        if generator.random() < 0.5:
            rows = generator.sample(waiting, generator.randint(1, len(waiting)))
            at = {i: sessions[i].length for i in rows}
            logits = engine.decode({sessions[i]: prompts[i][at[i]] for i in rows})
            for i in rows:
                expect(logits[sessions[i]], expected[i][at[i]])
        else:
            i = generator.choice(waiting)
            at_i = sessions[i].length
            part = prompts[i][at_i : at_i + generator.randint(1, 7)]
            expect(sessions[i].feed(part, all_logits=True), expected[i][at_i : at_i + len(part)])
