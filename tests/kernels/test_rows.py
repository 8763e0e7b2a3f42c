"""Packed rows of session caches: bit for bit the values of the rounded floats, at the bytes a row that were meant."""

import pytest
import torch

from dsv41c.kernels.encodings import CACHE_ROWS
from dsv41c.kernels.reference.fake_quant import fake_fp4, fake_fp4_e4m3, fake_fp8
from dsv41c.kernels.reference.rows import pack, stored, unpack

ROUND = {"window_kv": fake_fp8, "compress_kv": fake_fp4_e4m3, "index_k": fake_fp4}
KINDS = tuple(ROUND)
WRITTEN = ("compress_kv", "index_k")  # appended as they are rounded; the ring takes rounded rows
INF, NAN = float("inf"), float("nan")


def rows_of_many_sizes():
    """f32 [rows, 64]: random blocks at every exponent, and each size at, below and above what makes the next scale."""
    generator = torch.Generator().manual_seed(11)
    plain = torch.randn(4000, 64, generator=generator)
    scaled = plain[:2550] * 2.0 ** torch.arange(-140, 115).repeat(10)[:, None]
    edges = []
    for exponent in (*range(-149, -120), *range(-34, -10), -9, -8, -1, 0, 1, 5, 60, *range(110, 128)):
        for top in (1.0, 1.75, 1.5, 1.9375, 1.96875, 1.59375, 1.328125, 1.1875):
            largest = torch.tensor(top * 2.0**exponent, dtype=torch.float32)
            for edge in (largest, largest.nextafter(torch.tensor(0.0)), largest.nextafter(torch.tensor(INF))):
                if edge.isfinite():
                    edges.append(edge * torch.linspace(-1, 1, 64))
    signs = torch.tensor([0.0, -0.0] * 32)
    tiny = torch.stack([signs, -signs, signs + 1e-45, signs - 1e-45, torch.full((64,), 1e-4), torch.full((64,), -1e-5)])
    return torch.cat([plain, scaled, torch.stack(edges), tiny])


ROWS = rows_of_many_sizes()


def packed(kind, rows):
    """Packed rows, from rows that are not rounded yet."""
    return pack(kind, fake_fp8(rows)) if kind == "window_kv" else stored(kind, rows, "packed")


def same_bits(ours, theirs):
    assert ours.dtype == theirs.dtype
    whole = torch.int32 if ours.dtype == torch.float32 else torch.int16
    return torch.equal(ours.contiguous().view(whole), theirs.contiguous().view(whole))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", KINDS)
def test_packed_is_the_rounded_value_bit_for_bit(kind, dtype):
    rows = ROWS.to(dtype)
    assert same_bits(unpack(kind, packed(kind, rows)).to(dtype), ROUND[kind](rows))
    if kind in WRITTEN:
        assert same_bits(stored(kind, rows, "reference"), ROUND[kind](rows))
        assert stored(kind, rows, "none") is rows
    assert unpack(kind, rows) is rows


def test_a_largest_magnitude_that_fell_to_half_the_scale():
    half = torch.full((1, 32), 224.5)  # rounds to 224, which half the scale holds as 448
    assert fake_fp8(half)[0, 0] == 224
    assert pack("window_kv", half)[0, -1] == 127 and pack("window_kv", fake_fp8(half))[0, -1] == 126


@pytest.mark.parametrize("scale", [-22, -21, -1, 0, 1, 60, 119, 120, 127])
def test_every_fp8_code_under_every_kind_of_scale_survives_the_ring(scale):
    codes = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).to(torch.float32)
    codes = codes[codes.isfinite()] * 2.0**scale
    rows = fake_fp8(torch.cat([codes[:, None], codes[:, None].expand(-1, 31)[torch.randperm(len(codes))]], dim=1))
    assert same_bits(unpack("window_kv", pack("window_kv", rows)), rows)


@pytest.mark.parametrize("kind", KINDS)
def test_infinities_are_what_they_are_in_the_rounded_row(kind):
    rows = ROWS[::50].clone()
    rows[:, 5], rows[::2, 6], rows[:, 40] = INF, -INF, -INF
    rounded = ROUND[kind](rows)
    assert same_bits(unpack(kind, packed(kind, rows)), rounded)
    huge = torch.full((1, 32), torch.finfo(torch.float32).max)  # 255.99 * 2^120, which rounds to 256 * 2^120
    huge[0, 1:] = torch.linspace(-1, 1, 31) * 2.0 ** torch.arange(97, 128)
    assert same_bits(unpack(kind, packed(kind, huge)), ROUND[kind](huge))
    assert ROUND[kind](huge)[0, 0] == (2688 if kind == "compress_kv" else INF)  # E4M3 scales end at 448


@pytest.mark.parametrize("kind", KINDS)
def test_nan_stays_in_its_block_and_is_not_hidden(kind):
    rows = torch.ones(2, 64)
    rows[0, 3], rows[1, 40] = NAN, -NAN
    read, rounded = unpack(kind, packed(kind, rows)), ROUND[kind](rows)
    block = CACHE_ROWS[kind].block[1]
    assert read[rounded.isnan()].isnan().all()
    for row, start in ((0, 0), (1, 40 // block * block)):
        outside = torch.ones(64, dtype=torch.bool)
        outside[start : start + block] = False
        assert torch.equal(read[row, outside], rounded[row, outside])
        if kind != "window_kv":  # E2M1 has no NaN: the scale says it for the block
            assert read[row, start : start + block].isnan().all()
    if kind != "index_k":
        assert torch.equal(read.isnan(), rounded.isnan())


@pytest.mark.parametrize(("kind", "channels", "size"), [
    ("window_kv", 512, 512 + 16), ("compress_kv", 512, 256 + 32), ("index_k", 128, 64 + 4),
])  # fmt: skip
def test_bytes_of_a_row(kind, channels, size):
    encoding = CACHE_ROWS[kind]
    assert encoding.bytes((channels,)) == size and encoding.columns(size) == channels
    rows = pack(kind, torch.ones(3, 2, channels))
    assert rows.dtype == torch.uint8 and rows.shape == (3, 2, size)
    assert encoding.columns(size + 1) is None
    assert unpack(kind, rows[:, :0]).shape == (3, 0, channels)


@pytest.mark.parametrize("kind", KINDS)
def test_bytes_that_nobody_wrote(kind):
    size = CACHE_ROWS[kind].bytes((64,))
    assert unpack(kind, torch.full((2, size), 255, dtype=torch.uint8)).isnan().all()
    assert same_bits(unpack(kind, torch.zeros(2, size, dtype=torch.uint8)), torch.zeros(2, 64))


def test_the_bytes_of_worked_rows():
    """Codes first, low nibble first, then scales: 6 * 2^0 and -0.5 as E2M1; 448 and 1 as E4M3."""
    row = torch.zeros(32)
    row[:3] = torch.tensor([6.0, -0.5, -0.0])
    assert pack("index_k", row).tolist() == [0x97, 0x08, *[0] * 14, 127]
    assert pack("compress_kv", row).tolist() == [0x97, 0x08, *[0] * 14, 0x38, 0x01]
    row[:3] = torch.tensor([448.0, 1.0, -0.0])
    assert pack("window_kv", row).tolist() == [0x7E, 0x38, 0x80, *[0] * 29, 127]
