"""The kernels wired by hand against what the released model code computes on the tiny checkpoint.

End to end only in f32 without fake quantisation, where nothing avalanches; layer by layer, from the golden's own
inputs, in all four modes. Bounds are those that planted faults break; measured errors stand beside them.
"""

from functools import cache

import pytest
import torch
from safetensors.torch import load_file

from .harness import GOLDEN, TINY, Run, TinyModel
from .token_map import compressed_ids

EXACT = "f32-act_none-kv_none"
F32_MODES = (EXACT, "f32-act_none-kv_reference", "f32-act_fp8-kv_reference")
BF16 = "bf16-act_fp8-kv_reference"
SLOT, START = torch.tensor([0]), torch.tensor([0])
SELECTIONS = ("topk", "experts")


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@cache
def golden(mode):
    return load_file(GOLDEN / f"{mode}.safetensors")


@cache
def model(mode):
    return TinyModel(*(part.split("_")[-1] for part in mode.split("-")))


def groupwise(candidates, groups):
    """Block candidates [T, blocks] as the golden has them: per group, only what each query sees (ratio 1)."""
    spread = candidates.repeat_interleave(4, -1)[..., :groups]
    return spread & (torch.arange(groups) <= torch.arange(spread.shape[0])[:, None])


def expect_values(run, mode, prefix, first=0, last=64):
    """Selections and hash ids of the last call equal the golden's rows first to last."""
    want = golden(mode)
    for name, value in run.values.items():
        key = f"{prefix}.{name}"
        if key not in want or name.split(".")[-1] not in (*SELECTIONS, "engram_ids"):
            continue
        expected = want[key][first:last].long()
        assert torch.equal(value[0], expected[..., : value.shape[-1]]), name
        assert (expected[..., value.shape[-1] :] == -1).all(), name


def test_token_map_has_the_published_size():
    ids = compressed_ids(TINY / "tokenizer.json")
    assert (len(ids), len(set(ids)), ids[2]) == (512, 426, 2)


def test_prefill_end_to_end():
    run = Run(model(EXACT))
    logits = run.call(golden(EXACT)["ids"].long()[None], SLOT, START)[0]
    assert (logits - golden(EXACT)["prefill64.logits"]).abs().max() < 5e-5  # measured 9.1e-6
    expect_values(run, EXACT, "prefill64")
    candidates = groupwise(run.values["L6.candidates"][0], 64)
    assert torch.equal(candidates, golden(EXACT)["prefill64.L6.candidates"])


@pytest.mark.parametrize("prompt", [1, 7, 15, 16, 17, 33, 40])
def test_prefill_then_token_by_token(prompt):
    want, run = golden(EXACT), Run(model(EXACT), fill=7.0)  # what a pool held before must not matter
    ids = want["ids"].long()[None]
    logits = [run.call(ids[:, :prompt], SLOT, START)[0]]
    prefix = f"p{prompt}" if f"p{prompt}.L2.topk" in want else "prefill64"
    expect_values(run, EXACT, prefix, 0, prompt)
    last = min(prompt + 24, 64) if prompt > 1 else 64  # a turn of the ring and a half; once up to the end
    for position in range(prompt, last):
        logits.append(run.call(ids[:, position : position + 1], SLOT, torch.tensor([position]))[0])
        expect_values(run, EXACT, prefix, position, position + 1)
        mask = run.values["L6.candidates"][0].repeat_interleave(4, -1)[..., : position + 1]
        assert torch.equal(mask[0], want["prefill64.L6.candidates"][position, : position + 1])
    assert (torch.cat(logits) - want[f"p{prompt}.logits"][:last]).abs().max() < 5e-5  # measured at most 9.8e-6


@pytest.mark.parametrize("chunk", [2, 3, 5, 8, 9, 23])
def test_any_cut_of_the_prompt(chunk):
    want, run = golden(EXACT), Run(model(EXACT))
    ids, parts = want["ids"].long()[None], []
    for start in range(0, 64, chunk):
        part = ids[:, start : start + chunk]
        parts.append(run.call(part, SLOT, torch.tensor([start]))[0])
        expect_values(run, EXACT, "prefill64", start, start + part.shape[1])
    assert (torch.cat(parts) - want["prefill64.logits"]).abs().max() < 5e-5  # measured at most 9.1e-6


