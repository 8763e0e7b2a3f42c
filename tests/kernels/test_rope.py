"""Rope: worked ramp values of the release, and rotation against complex numbers."""

import cmath
import math

import pytest
import torch

from dsv41c.kernels.reference.rope import apply_rope, compress_frequencies, window_frequencies, yarn_range

RELEASE = {"factor": 16.0, "original_seq_len": 65536, "beta_fast": 32.0, "beta_slow": 1.0}


def test_release_ramp():
    """Raw ends 15.45 and 24.71, so 15 and 25; worked ratios of new to old frequency."""
    assert yarn_range(64, 160000.0, 65536, 32.0, 1.0) == (15, 25)
    ratio = compress_frequencies(64, 160000.0, **RELEASE) / window_frequencies(64, 160000.0)
    worked = {0: 1.0, 15: 1.0, 16: 0.90625, 20: 0.53125, 24: 0.15625, 25: 0.0625, 31: 0.0625}
    for index, expected in worked.items():
        assert ratio[index].item() == pytest.approx(expected, rel=1e-6)


def test_ramp_ends_are_clamped():
    assert yarn_range(16, 160000.0, 4, 32.0, 1.0)[0] == 0
    assert yarn_range(4, 2.0, 65536, 32.0, 1.0)[1] == 3


def test_a_step_where_the_ramp_has_no_width():
    frequencies = compress_frequencies(8, 160000.0, factor=4.0, original_seq_len=64, beta_fast=1e9, beta_slow=1e9)
    ratio = frequencies / window_frequencies(8, 160000.0)
    assert ratio.tolist() == [1.0, 0.25, 0.25, 0.25]


def test_window_frequencies():
    frequencies = window_frequencies(16, 10000.0)
    assert frequencies.dtype == torch.float32
    assert frequencies.tolist() == pytest.approx([10000.0 ** (-2 * i / 16) for i in range(8)], rel=1e-6)


@pytest.mark.parametrize("heads", [(), (3,)])
def test_rotates_adjacent_pairs_of_the_last_channels(heads):
    x = torch.randn(2, 5, *heads, 12, generator=torch.Generator().manual_seed(0))
    positions = torch.tensor([[0, 1, 2, 3, 4], [100, 101, 102, 103, 104]])
    frequencies = window_frequencies(8, 100.0)
    out = apply_rope(x, positions, frequencies, 8)
    assert torch.equal(out[..., :4], x[..., :4])
    for b in range(2):
        for t in range(5):
            before, after = x[b, t].reshape(-1, 12), out[b, t].reshape(-1, 12)
            for h in range(before.shape[0]):
                for pair in range(4):
                    turn = cmath.exp(1j * int(positions[b, t]) * 100.0 ** (-2 * pair / 8))
                    want = complex(*before[h, 4 + 2 * pair : 6 + 2 * pair].tolist()) * turn
                    assert complex(*after[h, 4 + 2 * pair : 6 + 2 * pair].tolist()) == pytest.approx(want, abs=2e-5)


def test_undo_and_dtype():
    x = torch.randn(1, 4, 2, 16, generator=torch.Generator().manual_seed(1))
    positions, frequencies = torch.arange(7, 11)[None], window_frequencies(16, 10000.0)
    back = apply_rope(apply_rope(x, positions, frequencies, 16), positions, frequencies, 16, undo=True)
    assert (back - x).abs().max() < 1e-6
    assert apply_rope(x.bfloat16(), positions, frequencies, 16).dtype == torch.bfloat16


def test_first_position_is_unchanged():
    x = torch.randn(1, 1, 8)
    assert torch.equal(apply_rope(x, torch.zeros(1, 1, dtype=torch.long), window_frequencies(8, 1e4), 8), x)
    assert math.isclose(window_frequencies(8, 1e4)[0].item(), 1.0)
