"""Layers of a plan on native kernels beside the reference ones, on random inputs; on any device.

Every call of a layer is compared by itself: native, reference and reference in f32 take the same values, and native
may be half as far again from f32 as the reference in the plan's own numbers is. What the layer goes on with is the
reference's. The layer is run on native kernels alone as well, where errors add up and selections turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import torch
from layer_measures import Found, pool_rows, step_value, whole_value
from torch import Tensor

from dsv41c.compiler.plan import compile_spec, write_plan
from dsv41c.compiler.spec import load
from dsv41c.kernels.fusion import CALLS
from dsv41c.kernels.reference.groups import visible_groups
from dsv41c.kernels.reference.linear import linear
from dsv41c.kernels.reference.mix import collapse
from dsv41c.kernels.reference.norm import norm
from dsv41c.kernels.registry import kernels_for
from dsv41c.kernels.step import Step
from dsv41c.runtime.bench.random_state import fill_slot
from dsv41c.runtime.bench.random_weights import random_weights
from dsv41c.runtime.executor import region_weights
from dsv41c.runtime.manifest import RegionEntry, ValueEntry
from dsv41c.runtime.plan import load_plan
from dsv41c.runtime.recording import ops_by_region
from dsv41c.runtime.state import Pools

# Calls whose reference gives the same in f32, or whose result is a choice.
WITHOUT_F32 = ("embed", "engram_ids", "engram_rows", "index_score", "select_topk", "index_select", "index_candidates")
TIE = 1e-2  # between the score of the last expert chosen and the next: the last bits of a token decide


@dataclass(frozen=True)
class Case:
    """One call: a position for each session, tokens of each, padding rows behind them.

    `captured`: with the context that graphs of native kernels have, the plan's capacity.
    """

    positions: tuple[int, ...]
    tokens: int = 1
    padding: int = 0
    captured: bool = False
    seed: int = 0

    def __str__(self) -> str:
        kind = "decode" if self.captured else "prefill"
        return f"{kind}-{len(self.positions)}+{self.padding}x{self.tokens}-at-{self.positions[0]}"


Kernel = Callable[..., Any]
Arguments = tuple[Any, ...]
Named = Mapping[str, Any]


class Layers:
    """Some regions of a shipped spec, compiled for native kernels, with random weights and state."""

    def __init__(
        self,
        spec: str,
        regions: Iterable[str],
        place: torch.device,
        sets: Iterable[str],
        *,
        family: str = "cuda",
        stored_experts: int | None = None,
        weights: Mapping[str, object] | None = None,
    ) -> None:
        folder = Path(mkdtemp()) / "plan"
        write_plan(compile_spec(load(spec, target=family, sets=list(sets))), folder)
        self.plan = load_plan(folder)
        self.manifest, self.place = self.plan.manifest, place
        self.ops = ops_by_region(self.manifest)
        self.regions: dict[str, RegionEntry] = {entry.id: entry for entry in self.manifest.regions}
        self.values: dict[str, ValueEntry] = {entry.id: entry for entry in self.manifest.values}
        kept = {weight for region in regions for op in self.ops[region] for weight in op.weights.values()}
        part = self.manifest.model_copy(update={"weights": [w for w in self.manifest.weights if w.id in kept]})
        self.table_rows = 1 << 16
        self.weights = weights or random_weights(
            part, place, stored_experts=stored_experts, table_rows=self.table_rows, seed=1
        )
        self.pools = Pools(self.manifest, place)
        generator = torch.Generator(place).manual_seed(2)
        for slot in range(self.pools.slots):
            fill_slot(self.pools, self.manifest, slot, generator)
        self.native, self.reference = kernels_for(family, "triton"), kernels_for(family, "reference")

    def step(self, case: Case) -> Step:
        """The place of a call: sessions in slots from the last one down."""
        spare = self.pools.spare
        slots = [spare - 1 - index for index in range(len(case.positions))] + [spare] * case.padding
        positions = [*case.positions, *[0] * case.padding]
        capacity = self.manifest.runtime.max_context
        context = capacity if case.captured else max(positions) + case.tokens
        return Step(torch.tensor(slots, device=self.place), torch.tensor(positions, device=self.place), context)

    def compare(self, region: str, case: Case, *, whole: bool = True, plain: tuple[str, ...] = ()) -> Found:
        """Run a region both ways, and measure how far apart they are.

        `whole`: on native kernels alone as well. `plain`: kinds of calls that only the reference computes.
        """
        entry, step, found = self.regions[region], self.step(case), Found()
        given, made = {}, Inputs(self, step, case)
        names = {value: self.pools.storage_of.get(value) for value in entry.reads}
        state = {name: self.pools.tensors[name] for name in names.values() if name}
        pools, twins, alone = ({name: pool.clone() for name, pool in state.items()} for _ in range(3))
        for value, name in names.items():
            if name is None:
                given[value] = made.value(self.values[value])

        def run(kernels: object, there: Mapping[str, Tensor]) -> dict[str, Tensor]:
            reads = [given[value] if name is None else there[name] for value, name in names.items()]
            weights = region_weights(self.ops[region], self.weights)
            result = self.plan.functions[region](kernels, weights, step, *reads)
            return dict(zip(entry.writes, parts(result), strict=True))

        with torch.no_grad():
            want = run(Paired(self, case, (pools, twins), found, plain), pools)
            if not whole:
                return found
            got = run(self.native, alone)
        rows, spare = len(case.positions), self.pools.spare
        for value, tensor in want.items():
            if value not in self.pools.storage_of:
                whole_value(found, value.partition("@")[0], got[value][:rows], tensor[:rows])
        for name in state:
            trio = (part[name][:spare] for part in (alone, pools, state))
            pool_rows(found, "whole layer", self.pools.kinds[name], *trio, None)
        return found


class Inputs:
    """Random step values, as the layers before would leave them."""

    def __init__(self, layers: Layers, step: Step, case: Case) -> None:
        self.layers, self.step = layers, step
        self.shape = (len(case.positions) + case.padding, case.tokens)
        self.random = torch.Generator(layers.place).manual_seed(case.seed)

    def value(self, entry: ValueEntry) -> Tensor:
        """A step value of the plan."""
        model = self.layers.manifest.model
        sizes = [size for size in entry.shape if isinstance(size, int)]
        if entry.id == "ids":
            return self._integers(model.vocab_size)
        if entry.id == "engram_ids":
            tables = [w.shape[0] for w in self.layers.manifest.weights if w.role == "engram_table"]
            return self._integers(min(*tables, self.layers.table_rows), *sizes)
        if entry.kind == "streams":
            return self._normal(*sizes).to(torch.bfloat16)
        if entry.kind == "pre":
            return torch.softmax(self._normal(*sizes), -1)
        ratio = self._ratio(entry)
        visible = visible_groups(self.step, self.shape[1], ratio)[..., None]
        count = self.step.context // ratio
        group = torch.arange(count, device=self.layers.place)
        if entry.kind == "topk":
            drawn = torch.where(group < visible, self._normal(count), torch.inf).argsort(-1)[..., : model.index_topk]
            ascending = torch.where(drawn < visible, drawn, count).sort(-1).values
            return torch.where(ascending == count, -1, ascending)
        assert entry.kind == "candidates", entry.id
        size = model.candidate_block_size
        block = torch.arange(-(-count // size), device=self.layers.place)
        newest = (visible - 1).div(size, rounding_mode="floor")
        return (block <= newest) & ((block == newest) | (self._normal(len(block)) > 0))

    def _ratio(self, entry: ValueEntry) -> int:
        readers = [op for ops in self.layers.ops.values() for op in ops if op.id in entry.readers]
        return next(int(op.attrs["ratio"]) for op in readers if "ratio" in op.attrs)

    def _normal(self, *sizes: int) -> Tensor:
        return torch.randn(*self.shape, *sizes, generator=self.random, device=self.layers.place)

    def _integers(self, high: int, *sizes: int) -> Tensor:
        return torch.randint(0, high, (*self.shape, *sizes), generator=self.random, device=self.layers.place)


class Paired:
    """Kernels that compute each call three times on the same values, and give what the reference ones gave.

    `both`: pools that the reference works on, and those of native kernels, which are made equal again after each call.
    """

    def __init__(
        self,
        layers: Layers,
        case: Case,
        both: tuple[dict[str, Tensor], dict[str, Tensor]],
        found: Found,
        plain: tuple[str, ...],
    ) -> None:
        self._layers, self._case, self._found, self._plain = layers, case, found, plain
        self._pools, self._twins = both
        self._names = {pool.data_ptr(): name for name, pool in self._pools.items()}

    def __getattr__(self, kind: str) -> Callable[..., Any]:
        return partial(self._call, kind)

    def _call(self, kind: str, *args: Any, **named: Any) -> Any:
        before = {name: pool.clone() for name, pool in self._pools.items()}
        widened = {name: wide(pool.clone()) for name, pool in self._pools.items()}
        native, reference = getattr(self._layers.native, kind), getattr(self._layers.reference, kind)
        if kind in self._plain:
            result = reference(*args, **named)
            for name, pool in self._pools.items():
                self._twins[name].copy_(pool)
            return result
        exact = None
        if kind not in WITHOUT_F32:
            exact = parts(self._on(widened, reference, args, named, wide))
        got = parts(self._on(self._twins, native, args, named, lambda value: value))
        result = reference(*args, **named)
        self._measure(kind, got, parts(result), exact, _sure(kind, args, named))
        spare, kinds = self._layers.pools.spare, self._layers.pools.kinds
        for name, pool in self._pools.items():
            twin, was = self._twins[name], before[name]
            trio = (part[:spare] for part in (twin, pool, was))
            pool_rows(self._found, kind, kinds[name], *trio, None if exact is None else widened[name][:spare])
            if not self._case.padding:
                self._found.add(kind, kinds[name], "spare", (twin[spare] != was[spare]).sum(), 0)
            twin.copy_(pool)
        return result

    def _on(
        self, pools: Mapping[str, Tensor], kernel: Kernel, args: Arguments, named: Named, change: Callable[[Any], Any]
    ) -> Any:
        """A call on other pools, with every other argument changed."""

        def swapped(value: Any) -> Any:
            name = self._names.get(value.data_ptr()) if isinstance(value, Tensor) else None
            return change(value) if name is None else pools[name]

        return kernel(*map(swapped, args), **{name: swapped(value) for name, value in named.items()})

    def _measure(
        self, kind: str, got: Arguments, want: Arguments, exact: Arguments | None, sure: Tensor | None
    ) -> None:
        """Compare step values of sessions; of those that experts go into, tokens whose experts are certain."""
        assert len(got) == len(want), f"{kind} returned {len(got)} values, not {len(want)}"
        rows = len(self._case.positions)
        for place, port in enumerate(CALLS[kind].writes[: len(want)]):
            name = self._names.get(want[place].data_ptr())
            if name is not None:
                assert got[place].data_ptr() == self._twins[name].data_ptr(), f"{kind} moved {port.name}"
                continue
            trio = [part[place][:rows] for part in (got, want, *([] if exact is None else [exact]))]
            if sure is not None and port.name == "streams":
                trio = [part[sure[:rows]][:, None] for part in trio]
            step_value(self._found, kind, port.name, *trio, *([None] if exact is None else []))


def wide(value: Any) -> Any:
    """bf16 as f32; packed weights are decoded to what they meet."""
    if isinstance(value, Tensor):
        return value.float() if value.dtype == torch.bfloat16 else value
    return [wide(item) for item in value] if isinstance(value, list) else value


def parts(result: Any) -> tuple[Tensor, ...]:
    """What a call returned: one value comes bare."""
    return result if isinstance(result, tuple) else (result,)


def _sure(kind: str, args: Arguments, named: Named) -> Tensor | None:
    """Of `ffn`, the tokens [B, T] whose choice of experts does not hang on the last bits."""
    if kind != "ffn":
        return None
    ports = CALLS[kind]
    given = dict(zip([port.name for port in ports.reads] + list(ports.weights), args[1:], strict=True))
    x = norm(wide(collapse(given["streams"], given["pre"])), given["norm_weight"], eps=named["norm_eps"])
    score = torch.nn.functional.softplus(linear(x, wide(given["route_gate"])) / named["route_gate_temp"]).sqrt()
    best = (score + given["route_bias"]).sort(-1, descending=True).values
    active = named["route_active"]
    return best[..., active - 1] - best[..., active] > TIE if active < best.shape[-1] else None
