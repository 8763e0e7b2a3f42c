"""How far values of two runs of the same call are apart, each with its bound.

Native kernels may be half as far again from f32 as the reference kernels in the plan's own numbers are. Rounded rows
count the elements that came out as another code as well.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from dsv41c.kernels.reference.rows import unpack

COEFFICIENTS = ("pre", "post", "comb")
ROUNDED = ("window_rows", "index_query", "window_kv", "compress_kv", "index_k")
ROW_KINDS = ("window_kv", "compress_kv", "index_k")
WORSE = 1.5  # times as far from f32 as the reference kernels
FLOORS = {torch.bfloat16: 2e-3, torch.float32: 1e-5}  # of that distance: what rounding a result takes
GATES = 2e-3  # and of the gates of one token, few numbers, what rounding their keys to bf16 takes
FLIPS = 0.02  # of rounded rows, elements that may come out as another code in any case
CODES = 3e-2  # and how far such rows may be apart
LOOSE = 0.1  # a whole layer: experts and selections that turn move single tokens further
ALIKE = 0.99  # of a selection


@dataclass
class Found:
    """What was measured, by (call, value, measure): the number and its bound. The worst one is kept."""

    measures: dict[tuple[str, str, str], tuple[float, float]] = field(default_factory=dict)

    def add(self, call: str, value: str, measure: str, number: Tensor | float, bound: float) -> None:
        """One more number. Of several the one nearest to its bound, or furthest past it, stays; so does NaN."""
        key, fresh = (call, value, measure), (float(number), bound)
        kept = self.measures.get(key)
        if kept is None or not fresh[0] - fresh[1] <= kept[0] - kept[1]:
            self.measures[key] = fresh

    def lines(self, *, past: bool = True) -> list[str]:
        """A line for each number that is past its bound, or for every one."""
        return [
            f"{call:18s} {value:14s} {measure:9s} {number:.2e}, bound {bound:.2e}"
            for (call, value, measure), (number, bound) in self.measures.items()
            if not past or not number <= bound
        ]


def step_value(found: Found, call: str, port: str, got: Tensor, want: Tensor, exact: Tensor | None) -> None:
    """A value of a call [B, T, ...], its reference, and the reference in f32 where there is one."""
    assert got.shape == want.shape and got.dtype == want.dtype, (
        call,
        port,
        got.shape,
        want.shape,
        got.dtype,
        want.dtype,
    )
    if port == "topk":
        selection(found, call, got, want)
    elif port == "candidates":
        turned = (got != want).sum() / want.sum().clamp(min=1)
        found.add(call, port, "turned", turned, 1 - ALIKE)
    elif not want.is_floating_point() or exact is None:
        found.add(call, port, "unequal", (got != want).sum(), 0)
    elif port in COEFFICIENTS:
        found.add(call, port, "largest", _largest((got - want).abs()), 1e-5)
    else:
        _against_exact(found, call, port, got, want, exact)


def _against_exact(found: Found, call: str, port: str, got: Tensor, want: Tensor, exact: Tensor) -> None:
    rounded = port in ROUNDED
    if rounded:
        turned, reference = ((rows.float() != exact).float().mean() for rows in (got, want))
        found.add(call, port, "flips", turned, max(WORSE * float(reference), FLIPS))
    floor = CODES if rounded else GATES if port == "engram_gate" else FLOORS[want.dtype]
    distance, reference = (_largest(by_row(rows, exact)) for rows in (got, want))
    found.add(call, port, "apart", distance, max(WORSE * float(reference), floor))


def by_row(got: Tensor, want: Tensor) -> Tensor:
    """The norm of the difference over that of the wanted row, for each row [B, T, ...] or [n, ...]; f64."""
    axes = 2 if want.ndim > 2 else 1
    got, want = got.double().flatten(axes), want.double().flatten(axes)
    got, want = (rows if rows.ndim > axes else rows[..., None] for rows in (got, want))
    difference, size = (got - want).norm(dim=-1), want.norm(dim=-1)
    return torch.where(difference == 0, 0.0, difference / size.clamp(min=1e-30))


def _largest(numbers: Tensor) -> float:
    """0 where there is none; NaN where one is."""
    return float(numbers.max()) if numbers.numel() else 0.0


def selection(found: Found, call: str, got: Tensor, want: Tensor, alike: float = ALIKE) -> None:
    """Selected groups int64 [B, T, K], ascending, then -1: as many, nearly all the same."""
    there = got >= 0
    ascending = (got[..., 1:] > got[..., :-1]) | ~there[..., 1:]
    found.add(call, "topk", "disorder", (~ascending).sum(), 0)
    counts = [(rows >= 0).sum(-1) for rows in (got, want)]
    found.add(call, "topk", "count", (counts[0] != counts[1]).sum(), 0)
    size = int(max(got.max(), want.max(), torch.zeros_like(got.max()))) + 1 if got.numel() else 1
    chosen = [torch.zeros(*rows.shape[:-1], size + 1, dtype=torch.bool, device=rows.device) for rows in (got, want)]
    for marks, rows in zip(chosen, (got, want), strict=True):
        marks.scatter_(-1, torch.where(rows >= 0, rows, size), True)
    missing = (chosen[1] & ~chosen[0])[..., :size].sum()
    found.add(call, "topk", "missing", missing / counts[1].sum().clamp(min=1), 1 - alike)


def pool_rows(
    found: Found, call: str, kind: str, got: Tensor, want: Tensor, before: Tensor, exact: Tensor | None
) -> None:
    """A pool [slots, rows, ...] after a call, without the spare slot: the same rows written, all others untouched."""
    if kind == "token_history":
        found.add(call, kind, "unequal", (got != want).sum(), 0)
        return
    changed = [(_bits(pool) != _bits(before)).flatten(2).any(-1) for pool in (got, want)]
    found.add(call, kind, "stray", (changed[0] & ~changed[1]).sum(), 0)
    found.add(call, kind, "missed", (changed[1] & ~changed[0]).sum(), 0)
    rows = [pool[changed[1]] for pool in (got, want, *(() if exact is None else (exact,)))]
    if not rows[0].numel():
        return
    if kind in ROW_KINDS:
        rows = [unpack(kind, part).float() for part in rows]
    if exact is not None:
        _against_exact(found, call, kind, *rows)
    else:
        found.add(call, kind, "median", by_row(*rows).median(), LOOSE)


def _bits(pool: Tensor) -> Tensor:
    """Numbers that differ where any bit does."""
    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return pool.view(integers[pool.element_size()])


def whole_value(found: Found, port: str, got: Tensor, want: Tensor) -> None:
    """A value of a whole layer [B, T, ...] on native kernels alone."""
    if port == "topk":
        selection(found, "whole layer", got, want, 1 - LOOSE)
    elif port == "candidates":
        found.add("whole layer", port, "turned", (got != want).sum() / want.sum().clamp(min=1), LOOSE)
    elif not want.is_floating_point():
        found.add("whole layer", port, "unequal", (got != want).sum(), 0)
    else:
        found.add("whole layer", port, "median", by_row(got, want).median(), LOOSE)
        found.add("whole layer", port, "broken", (~got.isfinite()).sum(), 0)
