"""The fused kinds at decode against their composition of reference kernels.

Mixing coefficients and logits are f32 and agree to about 1e-7. The rest is bf16: equal, or 3e-3 apart where sums in
another order round to the other side.
"""

from dataclasses import replace

import pytest
import torch

from dsv41c.kernels.reference.encodings import Stacked, dense
from dsv41c.kernels.reference.moe import route
from dsv41c.kernels.reference.window import window_store
from dsv41c.kernels.registry import kernels_for
from dsv41c.kernels.triton import decode_ffn, fused, prefill_fused
from dsv41c.kernels.triton.decode_input import SublayerInput

from .decode_cases import Maker, Widths, ffn_case, input_case, logits_case, output_case, step_of

W = 16
WIDTHS = Widths()
REFERENCE = kernels_for("cuda", "static")
BOUNDS = {torch.float32: 2e-6, torch.bfloat16: 5e-3}
RING = 1  # of what `attention_output` reads

EDGES = [
    ([0], 0),
    ([1], 0),
    ([W - 1], 0),
    ([W], 0),
    ([3 * W + 5], 0),
    ([W, 0], 0),
    ([3 * W + 5, 0, W - 1], 0),
    ([1, W, 3 * W + 5], 1),
    ([W - 1], 2),
    ([0, 1, W - 1, W, 3 * W + 5, 2, 9], 0),
    ([3, W, 1, 0, 3 * W + 5, 2, 9, W - 1], 1),  # more than a program takes along
]


def bits(rows):
    """Rows as integers: NaN compares like any number."""
    return rows if rows.dtype == torch.uint8 else rows.view(torch.int16)


def cloned(values):
    return [value.clone() if isinstance(value, torch.Tensor) else value for value in values]


def both(name, step, given, named):
    """The writes of the native kernel and of the reference, as tuples."""
    results = (getattr(kernels, name)(step, *cloned(given), **named) for kernels in (fused, REFERENCE))
    return [result if isinstance(result, tuple) else (result,) for result in results]


def check(name, step, given, named):
    """Native and reference agree; the native kernel's writes."""
    ours, expected = both(name, step, given, named)
    for index, (mine, theirs) in enumerate(zip(ours, expected, strict=True)):
        assert mine.shape == theirs.shape
        assert mine.dtype == theirs.dtype
        if name == "attention_output" and index == 0:
            assert torch.equal(bits(mine), bits(theirs))
            continue
        assert mine.isfinite().all()
        error = (mine.double() - theirs.double()).norm() / theirs.double().norm()
        assert error <= BOUNDS[mine.dtype], (name, index, error)
    return ours


# Fused input of attention.


@pytest.mark.parametrize(("positions", "padding"), EDGES)
def test_attention_input(positions, padding):
    given, attrs = input_case(Maker(1), WIDTHS, len(positions) + padding)
    check("attention_input", step_of(positions, padding=padding), given, attrs)


@pytest.mark.parametrize("kv_cache", ["none", "packed"])
@pytest.mark.parametrize(
    "widths",
    [
        replace(WIDTHS, dim=96, heads=3, head_dim=64, rope_dim=64),
        replace(WIDTHS, dim=160, low=32, streams=2),
        replace(WIDTHS, low=1536, heads=1),  # one row of wq_b is all that a tile would take: rope wants two
    ],
    ids=["odd", "narrow", "wide"],
)
def test_widths_of_attention_input(widths, kv_cache):
    given, attrs = input_case(Maker(2), widths, 2, kv_cache)
    check("attention_input", step_of([70, 3]), given, attrs)


def test_every_code_and_scales_near_and_far():
    make = Maker(3)
    given, attrs = input_case(make, WIDTHS, 1)
    for index in (7, 9, 11):  # wq_a, wq_b, wkv
        codes, scale = given[index].codes, given[index].scale
        assert codes.unique().numel() == 254  # all but NaN
        given[index] = given[index]._replace(scale=make.integers(97, 158, *scale.shape, dtype=torch.uint8))
    given[7].scale[0] = 0
    check("attention_input", step_of([5]), given, attrs)
    given[11].scale.fill_(0)
    ours = check("attention_input", step_of([5]), given, attrs | {"window_rows_kv_cache": "none"})
    assert 0 < ours[-1].abs().max() < 1e-20


