"""Rows of codes and scales, looked up, are what the encoding's own decoder gives."""

import torch

from dsv41c.kernels.reference.encodings import Packed, dense
from dsv41c.runtime.weights.row_form import looked_up


def test_every_code_under_every_scale():
    codes = torch.arange(256, dtype=torch.uint8).repeat(256, 1)  # [256, 256]: eight blocks of 32
    scales = torch.arange(256, dtype=torch.uint8)[:, None].repeat(1, 8)
    want = dense(Packed(codes, scales, "fp8_row32"), torch.float32)
    got = torch.from_numpy(looked_up(torch.cat([codes, scales], dim=1).numpy(), 256))
    assert got.dtype == torch.float32
    assert torch.equal(got.isnan(), want.isnan())
    assert torch.equal(got.nan_to_num().view(torch.int32), want.nan_to_num().view(torch.int32))  # signs of zeros too


def test_scales_belong_to_their_own_columns():
    codes = torch.full((3, 64), 0x38, dtype=torch.uint8)  # 1.0
    scales = torch.tensor([[127, 128], [129, 126], [0, 254]], dtype=torch.uint8)
    got = torch.from_numpy(looked_up(torch.cat([codes, scales], dim=1).numpy(), 64))
    assert got[:, ::32].tolist() == [[1.0, 2.0], [4.0, 0.5], [2.0**-127, 2.0**127]]
    assert torch.equal(got[:, 1:32], got[:, :1].expand(-1, 31))
