"""Ops at the widths of Flash, where small models cannot show what goes wrong: each against the obvious form in f64."""

import torch

from dsv41c.kernels.registry import kernels_for
from dsv41c.kernels.step import Step

K = kernels_for("cpu")
HEADS, CHANNELS, WINDOW, TOPK = 64, 512, 128, 512


def test_attention_across_the_ring_and_a_full_selection():
    """The ring wraps at 1216, within the call, and 505 selected of 600 groups join the window's rows."""
    torch.manual_seed(0)
    start, tokens, groups = 1214, 5, 600
    query = torch.randn(1, tokens, HEADS, CHANNELS)
    rows, far = torch.randn(1, start + tokens, CHANNELS), torch.randn(1, groups, CHANNELS)
    sink = torch.randn(HEADS)
    ring = torch.full((2, WINDOW, CHANNELS), float("nan"))
    for position in range(start - WINDOW, start):
        ring[0, position % WINDOW] = rows[0, position]
    topk = torch.stack([torch.randperm(groups)[:TOPK].sort().values for _ in range(tokens)])[None]
    topk[0, :, -7:] = -1
    step = Step(torch.tensor([0]), torch.tensor([start]), start + tokens)
    got = K.attend(
        step, query, ring, rows[:, start:], torch.zeros(32), sink,
        compress_kv=far.expand(2, -1, -1), topk=topk, window=WINDOW, ratio=2, rope_dim=64,
    )  # fmt: skip
    for t in range(tokens):
        near = rows[0, start + t - WINDOW + 1 : start + t + 1]
        seen = torch.cat([near, far[0, topk[0, t, :-7]]]).double()
        score = query[0, t].double() @ seen.T * CHANNELS**-0.5
        weight = torch.cat([score, sink.double()[:, None]], 1).softmax(1)[:, :-1]
        assert (got[0, t].double() - weight @ seen).abs().max() < 1e-5


def test_output_groups_are_eight_heads_each():
    """Group g takes heads 8g to 8g+7 and fills columns 1024g on; a head alone shows where it goes."""
    torch.manual_seed(0)
    wo_a, wo_b = torch.randn(8 * 1024, 8 * CHANNELS) / 64, torch.randn(32, 8 * 1024) / 32
    for head in (0, 7, 8, 63):
        attended = torch.zeros(1, 1, HEADS, CHANNELS)
        attended[0, 0, head] = torch.randn(CHANNELS)
        got = K.output(attended, wo_a, wo_b, groups=8, activation_quant="none")[0, 0]
        group, place = divmod(head, 8)
        rows = slice(1024 * group, 1024 * (group + 1))
        low_rank = wo_a[rows, CHANNELS * place : CHANNELS * (place + 1)].double() @ attended[0, 0, head].double()
        assert (got.double() - wo_b[:, rows].double() @ low_rank).abs().max() < 1e-5
