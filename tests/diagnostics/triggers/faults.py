"""What sets off each code of a step that fails (840 to 846), and the same mended."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import golden_tiny as tiny
import spoiled
import torch

from dsv41c.runtime.engine import Engine


def _fed(kind: str, change: Callable[[Any], Any], **options: Any) -> tuple[Callable[[Path], object], ...]:
    """Three tokens, with a kernel of one kind spoiled, and as it is."""

    def trigger(kernels: object) -> Callable[[Path], object]:
        return lambda _: tiny.engine(kernels=kernels, **options).open().feed([3, 4, 5])

    return trigger(spoiled.Spoiled(kind, change)), trigger(spoiled.Spoiled("", change))


def _bound(value: float) -> Callable[[Path], object]:
    """An engine with one number of a weight changed."""

    def trigger(_: Path) -> object:
        weights = dict(tiny.weights())
        weight = weights["layers.4.wq_a"].clone()
        weight[3, 3] = value
        return Engine(tiny.plan(), tiny.TINY, weights={**weights, "layers.4.wq_a": weight}, check_finite=True)

    return trigger


TRIGGERS = {
    "DSV840": _fed("index_score", spoiled.raising(IndexError("index 9 is out of bounds for dimension 1 with size 8"))),
    "DSV841": _fed("experts", spoiled.raising(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"))),
    "DSV842": _fed("attend", spoiled.raising(spoiled.device_error())),
    "DSV843": _fed("compress", spoiled.raising(spoiled.compile_error("at 3:4: cannot load a tensor"))),
    "DSV844": _fed("collapse", spoiled.narrower, check_finite=True),
    "DSV845": _fed("shared_expert", spoiled.put(float("nan"), 0, 1, 5), check_finite=True),
    "DSV846": (_bound(float("inf")), _bound(1.0)),
}
