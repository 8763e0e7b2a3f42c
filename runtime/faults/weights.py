"""Weights that are not finite, by the names that the checkpoint has them under."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import Tensor

from dsv41c.diagnostics import Diagnostic
from dsv41c.kernels.reference.encodings import Packed
from dsv41c.runtime.faults.numbers import unfit_elements
from dsv41c.runtime.manifest import Manifest, WeightEntry

# Roles in which -inf has a meaning: no sink, and an expert that is never chosen.
_MASKS = ("attn_sink", "gate_bias")


def unfit_weights(manifest: Manifest, weights: Mapping[str, object]) -> list[Diagnostic]:
    """A finding (DSV846) for each weight of a plan, by id, that is not finite.

    Experts and tables that stay in the checkpoint's files are not read; what of them is NaN is told at its first use.
    """
    return [
        Diagnostic(
            "DSV846",
            f"weight `{name}` is not finite: {unfit}",
            facts=(("weight", entry.id), ("read by", ", ".join(entry.ops))),
            help="fetch its file again, or export it again",
        )
        for entry in manifest.weights
        if entry.id in weights
        for name, part in _parts(entry, weights[entry.id])
        if (unfit := unfit_elements(part, masks=entry.role in _MASKS)) is not None
    ]


def _parts(entry: WeightEntry, weight: object) -> Iterator[tuple[str, Tensor | Packed]]:
    """The tensors of a weight that are in memory, with their official names."""
    if isinstance(weight, Tensor | Packed):
        yield entry.name, weight
    elif isinstance(weight, list):
        for expert, part in enumerate(weight):
            if isinstance(part, Tensor | Packed):
                yield entry.name.replace("{expert}", str(expert)), part
