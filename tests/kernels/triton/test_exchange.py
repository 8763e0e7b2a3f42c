"""The kinds of a shard at decode: the sum over shards inside their last kernel, and by collectives without mailboxes.

There is one process here. A shard is run once with words in its mailbox that only let it pass, which makes it send its
own; then the other one, and the first again, get what they wait for.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from dsv41c.kernels.collectives import Mailboxes
from dsv41c.kernels.registry import kernels_for
from dsv41c.kernels.triton.fused import shard_kernels

from .decode_cases import Maker, Widths, ffn_case, output_case, step_of

WIDTHS = Widths(inter=64)
REFERENCE = kernels_for("cuda", "static")
BOUND = 5e-3  # of the norm: bf16 values on either side of a rounding
MET = {"all_reduce_shards": 2, "all_reduce_dtype": "bf16", "all_reduce_bytes_per_token": 4 * WIDTHS.dim}
PARTS = {"output_shards": 2, "experts_shards": 2, "shared_expert_shards": 2}


class Shards:
    """Two shards of one process. `boxes` int64 [shard, 2, 2, values]: from the last axis but one on, by sender."""

    def __init__(self, values: int, first: int = 0) -> None:
        self.values = values
        self.boxes = torch.zeros(2, 2, 2, values, dtype=torch.int64)
        self.sequences = [torch.tensor([first], dtype=torch.int32) for _ in range(2)]

    def member(self, rank: int, *, mailboxes: bool = True) -> Member:
        return Member(self, rank, mailboxes)

    def together(self, run):
        """What `run(rank)` gives on each of both, which end in one exchange."""
        start = self.sequences[1].clone()
        number = int(start) + 1
        self.boxes[1, number & 1, 0] = (number & 0xFFFFFFFF) - (1 << 32 if number & 0x80000000 else 0) << 32
        run(1)
        first = run(0)
        self.sequences[1].copy_(start)
        return [first, run(1)]


class Member:
    """A shard as its kernels see it. Without mailboxes, the other one's part is told beforehand."""

    size = 2

    def __init__(self, shards: Shards, rank: int, there: bool) -> None:
        self.shards, self.rank, self.there = shards, rank, there
        self.parts: list[torch.Tensor] = []
        self.other: torch.Tensor | None = None

    def mailboxes(self, values: int) -> Mailboxes | None:
        if not self.there:
            return None
        assert values <= self.shards.values
        addresses = torch.tensor([box.data_ptr() for box in self.shards.boxes])
        return Mailboxes(self.rank, 2, self.shards.values, addresses, self.shards.sequences[self.rank])

    def all_reduce(self, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        assert x.dtype == torch.float32
        self.parts.append(x)
        return (x if self.other is None else x + self.other).to(dtype)


def part_of(packed, rank, axis):
    """A shard's part of a packed matrix, or of a stack of them, along an axis of its codes."""
    codes, scale = (part.chunk(2, axis)[rank].contiguous() for part in (packed.codes, packed.scale))
    return type(packed)(codes, scale, packed.encoding)


def columns(packed, rank):
    return part_of(packed, rank, -1)


def rows(packed, rank):
    return part_of(packed, rank, -2)


def of_shard(kind, given, named, rank):
    """A shard's arguments of a kind, of those of the whole."""
    given = list(given)
    if kind == "ffn":
        for index, cut in ((8, rows), (9, columns), (10, rows), (11, rows), (12, columns), (13, rows)):
            given[index] = cut(given[index], rank)
    else:
        given[0] = given[0].chunk(2, 2)[rank].contiguous()
        given[1] = given[1].clone()
        given[7] = given[7].chunk(2)[rank].contiguous()
        given[8], given[9] = rows(given[8], rank), columns(given[9], rank)
        named = named | {"output_groups": named["output_groups"] // 2}
    own = {name: 2 for name in PARTS if name.startswith(("output",) if kind != "ffn" else ("experts", "shared"))}
    return given, named | MET | own


def case(kind, batch, seed=1, widths=WIDTHS):
    if kind == "ffn":
        return ffn_case(Maker(seed), widths, batch)
    return output_case(Maker(seed), widths, batch, ratio=2, selected=9, capacity=40, packed=False)


def check(kind, positions, padding=0, *, shards=None, mailboxes=True, seed=1, widths=WIDTHS):
    step = step_of(positions, padding=padding)
    given, named = case(kind, len(positions) + padding, seed, widths)
    want = getattr(REFERENCE, kind)(step, *(g.clone() if isinstance(g, torch.Tensor) else g for g in given), **named)
    shards = shards or Shards(32 * widths.dim)
    members = [shards.member(rank, mailboxes=mailboxes) for rank in range(2)]

    def run(rank):
        arguments, attrs = of_shard(kind, given, named, rank)
        return shard_kernels(members[rank])[f"{kind}_shard"](step, *arguments, **attrs)

    if mailboxes:
        results = shards.together(run)
    else:
        run(1)
        members[0].other = members[1].parts[0]
        first = run(0)
        members[1].other = members[0].parts[0]
        results = [first, run(1)]
    for ours, again, theirs in zip(*results, want, strict=True):
        assert torch.equal(ours, again), "both shards have the same bits"
        error = (ours.double() - theirs.double()).norm() / theirs.double().norm()
        assert error <= BOUND, error
    return shards


@pytest.mark.parametrize(
    ("kind", "positions", "padding"),
    [("ffn", [17], 0), ("ffn", [3], 1), ("attention_output", [17], 0), ("attention_output", [3, 0, 20], 1)],
)
def test_two_shards_are_one(kind, positions, padding):
    shards = check(kind, positions, padding)
    assert [int(number) for number in shards.sequences] == [1, 1]


def test_exchanges_follow_each_other_on_both_sides():
    shards = Shards(32 * WIDTHS.dim)
    for turn, positions in enumerate([[5], [1], [40]]):
        check("attention_output", positions, shards=shards, seed=turn)
        assert [int(number) for number in shards.sequences] == [turn + 1, turn + 1]


def test_numbers_of_exchanges_may_wrap():
    shards = Shards(32 * WIDTHS.dim, first=2**31 - 2)
    for turn in range(2):
        check("attention_output", [5], shards=shards, seed=turn)


@pytest.mark.parametrize("kind", ["ffn", "attention_output"])
def test_without_mailboxes_shards_meet_in_the_collective(kind):
    check(kind, [4, 9], mailboxes=False)


def test_widths_that_fill_no_tile():
    check("ffn", [4], widths=replace(WIDTHS, dim=96, inter=192, experts=3, active=1))


def test_another_number_of_processes_is_refused():
    given, named = of_shard("ffn", *case("ffn", 1), 0)
    kernel = shard_kernels(Shards(2048).member(0))["ffn_shard"]
    with pytest.raises(ValueError, match="have 4 shards, and 2 processes run"):
        kernel(step_of([1]), *given, **named | {"all_reduce_shards": 4})
    with pytest.raises(ValueError, match="have 2 shards, and 1 processes run"):
        shard_kernels(None)["ffn_shard"](step_of([1]), *given, **named)