def test_large_activations_and_codes():
    given, attrs = input_case(Maker(4), WIDTHS, 2)
    given[5] = given[5] * 60
    for index in (7, 9, 11):
        given[index] = given[index]._replace(codes=given[index].codes & 0x80 | 0x7E)  # +-448
    ours = check("attention_input", step_of([5, 9]), given, attrs)
    assert ours[3].abs().max() > 100


def test_f32():
    given, attrs = input_case(Maker(30), WIDTHS, 3)
    given[0] = given[0].float()
    check("attention_input", step_of([5, 9, 0]), given, attrs | {"window_rows_kv_cache": "none"})


# Fused output of attention.


def poison(step, given, named):
    """NaN wherever no session may look: other slots, places of the ring not written yet, invisible groups."""
    window = named["attend_window"]
    pools = [(given[RING], lambda p: {q % window for q in range(max(0, p - window + 1), p)})]
    if "compress_kv" in named:
        pools.append((named["compress_kv"], lambda p: set(range((p + 1) // named["attend_ratio"]))))
    for pool, seen in pools:
        hidden = torch.ones(pool.shape[:2], dtype=torch.bool)
        for slot, position in zip(step.slots.tolist(), step.positions.tolist(), strict=True):
            hidden[slot, [row for row in seen(position) if row < pool.shape[1]]] = False
        pool[hidden] = 255 if pool.dtype == torch.uint8 else float("nan")


def check_output(step, given, named):
    """As `check`; the ring is what `window_store` makes of it, and no other pool changes."""
    poison(step, given, named)
    pool = named.get("compress_kv")
    before = None if pool is None else pool.clone()
    ring, _ = check("attention_output", step, given, named)
    stored = window_store(step, given[2], given[RING].clone(), window=named["attend_window"])
    assert torch.equal(bits(ring), bits(stored))
    assert before is None or torch.equal(bits(pool), bits(before))
    return ring


@pytest.mark.parametrize(
    ("positions", "padding", "ratio", "packed"),
    [(*edge, 2 - number % 2, number % 4 < 2) for number, edge in enumerate(EDGES)]
    + [(*EDGES[7], 0, False), (*EDGES[7], 0, True), (*EDGES[7], 1, False), (*EDGES[7], 2, False)],
)
def test_attention_output(positions, padding, ratio, packed):
    make, batch = Maker(5), len(positions) + padding
    given, named = output_case(make, WIDTHS, batch, ratio=ratio, selected=8, capacity=60, packed=packed)
    step = step_of(positions, padding=padding)
    ring = check_output(step, given, named)
    # Padding rows write the spare slot only, each session its own row.
    changed = (bits(ring) != bits(given[RING])).any(-1).nonzero().tolist()
    assert {tuple(place) for place in changed} <= {
        (slot, position % W) for slot, position in zip(step.slots.tolist(), step.positions.tolist(), strict=True)
    }


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    "widths",
    [replace(WIDTHS, heads=20, groups=4, dim=96), replace(WIDTHS, heads=2, groups=1, head_dim=64, rank=96, dim=32)],
    ids=["many heads", "few"],
)
def test_widths_of_attention_output(widths, packed):
    given, named = output_case(Maker(6), widths, 2, ratio=2, selected=40, capacity=60, packed=packed)
    check_output(step_of([100, 33]), given, named)


@pytest.mark.parametrize("window", [32, 40])
def test_windows_of_several_splits(window):
    widths = replace(WIDTHS, window=window)
    given, named = output_case(Maker(7), widths, 2, ratio=1, selected=3, capacity=120, packed=window == 40)
    check_output(step_of([window - 1, 3 * window]), given, named)


@pytest.mark.parametrize("packed", [False, True])
def test_nothing_selected(packed):
    given, named = output_case(Maker(8), WIDTHS, 2, ratio=1, selected=8, capacity=60, packed=packed)
    named["topk"].fill_(-1)
    check_output(step_of([50, 0]), given, named)
    named["topk"] = named["topk"][:, :, :0]
    check_output(step_of([50, 0]), given, named)


def test_sinks_that_outweigh_everything():
    given, named = output_case(Maker(9), WIDTHS, 1, ratio=0, selected=0, capacity=1, packed=False)
    given[7].copy_(torch.tensor([100.0, -100.0, 0.0, 30.0]))
    check("attention_output", step_of([20]), given, named)


@pytest.mark.parametrize("packed", [False, True])
def test_ring_keeps_infinities_and_nan(packed):
    given, named = output_case(
        Maker(28), replace(WIDTHS, head_dim=128), 1, ratio=0, selected=0, capacity=1, packed=packed
    )
    rows = given[2]
    rows[..., 3], rows[..., 40], rows[..., 41], rows[..., 70] = float("inf"), float("-inf"), 3e38, float("nan")
    ours, expected = both("attention_output", step_of([5]), given, named)
    assert torch.equal(bits(ours[0]), bits(expected[0]))


# Experts.


def test_ffn_of_one_session():
    given, attrs = ffn_case(Maker(10), WIDTHS, 1, limit=2.0)
    assert given[8].codes.unique().numel() == 256
    check("ffn", step_of([3]), given, attrs)


def test_ffn_without_limit():
    given, attrs = ffn_case(Maker(11), replace(WIDTHS, dim=96, streams=2, active=1), 2, limit=0.0)
    check("ffn", step_of([3], padding=1), given, attrs)


def test_ffn_of_many_sessions():
    given, attrs = ffn_case(Maker(29), replace(WIDTHS, active=1), 9)
    check("ffn", step_of([3] * 8, padding=1), given, attrs)


def test_ffn_of_sessions_with_one_expert():
    """Pairs by expert: a bias makes all sessions choose expert 4."""
    given, attrs = ffn_case(Maker(12), replace(WIDTHS, active=1), 3)
    given[7][4] = 10.0
    given[6] = given[6].float()  # a gate stored as f32
    check("ffn", step_of([3, 9, 0]), given, attrs)


def test_ffn_of_scales_near_and_far():
    make = Maker(13)
    given, attrs = ffn_case(make, replace(WIDTHS, active=1), 1)
    for index in (8, 9, 10):
        scale = make.integers(112, 130, *given[index].scale.shape, dtype=torch.uint8)
        scale[:, :5] = 0
        given[index] = Stacked(given[index].codes, scale)
    check("ffn", step_of([3]), given, attrs)


@pytest.mark.parametrize("batch", [1, 3, 9])
@pytest.mark.parametrize("kind", ["random", "ties", "bias", "far"])
def test_router(kind, batch):
    """Ids and weights as `route` has them: ties to the lower id, and a bias that takes part in the choice only."""
    make, active = Maker(14), 6
    given, attrs = ffn_case(make, replace(WIDTHS, experts=27, inter=32), batch)
    gate, bias = given[6], given[7]
    if kind == "ties":
        gate[5:] = gate[4]
        bias[4:] = bias.max() + 1
    elif kind == "bias":
        bias[[26, 0, 13, 7]] = torch.tensor([9.0, 9.5, -9.0, 9.25])
    elif kind == "far":
        gate *= torch.logspace(-4, 2, 27)[:, None]  # scores of softplus from its linear end down to log 2
    attrs |= {"route_active": active}
    mix = (*given[2:5], attrs)
    state = SublayerInput(given[0], given[1], given[5], 1e-20, mix=mix, planes4=True)
    shared = [weight._replace(codes=weight.codes[:1]) for weight in (given[11], given[13])]
    chosen = decode_ffn._route(state, gate, bias, *shared, attrs)
    weights, ids = route(
        state.normed, gate, bias, active=active, score_func="sqrtsoftplus", gate_temp=1.0, route_scale=1.5
    )
    assert torch.equal(chosen.ids, ids[:, 0])
    assert torch.allclose(chosen.weights, weights[:, 0], rtol=2e-6, atol=0)
    if batch > 1:
        assert torch.equal(chosen.order.long(), chosen.ids.flatten().argsort(stable=True))


# Logits.


@pytest.mark.parametrize("batch", [1, 3, 4])
def test_logits(batch):
    given, attrs = logits_case(Maker(15), replace(WIDTHS, vocab=27, dim=96), batch)
    check("logits", step_of([3] * batch), given, attrs)
    given[3] = given[3].float()
    check("logits", step_of([3] * batch), given, attrs)


# Dispatch: what decode kernels do not take goes to batched ones, or to the reference.


def refused(*_, **__):
    raise AssertionError("another kernel should have been called")


@pytest.fixture
def no_decode(monkeypatch):
    for name in ("attention_input", "attention_output"):
        monkeypatch.setattr(fused.decode_attention, name, refused)
    for name in ("ffn", "logits"):
        monkeypatch.setattr(fused.decode_ffn, name, refused)


def two_tokens(given):
    """Arguments of one token for each of two sessions, as two tokens of one session."""
    return [
        value.reshape(1, 2, *value.shape[2:])
        if isinstance(value, torch.Tensor) and value.shape[:2] == (2, 1)
        else value
        for value in given
    ]


def test_two_tokens(no_decode):
    step = step_of([W - 1])
    given, attrs = input_case(Maker(16), WIDTHS, 2)
    check("attention_input", step, two_tokens(given), attrs)
    given, named = output_case(Maker(17), WIDTHS, 2, ratio=1, selected=3, capacity=40, packed=False)
    named["topk"] = named["topk"].reshape(1, 2, -1)
    check("attention_output", step, two_tokens(given), named)
    given, attrs = ffn_case(Maker(18), WIDTHS, 2)
    check("ffn", step, two_tokens(given), attrs)
    given, attrs = logits_case(Maker(19), WIDTHS, 2)
    check("logits", step, two_tokens(given), attrs)


def test_weights_that_are_not_packed(no_decode):
    given, attrs = input_case(Maker(20), WIDTHS, 1)
    given[9] = dense(given[9], torch.bfloat16)
    check("attention_input", step_of([3]), given, attrs)
    given, named = output_case(Maker(21), WIDTHS, 1, ratio=0, selected=0, capacity=1, packed=True)
    given[9] = dense(given[9], torch.bfloat16)
    check("attention_output", step_of([3]), given, named)
    given, attrs = ffn_case(Maker(22), WIDTHS, 1)
    given[12] = dense(given[12], torch.bfloat16)
    check("ffn", step_of([3]), given, attrs)


def test_experts_that_are_not_packed(no_decode, monkeypatch):
    monkeypatch.setattr(prefill_fused, "ffn_rows", refused)
    given, attrs = ffn_case(Maker(23), WIDTHS, 1)
    given[9] = [dense(matrix, torch.bfloat16) for matrix in given[9]]
    check("ffn", step_of([3]), given, attrs)


@pytest.mark.parametrize(
    "widths", [replace(WIDTHS, head_dim=96), replace(WIDTHS, streams=3)], ids=["channels", "streams"]
)
def test_widths_that_are_not_powers_of_two(no_decode, widths):
    given, attrs = input_case(Maker(25), widths, 1)
    check("attention_input", step_of([3]), given, attrs)
    given, named = output_case(Maker(26), widths, 1, ratio=1, selected=3, capacity=60, packed=True)
    check("attention_output", step_of([20]), given, named)
    if widths.streams == 3:
        given, attrs = ffn_case(Maker(27), widths, 1)
        check("ffn", step_of([3]), given, attrs)


def test_many_sessions(no_decode):
    batch = fused.MOST_SESSIONS + 1
    given, attrs = logits_case(Maker(24), WIDTHS, batch)
    check("logits", step_of([3] * batch, spare=40), given, attrs)
