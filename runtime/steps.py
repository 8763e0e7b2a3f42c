"""What one process runs of a plan: its places with their weights and state, and steps, eager and captured."""

from __future__ import annotations

import zlib
from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from dsv41c.kernels.collectives import Collectives
from dsv41c.kernels.fusion import NATIVE_VARIANT
from dsv41c.kernels.registry import kernels_for
from dsv41c.kernels.step import Step
from dsv41c.runtime.captured import CapturedSteps
from dsv41c.runtime.constants import make_constants
from dsv41c.runtime.device.families import device_for, kernel_variants
from dsv41c.runtime.device.tensors import integers
from dsv41c.runtime.executor import Executor, LoadedPlan
from dsv41c.runtime.faults.loading import expected_to_fit
from dsv41c.runtime.faults.told import raise_told
from dsv41c.runtime.faults.weights import unfit_weights
from dsv41c.runtime.ledger import Ledger
from dsv41c.runtime.manifest import Manifest
from dsv41c.runtime.ngrams import CONSTANTS
from dsv41c.runtime.prefetch import Fetched, Prefetch, readers
from dsv41c.runtime.recording import Trace
from dsv41c.runtime.refusals import raise_if
from dsv41c.runtime.stages.crossing import Rows
from dsv41c.runtime.stages.layout import Layout
from dsv41c.runtime.stages.processes import ProcessTransport
from dsv41c.runtime.stages.transport import Ended, LocalTransport, Transport
from dsv41c.runtime.stages.weights import placed, used_by
from dsv41c.runtime.stages.world import World
from dsv41c.runtime.state import Pools
from dsv41c.runtime.weights.bind import bind


def load_weights(
    manifest: Manifest, checkpoint: Path | str, shard: int = 0, wanted: Container[str] | None = None
) -> dict[str, object]:
    """Every weight and constant of a plan by id, those of a shard where processes share its stages.

    With `wanted`, only these ids. Raises `UserFault` with all findings where they do not fit.
    """
    bound = bind(manifest, Path(checkpoint), shard, wanted)
    weights: dict[str, object] = {name: bound[name] for name in bound}
    return weights | make_constants(manifest, Path(checkpoint), wanted)


