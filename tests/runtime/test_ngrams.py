"""The hash of n-grams on the host against the op: every order, dead tokens, starts of sequences, products that wrap."""

import pytest
import torch

from dsv41c.kernels.reference.engram import DEAD, engram_ids
from dsv41c.kernels.step import Step
from dsv41c.runtime.ngrams import CONSTANTS, NgramHash

LAYERS, HEADS, TOKENS = 2, 3, 50


def constants(size, seed):
    drawn = torch.Generator().manual_seed(seed)

    def integers(low, high, *shape):
        return torch.randint(low, high, shape, generator=drawn)

    columns = HEADS * (size - 1)
    made = (
        integers(0, 17, TOKENS),
        integers(-(1 << 62), 1 << 62, LAYERS, size),  # products leave 64 bits
        integers(2, 1000, LAYERS, columns),
        integers(0, 1 << 40, LAYERS, columns),
    )
    return dict(zip(CONSTANTS, made, strict=True)), integers


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("tokens", [1, 2, 7])
def test_rows_are_those_of_the_op(size, tokens):
    known, integers = constants(size, 10 * size + tokens)
    positions = [0, 1, 2, 30]
    ids = integers(-1, TOKENS, len(positions), tokens)
    ids[-1, -1] = -1
    history = integers(-1, 17, len(positions), size - 1)
    step = Step(torch.arange(len(positions)), torch.tensor(positions), 40)
    want, left = engram_ids(step, ids, history.clone(), *known.values(), pad_id=5)
    hashing = NgramHash(known, 5)
    assert hashing.before == size - 1
    got = hashing.rows(ids.tolist(), history.tolist(), positions)
    assert torch.equal(torch.from_numpy(got), want)
    fresh = [
        [*old, *hashing.compressed(new)][1 - size :] for old, new in zip(history.tolist(), ids.tolist(), strict=True)
    ]
    started = [row for row, position in enumerate(positions) if position >= size - 1]  # the op also ends older ones
    assert torch.equal(torch.tensor(fresh)[started], left[started])
    assert DEAD in left[started]
