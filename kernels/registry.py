"""Which function computes an op or a fused kind on a device family: (kind, family, variant) -> kernel.

Variants: `reference` is plain torch, `static` the same as a graph can hold it. `triton` has native kernels, for the
families and kinds that `kernels.fusion` lists, and takes the `static` ones for the rest; only asking for it imports
Triton. The collectives are the same for all: they go to what connects the processes of a stage.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType, SimpleNamespace
from typing import Any, Final

from dsv41c.kernels.catalog import COLLECTIVES, FAMILIES
from dsv41c.kernels.collectives import Collectives
from dsv41c.kernels.fusion import CALLS, FUSED, NATIVE_VARIANT, FusedKind
from dsv41c.kernels.reference import (
    attend,
    compress,
    embed,
    engram,
    fused,
    index,
    mix,
    moe,
    norm,
    output,
    query,
    select,
    window,
)
from dsv41c.kernels.reference.collectives import CollectiveKernels

Kernel = Callable[..., Any]


def _meeting(collectives: Collectives | None) -> Mapping[str, Kernel]:
    kernels = CollectiveKernels(collectives)
    return {name: getattr(kernels, name) for name in COLLECTIVES}


_REFERENCE: Final[Mapping[str, Kernel]] = MappingProxyType(
    {
        "embed": embed.embed,
        "engram_ids": engram.engram_ids,
        "engram_rows": engram.engram_rows,
        "engram_gate": engram.engram_gate,
        "mix": mix.mix,
        "collapse": mix.collapse,
        "norm": norm.norm,
        "query": query.query,
        "window_rows": window.window_rows,
        "compress": compress.compress,
        "index_keys": index.index_keys,
        "index_query": index.index_query,
        "index_score": index.index_score,
        "select_candidates": select.select_candidates,
        "select_topk": select.select_topk,
        "attend": attend.attend,
        "window_store": window.window_store,
        "output": output.output,
        "expand": mix.expand,
        "route": moe.route,
        "experts": moe.experts,
        "shared_expert": moe.shared_expert,
        "head": embed.head,
        **_meeting(None),
    }
)

# The reference kernels as a graph can hold them: no shape and no work depends on data.
_STATIC: Final[Mapping[str, Kernel]] = MappingProxyType({**_REFERENCE, "experts": moe.experts_static})


def _composed(kernels: Mapping[str, Kernel], *kinds: FusedKind) -> Mapping[str, Kernel]:
    """The kernels, and some fused kinds made of them."""
    made = {kind.name: fused.compose(kind, SimpleNamespace(**kernels)) for kind in kinds}
    return MappingProxyType({**kernels, **made})


# Plain torch runs on every family, so each one has both.
_PLAIN: Final[Mapping[str, Mapping[str, Kernel]]] = MappingProxyType(
    {
        variant: _composed(kernels, *FUSED.values())
        for variant, kernels in (("reference", _REFERENCE), ("static", _STATIC))
    }
)


def variants(family: str) -> tuple[str, ...]:
    """The names of the kernel variants that a family has, sorted; none for an unknown family."""
    if family not in FAMILIES:
        return ()
    return tuple(sorted({*_PLAIN, *([NATIVE_VARIANT[family]] if family in NATIVE_VARIANT else [])}))


def _table(family: str, variant: str, together: Collectives | None = None) -> Mapping[str, Kernel]:
    if variant not in variants(family):
        return {}
    plain = _PLAIN.get(variant, _PLAIN["static"])
    if together is not None:
        plain = _composed({**plain, **_meeting(together)}, *(kind for kind in FUSED.values() if _meets(kind)))
    if variant in _PLAIN:
        return plain
    from dsv41c.kernels.triton import NATIVE, shard_kernels

    return {**plain, **NATIVE, **({} if together is None else shard_kernels(together))}


def _meets(kind: FusedKind) -> bool:
    return any(op in COLLECTIVES for op in kind.covers)


class Kernels:
    """The kernels of one family and variant, an attribute for each kind: `kernels.mix(...)`. Cannot be changed."""

    __slots__ = ("_kernels", "family", "variant")

    family: str
    variant: str
    _kernels: Mapping[str, Kernel]

    def __init__(self, family: str, variant: str, kernels: Mapping[str, Kernel]) -> None:
        object.__setattr__(self, "family", family)
        object.__setattr__(self, "variant", variant)
        object.__setattr__(self, "_kernels", MappingProxyType(dict(kernels)))

    def __getattr__(self, op: str) -> Kernel:
        if op.startswith("_"):  # what copy, pickle and inspect ask of any object
            raise AttributeError(op)
        kernel = self._kernels.get(op)
        if kernel is None:
            known = ", ".join(sorted(self._kernels))
            raise AttributeError(f"no {self.variant} kernel for op `{op}` on {self.family}; there are: {known}")
        return kernel

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"kernels cannot be changed: `{name}`")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"kernels cannot be changed: `{name}`")

    def __dir__(self) -> list[str]:
        return sorted({*self._kernels, "family", "variant"})


def kernels_for(family: str, variant: str = "reference", collectives: Collectives | None = None) -> Kernels:
    """All kernels of a family and variant. Raises ValueError, naming what exists, where there is none.

    `collectives` is what connects the processes of a stage; without it, kernels that need others refuse to run. Raises
    ImportError for the variant `triton` where Triton is not installed.
    """
    table = _table(family, variant, collectives)
    if not table:
        there = "; ".join(f"{known}: {', '.join(variants(known))}" for known in FAMILIES)
        raise ValueError(f"no `{variant}` kernels for family `{family}`; there are {there}")
    return Kernels(family, variant, {kind: table[kind] for kind in CALLS if kind in table})
