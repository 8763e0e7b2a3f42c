"""The tail of a prompt: of its last rows, which each region computes where only the last logits are wanted.

The plan says how many rows, counted from the end of a prompt, each region has to compute (`tail_rows`): with these the
logits and the state after it are exactly those of all rows. A step of the prompt knows how many of its tokens come
before it and after it; from these a region's rows are the last few of the step's own, or none.

Bounded replay computes no more than a window of rows in each region that may leave rows out. Every layer then gives its
first rows to the next one without what their windows should have shown, so logits and rings are close, not exact.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, get_args

from torch import Tensor

from dsv41c.kernels.step import Step
from dsv41c.runtime.manifest import Manifest

TailKind = Literal["exact", "every", "bounded"]
TAILS: tuple[TailKind, ...] = get_args(TailKind)


def computed_rows(manifest: Manifest, kind: TailKind) -> dict[str, int | None]:
    """Rows at the end of a prompt that each region computes, None for every one; of the logits the last one's alone."""
    rows: dict[str, int | None] = {region.id: region.tail_rows for region in manifest.regions}
    if kind == "every":
        rows = dict.fromkeys(rows)
    elif kind == "bounded":
        rows = {name: None if count is None else min(count, manifest.model.window_size) for name, count in rows.items()}
    return {**rows, **{region.id: 1 for region in manifest.regions if "logits" in region.writes}}


@dataclass(frozen=True, slots=True)
class TailRows:
    """Rows counted from the end of a prompt, None for every one: `regions` compute them, somebody reads `values`."""

    regions: Mapping[str, int | None]
    values: Mapping[str, int | None]

    @staticmethod
    def of(manifest: Manifest, kind: TailKind) -> TailRows:
        """Those of a plan. Of what goes to another stage, its readers there count."""
        regions = computed_rows(manifest, kind)
        readers: dict[str, list[int | None]] = {"logits": [1]}
        for region in manifest.regions:
            for value in region.reads:
                readers.setdefault(value, []).append(regions[region.id])
        for move in sorted(manifest.transfers, key=lambda move: -move.to_stage):
            if move.how == "chunk":
                readers.setdefault(move.value, []).append(_most(readers[move.arrives_as]))
        return TailRows(regions, {value: _most(counts) for value, counts in readers.items()})


@dataclass(frozen=True, slots=True)
class Tail:
    """The tail within one step of a session: of `tokens` tokens, with `before` and `after` more of the same prompt."""

    rows: TailRows
    tokens: int
    before: int
    after: int

    def computed(self, region: str) -> int:
        """How many of the step's rows a region computes, the last ones."""
        return self._last(self.rows.regions[region])

    def read(self, value: str) -> int:
        """How many of the step's rows of a value somebody reads, the last ones; all where nobody does."""
        return self._last(self.rows.values.get(value))

    def step(self, step: Step, region: str) -> Step:
        """The step of the rows that a region computes."""
        kept, left_out = self.rows.regions[region], self.tokens - self.computed(region)
        if left_out:
            step = replace(step, positions=step.positions + left_out)
        if kept is not None and kept < self.before + self.tokens + self.after:
            # The ring has no rows of the tokens left out. The exact tail drops the rows that would have to see them.
            step = replace(step, window_begin=step.context + self.after - kept)
        return step

    def _last(self, rows: int | None) -> int:
        return self.tokens if rows is None else min(self.tokens, max(0, rows - self.after))


def last_rows(tensor: Tensor, rows: int) -> Tensor:
    """The last rows of a step value [B, T, ...]: [B, rows, ...], a view."""
    return tensor[:, tensor.shape[1] - rows :]


def _most(counts: Iterable[int | None]) -> int | None:
    known = list(counts)
    return None if None in known else max(count for count in known if count is not None)
