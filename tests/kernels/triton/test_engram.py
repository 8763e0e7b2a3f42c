"""Embedding and engram kernels against the reference."""

import pytest
import torch

from dsv41c.kernels.reference import embed as reference_embed
from dsv41c.kernels.reference import engram as reference
from dsv41c.kernels.reference.encodings import dense, encode_fp8_32x32, encode_fp8_row32
from dsv41c.kernels.step import Step
from dsv41c.kernels.triton import embed, engram


def generator(seed):
    return torch.Generator().manual_seed(seed)


def normal(seed, *shape, scale=1.0, dtype=torch.bfloat16):
    return (torch.randn(shape, generator=generator(seed)) * scale).to(dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("streams", [1, 3, 4])
def test_embed(streams, dtype):
    ids = torch.randint(0, 50, (2, 3), generator=generator(0))
    table = normal(1, 50, 72, dtype=dtype)
    found, wanted = (kernel(ids, table, streams=streams) for kernel in (embed.embed, reference_embed.embed))
    assert all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(found, wanted, strict=True))


@pytest.mark.parametrize("dead", [False, True])
@pytest.mark.parametrize("tokens", [1, 2, 3, 17])
@pytest.mark.parametrize("size", [2, 3, 4])
def test_ids(size, tokens, dead):
    """Whatever the history holds, before the start of a sequence too; 64-bit products that wrap around as well."""
    random, layers, heads = generator(tokens), 2, 3
    ids = torch.randint(0, 64, (3, tokens), generator=random)
    if dead:
        ids[torch.rand(ids.shape, generator=random) < 0.2] = reference.DEAD
    histories = torch.randint(-1, 64, (4, size - 1), generator=random).repeat(2, 1, 1)
    multipliers = torch.randint(1, 2**56, (layers, size), generator=random) * 2 + 1
    primes = torch.randint(60, 600, (layers, (size - 1) * heads), generator=random)
    constants = (torch.randperm(64, generator=random), multipliers, primes, primes.cumsum(1) - primes)
    step = Step(torch.tensor([2, 0, 1]), torch.tensor([0, 1, 9]), 64)
    found = engram.engram_ids(step, ids, histories[0], *constants, pad_id=2)
    wanted = reference.engram_ids(step, ids, histories[1], *constants, pad_id=2)
    assert torch.equal(found[0], wanted[0])
    assert torch.equal(histories[0], histories[1])
    assert found[1] is not None and found[1].data_ptr() == histories[0].data_ptr()


class Dense:
    """A table of plain rows."""

    def __init__(self, values):
        self.values = values

    def rows(self, ids):
        return self.values[ids]


@pytest.mark.parametrize("width", [32, 96])
@pytest.mark.parametrize("pinned", [False, True])
def test_rows_of_a_table_that_kernels_read(pinned, width):
    """With codes and scales apart, as on a device, and behind each other in every row, as in pinned memory."""
    packed = encode_fp8_row32(normal(0, 300, width, dtype=torch.float32))
    packed.scale[5] = 0  # 2^-127, which fp32 and bf16 hold as subnormals
    parts = (packed.codes.view(torch.uint8), packed.scale)
    table = engram.DeviceTable(*(torch.cat(parts, dim=1).split((width, width // 32), dim=1) if pinned else parts))
    assert table.codes.is_contiguous() != pinned
    plain = Dense(dense(packed, torch.bfloat16))
    ids = torch.randint(0, 300, (2, 3, 2, 6), generator=generator(1))
    ids[0, 0] = 5
    for number in range(2):
        found = engram.engram_rows(ids, table, index=number)
        assert torch.equal(found, reference.engram_rows(ids, plain, index=number))
    assert torch.equal(table.rows(ids), plain.rows(ids))
    assert torch.equal(engram.engram_rows(ids, plain, index=1), found)


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize(("batch", "tokens"), [(1, 1), (1, 2), (3, 3)])
def test_gate(batch, tokens, packed):
    streams, dim, width = 2, 24, 64
    h, rows = normal(0, batch, tokens, streams, dim), normal(1, batch, tokens, width)
    if tokens > 1:
        rows[0, 0] = 0  # keys of zeros: the dot is +0, or -0
        h[0, 1] = 0
    matrix = normal(2, (streams + 1) * dim, width, scale=0.1)
    wkv = encode_fp8_32x32(matrix.float()) if packed else matrix
    weights = (normal(3, streams, dim, dtype=torch.float32), normal(4, streams, dim, dtype=torch.float32))
    options = {"eps": 1e-20, "activation_quant": "none"}
    found = engram.engram_gate(h, rows, wkv, *weights, **options)
    wanted = reference.engram_gate(h, rows, wkv, *weights, **options)
    # Measured: streams equal, gates 2e-7 apart. A projection rounded the other way moves a gate by about 1e-3.
    assert torch.allclose(found[0].float(), wanted[0].float(), rtol=2.0**-7, atol=2.0**-7)
    assert torch.allclose(found[1], wanted[1], atol=2e-3)


def test_gate_of_rounded_inputs():
    h, rows = normal(0, 1, 2, 2, 24), normal(1, 1, 2, 64)
    wkv = encode_fp8_32x32(normal(2, 72, 64, dtype=torch.float32, scale=0.1))
    weights = (torch.ones(2, 24), torch.ones(2, 24))
    found, wanted = (
        gate(h, rows, wkv, *weights, eps=1e-20, activation_quant="fp8")
        for gate in (engram.engram_gate, reference.engram_gate)
    )
    assert torch.allclose(found[0].float(), wanted[0].float(), rtol=2.0**-7, atol=2.0**-7)
