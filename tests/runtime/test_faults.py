"""Each wrong wiring that shapes cannot show is caught by the comparison with the golden, where it is made."""

from __future__ import annotations

import pytest
import torch
from faults import (
    ROOMY,
    Changed,
    Edit,
    attend_without_inverse_rope,
    both,
    clamped_on_both_sides,
    edit,
    engram_gate,
    filter_source,
    given,
    index_score_without_relu,
    mix_transposed,
    no_engram,
    reattr,
    rekernel,
    reread,
    reweight,
    right,
    rotated_at_last_token,
    route_with_bias_in_weights,
    select_candidates,
)
from golden_tiny import LOGITS_BOUND, ORACLE, apart, ids, plan, prefill_rows

from dsv41c.kernels.reference.rope import compress_frequencies, window_frequencies
from dsv41c.kernels.step import Step
from dsv41c.runtime.reference import ReferenceExecutor

YARN = {"factor": 16, "original_seq_len": 256, "beta_fast": 32, "beta_slow": 1}
END = 10  # the first difference is after the last layer


def halves_swapped(wo_a: torch.Tensor) -> torch.Tensor:
    return wo_a.unflatten(0, (2, -1)).flip(0).flatten(0, 1)


# What is wrong, how, the largest difference of logits that the golden's authors saw, and the first layer that differs.
FAULTS: list[tuple[str, Edit, float, int]] = [
    ("selections reset at layer 5", reread("attn.attend", [5], topk=None, compress_kv=None), 3.8, 5),
    ("a sublayer's own pre", both(reread("attn.collapse", pre="pre@L{}.attn"),
     reread("ffn.collapse", pre="pre@L{}.ffn")), 3.2, 0),
    ("key owner from the index list", both(given("index_k@L8", torch.zeros(5, 128, 32)),
     reread("attn.index_score", [8], index_k="index_k@L8")), 1.8, 8),
    ("keys of the previous KV source", reread("attn.index_score", [6, 8], index_k="index_k@L4.before"), 3.0, 6),
    ("ratio 1 taken as no branch", reread("attn.attend", range(6, 10), topk=None, compress_kv=None), 4.7, 6),
    ("layer 8 reuses layer 6's selection", reread("attn.attend", [8, 9], topk="topk@L6"), 2.2, 8),
    ("layers 4-5 read layer 2's KV", reread("attn.attend", [4, 5], compress_kv="compress_kv@L2"), 4.0, 4),
    ("no candidates", reread("attn.index_score", [8], candidates=None), 2.2, 8),
    ("candidate filter on the source", filter_source, 2.0, 6),
    ("newest block not pinned", rekernel("select_candidates", select_candidates(pin=False, mean=False)), 1.8, 8),
    ("block mean instead of max", rekernel("select_candidates", select_candidates(pin=True, mean=True)), 2.0, 8),
    ("no relu in the index score", rekernel("index_score", index_score_without_relu), 4.3, 2),
    ("group rotated at its last token", both(rekernel("compress", rotated_at_last_token("compress")),
     rekernel("index_keys", rotated_at_last_token("index_keys"))), 3.9, 2),
    ("no gate in pooling", reweight("compressor_wgate", torch.zeros_like), 3.9, 2),
    ("window one short", reattr("attn.attend", window=15), 3.9, 0),
    ("no inverse rope", rekernel("attend", attend_without_inverse_rope), 6.2, 0),
    ("no sink", reweight("attn_sink", lambda sink: torch.full_like(sink, float("-inf"))), 6.1, 0),
    ("output groups swapped", reweight("wo_a", halves_swapped), 10, 0),
    ("comb transposed", rekernel("mix", mix_transposed), 1.8, 0),
    ("one Sinkhorn iteration", reattr(".mix", iterations=1), 2.5, 0),
    ("mean of streams at the end", both(given("pre@mean", torch.full((1, 64, 4), 0.25)),
     reread("final.collapse", pre="pre@mean")), 0.28, END),
    ("no engram", rekernel("engram_gate", no_engram), 5.9, 1),
    ("engram value before keys", reweight("engram_wkv", lambda wkv: torch.cat([wkv[128:], wkv[:128]])), 6.6, 1),
    ("engram norms joint over streams", rekernel("engram_gate", engram_gate(joint=True, root=True)), 1.8, 1),
    ("engram gate without signed root", rekernel("engram_gate", engram_gate(joint=False, root=False)), 2.4, 1),
    ("identity token map", reweight("engram.token_map", lambda table: torch.arange(len(table))), 6.7, 1),
    ("pad id 0", reattr("engram_ids", pad_id=0), 4.2, 1),
    ("bucket offsets left out", reweight("engram.offsets", torch.zeros_like), 7.0, 1),
    ("multipliers of the other layer", reweight("engram.multipliers", lambda table: table.flip(0)), 6.9, 1),
    ("router bias left out of selection", reweight(".gate_bias", torch.zeros_like), 6.5, 0),
    ("router bias put into weights", rekernel("route", route_with_bias_in_weights), 3.0, 0),
    ("no route scale", reattr("ffn.route", route_scale=1.0), 4.0, 0),
    ("no clamp", both(reattr("ffn.experts", limit=0.0), reattr("ffn.shared_expert", limit=0.0)), 5.0, 0),
    ("gate clamped on both sides", both(rekernel("experts", clamped_on_both_sides("experts")),
     rekernel("shared_expert", clamped_on_both_sides("shared_expert"))), 2.0, 0),
    ("w1 and w3 swapped", both(*(edit(suffix, weights=lambda op: {**op.weights, "w1": op.weights["w3"],
     "w3": op.weights["w1"]}) for suffix in ("ffn.experts", "ffn.shared_expert"))), 6.9, 0),
    ("no YaRN", reweight("rope.compress", lambda _: window_frequencies(16, 160000)), 4.1, 2),
    ("base theta on compressed layers", reweight("rope.compress", lambda _: compress_frequencies(16, 10000, **YARN)),
     3.3, 2),
    ("YaRN on window layers", reweight("rope.window", lambda _: compress_frequencies(16, 160000, **YARN)), 4.9, 0),
    ("top-k 7", reattr("select_topk", k=7), 3.4, 2),
    ("one candidate block fewer", reattr("select_candidates", blocks=3), 1.8, 8),
]  # fmt: skip


def compare(change: Edit) -> tuple[float, int | None]:
    """The comparison of the goldens on an edited model: largest difference of logits, first layer past its bound."""
    model, rows = change(right()), prefill_rows()
    manifest = plan(ORACLE, ROOMY).manifest.model_copy(update={"ops": list(model.ops)})
    executor = ReferenceExecutor(manifest, model.weights, kernels=Changed(model.kernels))
    values = executor.run(Step(torch.tensor([0]), torch.tensor([0]), 64), {"ids": torch.tensor([ids()]), **model.feeds})
    worst = apart(values["logits"][0], rows["logits"])
    for layer in range(10):
        if apart(values[f"streams@L{layer}.ffn"][0], rows[f"L{layer}.streams"]) > LOGITS_BOUND:
            return worst, layer
    return worst, END if worst > LOGITS_BOUND else None


def test_the_right_model_passes() -> None:
    worst, layer = compare(lambda model: model)
    assert worst <= LOGITS_BOUND and layer is None


@pytest.mark.parametrize(("change", "seen", "first"), [row[1:] for row in FAULTS], ids=[row[0] for row in FAULTS])
def test_fault_is_caught(change: Edit, seen: float, first: int) -> None:
    worst, layer = compare(change)
    assert worst > 0.1
    assert layer == first
    assert seen / 1.25 <= worst <= seen * 1.25