class Steps:
    """The steps of a plan on the devices of this process: all of the plan's, or in a `world` its own one.

    `weights`, `kernels`, `strict`, `check_finite` and `checks` (debug 2) as for `Engine`.
    """

    def __init__(
        self,
        plan: LoadedPlan,
        checkpoint: Path | str,
        *,
        weights: Mapping[str, object] | None = None,
        kernels: object | None = None,
        checks: bool = False,
        check_finite: bool = False,
        strict: bool = False,
        collectives: Collectives | None = None,
        world: World | None = None,
    ) -> None:
        manifest, family = plan.manifest, plan.manifest.target.family
        self.manifest = manifest
        self.layout = Layout.of(manifest)
        self.devices = {
            place: device_for(manifest, name=name, strict=strict, checks=checks)
            for place, name in devices_here(manifest, world).items()
        }
        places = {place: device.place for place, device in self.devices.items()}
        with expected_to_fit(manifest.name):
            if weights is None:
                wanted = {name for used in used_by(manifest, self.layout, places).values() for name in used}
                weights = load_weights(manifest, checkpoint, collectives.rank if collectives is not None else 0, wanted)
            if check_finite:
                raise_if(unfit_weights(manifest, weights))
            constants = {name: weights[name] for name in _hash_constants(manifest) if name in weights}
            self.weights = placed(weights, manifest, self.layout, places)
            self.pools = Pools(manifest, {self.layout.devices[place]: device for place, device in places.items()})
        if checks:
            self.pools.ledger = Ledger(manifest, self.pools)
        eager, captured = kernel_variants(manifest, strict=strict)
        chosen = kernels if kernels is not None else kernels_for(family, eager, collectives)
        self._together = world is not None
        (first, *_) = places.values()
        transport: Transport = LocalTransport(places)
        if world is not None and len(self.layout.devices) > 1:
            transport = ProcessTransport(world, self.layout, first)
        self.executor = Executor(
            plan,
            chosen,
            self.weights,
            self.pools,
            checks=checks,
            check_finite=check_finite,
            transport=transport,
            local=places,
        )
        self.prefetch = self._prefetch(constants)
        self.captured: CapturedSteps | None = None
        sizes = {size for size in manifest.runtime.decode_buckets if 1 <= size <= self.pools.spare}
        self.buckets = tuple(sorted(sizes or {1}))
        if self.devices[min(places)].captures and not check_finite and manifest.runtime.capture != "off":
            static = kernels if kernels is not None else kernels_for(family, captured, collectives)
            # Native kernels follow real lengths on the device, so one graph serves every context.
            contexts = (manifest.runtime.max_context,) if captured == NATIVE_VARIANT.get(family) else None
            self.captured = CapturedSteps(self.executor, self.devices, static, self.buckets, contexts)

    def _prefetch(self, constants: Mapping[str, object]) -> Prefetch | None:
        """None where no table here is read on the host, or the constants of the hash are not here."""
        regions, weights = self.executor.ops, self.executor.weights
        known = {name.removeprefix("engram."): each for name, each in constants.items() if isinstance(each, Tensor)}
        if not readers(regions, weights) or not known.keys() >= set(CONSTANTS):
            return None
        pools = self.pools
        pool = next((tensor for name, tensor in pools.tensors.items() if pools.kinds[name] == "token_history"), None)
        return Prefetch(self.manifest, regions, weights, {name: known[name] for name in CONSTANTS}, pool)

    @staticmethod
    def places_of(manifest: Manifest, world: World | None) -> dict[int, torch.device]:
        """The devices of the places that a process runs."""
        return {place: device_for(manifest, name=name).place for place, name in devices_here(manifest, world).items()}

    @property
    def in_flight(self) -> int:
        """How many steps of one prompt may be under way: enough to keep every stage at work."""
        return len(self.layout.stages) + 1

    def bucket(self, rows: int) -> int:
        """The smallest bucket that holds so many rows."""
        return next(size for size in self.buckets if size >= rows)

    def is_captured(self, width: int, trace: Trace | None) -> bool:
        """Whether a step of so many tokens a row is captured: a bucket of rows, padded."""
        return self.captured is not None and width == 1 and trace is None

    def prepare(self, context: int) -> None:
        """Capture what steps up to a context need, on padding rows alone: what fails here breaks no session."""
        if self.captured is not None:
            with torch.no_grad():
                self.captured.prepare(context)

    def begin(self, ids: Sequence[Sequence[int]], rows: Rows, trace: Trace | None) -> Ended:
        """Ask for a step of token ids [B, T], padding rows included; checks nothing. It ends with logits [n, T, V]."""
        if self._together:
            rows = replace(rows, digest=zlib.crc32(repr(ids).encode()))
        begun, last = self.executor.begun, self.executor.stages[-1]
        begun.append(rows)
        try:
            with torch.no_grad():
                fetched = self.prefetch.begin(ids, rows) if self.prefetch is not None else None
                if self.captured is not None and self.is_captured(rows.tokens, trace):
                    logits = self.captured.run([row[0] for row in ids], rows, fetched)
                else:
                    logits = self._eager(ids, rows, trace, fetched)
                ended = self.executor.transport.finish(logits, rows, self.manifest.model.vocab_size)
        except BaseException as error:
            where = self.executor.where("waiting", last, last.regions, rows)
            begun.pop()
            if not isinstance(error, Exception):
                raise
            raise_told(error, where)

        def wait() -> Tensor:
            try:
                return ended.logits()
            except Exception as error:
                raise_told(error, self.executor.where("waiting", last, last.regions, rows))
            finally:
                if rows in begun:
                    begun.remove(rows)

        return Ended(wait)

    def _eager(
        self, ids: Sequence[Sequence[int]], rows: Rows, trace: Trace | None, fetched: Fetched | None
    ) -> Tensor | None:
        slots = [*rows.slots, *[self.pools.spare] * rows.padding]
        positions = [*rows.positions, *[0] * rows.padding]
        steps = {
            place: Step(integers(slots, device.place), integers(positions, device.place), rows.context)
            for place, device in self.devices.items()
        }
        record = trace.begin() if trace is not None else None
        first = self.devices[self.executor.stages[0].place].place
        weights = None
        if fetched is not None and self.prefetch is not None:
            weights = self.prefetch.over(self.executor.weights, fetched, self.executor.checks)
        return self.executor.run_stages(integers(ids, first), steps, rows, record, tail=rows.tail, weights=weights)


def _hash_constants(manifest: Manifest) -> set[str]:
    """Ids of the constants that the hash of n-grams takes."""
    return {weight for op in manifest.ops if op.kind == "engram_ids" for weight in op.weights.values()}


def devices_here(manifest: Manifest, world: World | None) -> dict[int, str]:
    """The places that a process runs, each with the name of its device on this host."""
    if world is None:
        return dict(enumerate(Layout.of(manifest).devices))
    return {world.place: f"{manifest.target.family}:{world.local}"}