def from_golden(mode, layer):
    """A run after layer `layer` alone, fed the golden's inputs of it and the states of its sources."""
    want, m = golden(mode), model(mode)
    fresh, c = Run(m), m.config
    fresh.begin(want["ids"].long()[None], SLOT, START)
    for n in c.kv_source_layer_ids:
        if n < layer:
            for name in ("compress_kv", "index_k"):
                fresh.pools[f"{name}@L{n}"][0] = want[f"prefill64.L{n}.{name}"].to(m.dtype)
    for n in c.index_source_layer_ids:
        if n < layer:
            fresh.values[f"L{n}.topk"] = want[f"prefill64.L{n}.topk"].long()[None]
    blocks = want["prefill64.L6.candidates"].unflatten(-1, (16, 4)).any(-1)
    fresh.values["L6.candidates"] = blocks[None]
    if layer:
        streams = want[f"prefill64.L{layer - 1}.streams"].to(m.dtype)[None]
        pre = want[f"prefill64.L{layer - 1}.pre"][None]
    else:
        streams = m.w("embed")[want["ids"].long()][None, :, None].repeat(1, 1, 4, 1)
        pre = torch.tensor([1.0, 0, 0, 0]).expand(1, 64, 4)
    fresh.layer(layer, streams, pre)
    return fresh


def difference(run, mode, name):
    return (run.values[name][0].float() - golden(mode)[f"prefill64.{name}"]).abs()


# Measured over all layers: streams max 2.4e-6, mean 2.3e-7; attn_out max 1.1e-6; pre max 4.2e-7; caches bit for bit
# equal in both modes that round them.
@pytest.mark.parametrize("layer", range(10))
@pytest.mark.parametrize("mode", F32_MODES)
def test_layer_by_layer_f32(mode, layer):
    run, want = from_golden(mode, layer), golden(mode)
    for name in (f"L{layer}.streams", f"L{layer}.attn_out", f"L{layer}.streams_after_engram"):
        if name in run.values:
            error = difference(run, mode, name)
            assert error.max() < 1e-5, name
            assert error.mean() < 1e-6, name
    assert difference(run, mode, f"L{layer}.pre").max() < 1e-5
    for name in ("topk", "experts"):
        if f"L{layer}.{name}" in run.values:
            assert torch.equal(run.values[f"L{layer}.{name}"][0], want[f"prefill64.L{layer}.{name}"].long())
    if layer in (1, 4):
        assert difference(run, mode, f"L{layer}.engram_gate").max() < 1e-5
    if layer in model(mode).config.kv_source_layer_ids:
        for name in ("compress_kv", "index_k"):
            error = (run.pools[f"{name}@L{layer}"][0] - want[f"prefill64.L{layer}.{name}"]).abs()
            # Exact only where values are rounded to a grid.
            assert (error > (1e-5 if mode == EXACT else 0)).float().mean() <= 1e-3, name


# Scores tie exactly here in one row, L4's 47 (the release left the order open), so there scores at the selections are
# compared, not indices, and that row's outputs are left out. Measured in all others: attn_out 0, streams mean 1.8e-6,
# index scores and caches equal bit for bit.
@pytest.mark.parametrize("layer", range(10))
def test_layer_by_layer_bf16(layer):
    run, want = from_golden(BF16, layer), golden(BF16)
    same = torch.ones(64, dtype=torch.bool)
    if f"L{layer}.topk" in run.values:
        ours, theirs = run.values[f"L{layer}.topk"][0], want[f"prefill64.L{layer}.topk"].long()
        same = (ours == theirs).all(-1)
        assert same.sum() >= 63
        score = want[f"prefill64.L{layer}.index_score"]
        picked = [score.gather(-1, chosen.clamp(min=0)).sort(-1).values for chosen in (ours, theirs)]
        assert torch.equal(*picked)
        assert torch.equal(run.values[f"L{layer}.index_score"][0], score[:, : 64 if layer > 5 else 32])
    assert difference(run, BF16, f"L{layer}.attn_out")[same].mean() < 1e-5
    assert difference(run, BF16, f"L{layer}.streams")[same].mean() < 2e-5
    if layer in model(BF16).config.kv_source_layer_ids:
        for name in ("compress_kv", "index_k"):
            error = (run.pools[f"{name}@L{layer}"][0].float() - want[f"prefill64.L{layer}.{name}"]).abs()
            assert (error > 0).float().mean() <= 1e-3, name
