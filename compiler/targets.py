"""What each family of devices has kernels for: every kind of op and fused kind, worked out from the kernels' data.

And the largest values that native ones take.
"""

from __future__ import annotations

from dataclasses import dataclass

from dsv41c.kernels.catalog import CARRIERS, FAMILIES, OPS
from dsv41c.kernels.fusion import FUSED, NATIVE

# Said of the native kernels, where their place does not show it.
FP8_NOTE = "OCP fp8 codes are decoded by integer arithmetic on rocm, so FNUZ hardware (gfx942) reads them right"


@dataclass(frozen=True, slots=True)
class Limit:
    """The largest value of a spec that the native kernels of an op kind take, on the families that have them."""

    path: tuple[str, str]
    kind: str
    most: int


# A tile of `kernels.triton.select` holds 4096 keys, and one block at least.
LIMITS = (Limit(("indexer", "candidate_block_size"), "select_candidates", 4096),)


@dataclass(frozen=True, slots=True)
class KindRow:
    """A kind of op, or a fused kind with the kinds it `covers`, and by family what runs it.

    `native`: a kernel made for the family; `native (in KIND)`: the kernel of a fused kind; `reference`: plain torch;
    `missing`: none.
    """

    kind: str
    covers: tuple[str, ...]
    kernels: dict[str, str]


def rows() -> list[KindRow]:
    """Every kind that a kernel computes, in the catalogue's order, then the fused ones."""
    single = [KindRow(op, (), {family: _op(op, family) for family in FAMILIES}) for op in OPS if op not in CARRIERS]
    fused = [
        KindRow(name, kind.covers, {family: _fused(name, family) for family in FAMILIES})
        for name, kind in FUSED.items()
    ]
    return single + fused


def _op(op: str, family: str) -> str:
    native = NATIVE[family]
    if op in native:
        return "native"
    inside = [name for name, kind in FUSED.items() if name in native and op in kind.covers]
    if inside:
        return f"native (in {', '.join(inside)})"
    return "reference" if family in OPS[op].families else "missing"


def _fused(name: str, family: str) -> str:
    """A fused kind without a native kernel is made of the kernels of its ops."""
    if name in NATIVE[family]:
        return "native"
    return "reference" if all(family in OPS[op].families for op in FUSED[name].covers) else "missing"
