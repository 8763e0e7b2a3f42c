"""What the graphs of each family allow, as data. Strict mode holds a plan to its family's rules without the device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from dsv41c.kernels.catalog import FAMILIES


@dataclass(frozen=True, slots=True)
class Rules:
    """Rules beyond those of all families (no host reads, no shapes from data, nothing kept, nothing moved).

    `whole_updates`: session state is written as a whole buffer, never through a view of it. `fixed_views`: a view that
    is taken of an input or of state has the shape, strides and offset it had at warm-up.
    """

    family: str
    whole_updates: bool = False
    fixed_views: bool = False


_SPECIAL = {"hpu": Rules("hpu", whole_updates=True, fixed_views=True)}

RULES: Mapping[str, Rules] = MappingProxyType({family: _SPECIAL.get(family, Rules(family)) for family in FAMILIES})
