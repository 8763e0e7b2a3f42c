"""Faults on the way from stage to stage that no plan can say: the comparison names the value, where it arrives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from golden_tiny import ORACLE, TINY, ids
from planted import CHANGES
from splits import engine_of, split
from torch import Tensor

from dsv41c.compiler.cli import main
from dsv41c.runtime.compare import Comparer, Comparison
from dsv41c.runtime.stages.crossing import Crossing, Rows
from dsv41c.runtime.state import Pools

CUT = [5, 7, 10]  # the second boundary carries KV, keys, a selection and candidates of layer 6
Fault = Callable[[pytest.MonkeyPatch], None]
arrive, leaving, places = Crossing.arrive, Crossing.leaving, Crossing._places


def after(value: str, change: Callable[[Tensor, Rows], Tensor]) -> Fault:
    """A step value that is another one once it has arrived."""

    def late(self: Crossing, wired: Sequence[Tensor], values: Any, pools: Pools, rows: Rows) -> None:
        arrive(self, wired, values, pools, rows)
        for move in self.boundary.chunk:
            if move.arrives_as == value:
                values[value] = change(values[value], rows)

    return lambda patch: patch.setattr(Crossing, "arrive", late)


def of_another(value: str, source: str) -> Fault:
    """A mirror that gets the rows at the start of another state."""

    def early(self: Crossing, values: Any, pools: Pools, rows: Rows) -> list[Tensor]:
        wired = leaving(self, values, pools, rows)
        for number, move in enumerate(self.boundary.mirrors, start=len(self.boundary.chunk)):
            if move.arrives_as == value:
                wired[number] = pools.tensors[pools.storage_of[source]][rows.slots[0], : len(wired[number])]
        return wired

    return lambda patch: patch.setattr(Crossing, "leaving", early)


def missing(value: str, kept: Callable[[slice, Rows], slice], slot: int | None = None) -> Fault:
    """A mirror that gets some of the appended rows, or gets them in another slot."""

    def mirrored(self: Crossing, wired: Sequence[Tensor], values: Any, pools: Pools, rows: Rows) -> None:
        moves = [move for move in self.boundary.mirrors if move.arrives_as == value]
        pool = pools.tensors[value]
        before = pool.clone()
        arrive(self, wired, values, pools, rows)
        for move in moves:
            _, groups = places(self, move, rows, pool.device)
            assert isinstance(groups, slice)
            part, rest = pool[rows.slots[0], groups].clone(), kept(groups, rows)
            pool.copy_(before)
            pool[rows.slots[0] if slot is None else slot, rest] = part[: rest.stop - rest.start]

    return lambda patch: patch.setattr(Crossing, "arrive", mirrored)


def begun_anew(value: Tensor, rows: Rows) -> Tensor:
    """A selection of the first groups."""
    return torch.arange(value.shape[-1]).expand_as(value).contiguous()


def nothing(groups: slice, rows: Rows) -> slice:
    return slice(0, 0)


KV, KEYS, TOPK, FIRST_TOPK = "compress_kv@L4.S1", "index_k@L6.S2", "topk@L6.S2", "topk@L4.S1"
# By what is wrong: the value, the step, the fault. The prompt is step 0.
FAULTS: dict[str, tuple[str, int, Fault]] = {
    "a selection reset": (TOPK, 0, after(TOPK, lambda value, rows: torch.full_like(value, -1))),
    "a selection begun anew": (FIRST_TOPK, 0, after(FIRST_TOPK, begun_anew)),
    "a selection reset after the prompt": (
        TOPK,
        1,
        after(TOPK, lambda value, rows: value if rows.tokens > 1 else value - 1),
    ),
    "candidates reset": (
        "candidates@L6.S2",
        0,
        after("candidates@L6.S2", lambda value, rows: torch.ones_like(value)),
    ),
    "a pre-mix not carried": (
        "pre@L4.ffn.S1",
        0,
        after("pre@L4.ffn.S1", lambda value, rows: torch.full_like(value, 1 / value.shape[-1])),
    ),
    "a table of the stage's own": (KV, 0, missing(KV, nothing)),
    "a table of another session": (KV, 0, missing(KV, lambda groups, rows: groups, slot=0)),
    "keys of the wrong source": (KEYS, 0, of_another(KEYS, "index_k@L4")),
    "rows of other groups": (KV, 2, of_another(KV, "compress_kv@L4")),
    "the last row is missing": (
        KV,
        0,
        missing(KV, lambda groups, rows: slice(groups.start, max(groups.start, groups.stop - 1))),
    ),
    "rows of a prompt alone": (KEYS, 1, missing(KEYS, lambda groups, rows: groups if rows.tokens > 1 else slice(0, 0))),
}


def compared(until: str | None = None) -> Comparison:
    """A prompt and two tokens of a session in the second slot."""
    running = engine_of(split(CUT, None, *CHANGES, mode=ORACLE))
    with running.open(), running.open() as session:
        comparer = Comparer(running, until=until)
        for tokens in (ids()[:12], [7], [9]):
            comparer.feed(session, tokens)
        return comparer.result()


def test_what_arrives_is_compared() -> None:
    found = compared()
    moved = len(split(CUT, None, *CHANGES).manifest.transfers)
    values = [value for op in split(CUT, None, *CHANGES).manifest.ops for value in op.writes.values()]
    assert found.first is None and found.steps == 3 and found.values == 3 * len(values)
    assert moved == sum(".S" in value and not value.startswith(("engram", "token")) for value in values)


@pytest.mark.parametrize("name", FAULTS)
def test_the_value_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    value, step, fault = FAULTS[name]
    fault(monkeypatch)
    first = compared(until=value).first
    assert first is not None and (first.value, first.step) == (value, step) and first.bound == 0


def test_the_command_names_it(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    after(FIRST_TOPK, begun_anew)(monkeypatch)
    folder = split(CUT, None, *CHANGES).folder
    command = ["run", str(folder), "--checkpoint", str(TINY), "--ids", "5,6,7,8,9,10,11,12", "-n", "2"]
    assert main([*command, "--compare", "reference"]) == 1
    said = capsys.readouterr().err
    assert "error[DSV866]: `topk@L4.S1` is " in said and "from the reference, past its bound of 0" in said
