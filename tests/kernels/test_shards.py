"""Parts of sums add up to what one process computes, and collectives refuse what the plan does not say."""

from __future__ import annotations

import pytest
import torch

from dsv41c.kernels.reference.embed import head
from dsv41c.kernels.reference.encodings import Packed, dense, encode_fp4_32
from dsv41c.kernels.reference.moe import experts, experts_static, shared_expert
from dsv41c.kernels.reference.output import output
from dsv41c.kernels.registry import kernels_for

QUANT = {"activation_quant": "none"}


class Others:
    """A process whose others have the same numbers."""

    size, rank = 3, 1

    def all_reduce(self, x, dtype):
        return (x * self.size).to(dtype)

    def all_gather(self, x, axis):
        return torch.cat([x] * self.size, dim=axis)


def near(parts, whole):
    """Their sum in f32 is `whole` but for the order of additions: 2e-6 of its largest seen."""
    assert all(part.dtype == torch.float32 for part in parts)
    assert (sum(parts) - whole.float()).abs().max() <= 1e-5 * whole.float().abs().max()


def test_output_by_groups():
    torch.manual_seed(0)
    attended, wo_a, wo_b = torch.randn(2, 3, 8, 16), torch.randn(4 * 32, 2 * 16), torch.randn(64, 4 * 32)
    whole = output(attended, wo_a, wo_b, groups=4, **QUANT)
    parts = [
        output(attended[:, :, 4 * n : 4 * n + 4], wo_a[64 * n : 64 * n + 64], wo_b[:, 64 * n : 64 * n + 64],
               groups=2, shards=2, **QUANT)
        for n in range(2)
    ]  # fmt: skip
    near(parts, whole)


def test_shared_expert_by_its_inner_width():
    torch.manual_seed(1)
    x, routed = torch.randn(2, 3, 64), torch.randn(2, 3, 64)
    w1, w2, w3 = torch.randn(96, 64), torch.randn(64, 96), torch.randn(96, 64)
    whole = shared_expert(x, routed, w1, w2, w3, limit=2.0, **QUANT)
    own = [slice(48 * n, 48 * n + 48) for n in range(2)]
    parts = [
        shared_expert(x, routed / 2, w1[part], w2[:, part], w3[part], limit=2.0, shards=2, **QUANT) for part in own
    ]
    near(parts, whole)


def test_parts_in_bf16_are_not_rounded():
    torch.manual_seed(2)
    x, weight = torch.randn(1, 2, 1, 64).bfloat16(), torch.randn(32, 64).bfloat16()
    wo_b = torch.randn(48, 32).bfloat16()
    part = output(x, weight, wo_b, groups=1, shards=2, **QUANT)
    assert part.dtype == torch.float32
    assert torch.equal(part.bfloat16(), output(x, weight, wo_b, groups=1, **QUANT))
    assert not torch.equal(part, part.bfloat16().float())


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("kernel", [experts, experts_static])
def test_experts_by_their_inner_width(kernel, count):
    """As the matrices are packed: columns of w2 two a byte, with the scales of their blocks."""
    torch.manual_seed(3)
    w1, w2, w3 = ([encode_fp4_32(torch.randn(shape)) for _ in range(8)] for shape in ((128, 64), (64, 128), (128, 64)))
    x, weights = torch.randn(1, 5, 64), torch.rand(1, 5, 2)
    ids = torch.tensor([[[0, 5], [7, 6], [2, 3], [4, 1], [0, 1]]])
    whole = kernel(x, weights, ids, w1, w2, w3, limit=2.0, **QUANT)
    parts = []
    for shard in range(count):
        rows, codes, scale = (slice(shard * own, shard * own + own) for own in (128 // count, 64 // count, 4 // count))
        own = [[Packed(e.codes[rows], e.scale[rows], e.encoding) for e in w] for w in (w1, w3)]
        down = [Packed(e.codes[:, codes], e.scale[:, scale], e.encoding) for e in w2]
        parts.append(kernel(x, weights, ids, own[0], down, own[1], limit=2.0, shards=count, **QUANT))
    near(parts, whole)


@pytest.mark.parametrize("kernel", [experts, experts_static])
def test_parts_of_experts_in_bf16_are_not_rounded(kernel):
    """With one expert a token the sum over shards is that expert's result, rounded where one process rounds it."""
    torch.manual_seed(6)
    w1, w2, w3 = ([encode_fp4_32(torch.randn(64, 64))] for _ in range(3))
    given = torch.randn(1, 5, 64).bfloat16(), torch.rand(1, 5, 1), torch.zeros(1, 5, 1, dtype=torch.int64), w1, w2, w3
    part = kernel(*given, limit=2.0, shards=2, **QUANT)
    assert part.dtype == torch.float32 and not torch.equal(part, part.bfloat16().float())
    assert torch.equal(part.bfloat16().float(), kernel(*given, limit=2.0, **QUANT))


def test_head_by_rows():
    torch.manual_seed(4)
    x, table = torch.randn(1, 3, 16), torch.randn(40, 16)
    joined = torch.cat([head(x, table[20 * n : 20 * n + 20]) for n in range(2)], dim=-1)
    assert torch.allclose(joined, head(x, table), atol=1e-6)


def test_collectives_add_up_join_and_round_once():
    kernels = kernels_for("cpu", "static", Others())
    part = torch.full((1, 2, 4), 1 / 3)
    for dtype, name in ((torch.float32, "f32"), (torch.bfloat16, "bf16")):
        assert torch.equal(kernels.all_reduce(part, shards=3, dtype=name, bytes_per_token=16), (part * 3).to(dtype))
    assert kernels.all_gather(part, shards=3, bytes_per_token=16).shape == (1, 2, 12)


def test_collectives_hold_to_the_plan():
    part = torch.zeros(1, 2, 4)
    with pytest.raises(ValueError, match="the plan's stages have 2 shards, and 3 processes run this one"):
        kernels_for("cpu", collectives=Others()).all_reduce(part, shards=2, dtype="f32", bytes_per_token=16)
    with pytest.raises(ValueError, match="the plan's stages have 2 shards, and 1 processes run this one"):
        kernels_for("cpu").all_gather(part, shards=2, bytes_per_token=16)
    with pytest.raises(ValueError, match="a shard gives 16 bytes a token, and the plan says 8"):
        kernels_for("cpu", collectives=Others()).all_gather(part, shards=3, bytes_per_token=8)


def test_dense_parts_of_packed_weights_are_parts_of_dense_ones():
    torch.manual_seed(5)
    packed = encode_fp4_32(torch.randn(64, 96))
    part = packed._replace(codes=packed.codes[:, 16:32], scale=packed.scale[:, 1:2])
    assert torch.equal(dense(part, torch.float32), dense(packed, torch.float32)[:, 32:64])
