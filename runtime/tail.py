"""The exact tail of a prompt: of its last rows, which each region computes where only the last logits are wanted.

The plan says how many rows, counted from the end of a prompt, each region has to compute. A step of the prompt knows
how many tokens come after it; from these a region's rows are the last few of the step's own, or none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from dsv41c.kernels.step import Step
from dsv41c.runtime.manifest import Manifest


@dataclass(frozen=True, slots=True)
class TailRows:
    """Rows counted from the end of a prompt, None for every one: `regions` compute them, somebody reads `values`."""

    regions: Mapping[str, int | None]
    values: Mapping[str, int | None]

    @staticmethod
    def of(manifest: Manifest) -> TailRows:
        """Those of a plan. What goes to another stage is kept whole."""
        readers: dict[str, list[int | None]] = {"logits": [1]}
        for region in manifest.regions:
            for value in region.reads:
                readers.setdefault(value, []).append(region.tail_rows)
        for move in manifest.transfers:
            readers.setdefault(move.value, []).append(None)
        regions = {region.id: region.tail_rows for region in manifest.regions}
        return TailRows(regions, {value: _most(counts) for value, counts in readers.items()})


@dataclass(frozen=True, slots=True)
class Tail:
    """The tail within one step: of `tokens` tokens, with `after` more of the same prompt behind them."""

    rows: TailRows
    tokens: int
    after: int

    def computed(self, region: str) -> int:
        """How many of the step's rows a region computes, the last ones."""
        return self._last(self.rows.regions[region])

    def read(self, value: str) -> int:
        """How many of the step's rows of a value somebody reads, the last ones; all where nobody does."""
        return self._last(self.rows.values.get(value))

    def step(self, step: Step, rows: int) -> Step:
        """The step of its last rows alone."""
        return replace(step, positions=step.positions + (self.tokens - rows)) if rows < self.tokens else step

    def _last(self, rows: int | None) -> int:
        return self.tokens if rows is None else min(self.tokens, max(0, rows - self.after))


def last_rows(tensor: Tensor, rows: int) -> Tensor:
    """The last rows of a step value [B, T, ...]: [B, rows, ...], a view."""
    return tensor[:, tensor.shape[1] - rows :]


def _most(counts: Iterable[int | None]) -> int | None:
    known = list(counts)
    return None if None in known else max(count for count in known if count is not None)
