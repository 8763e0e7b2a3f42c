"""The reference executor: the ops of a manifest one by one on the plain torch kernels, every value kept by id.

It needs no generated code. It can be fed any values and run any range of ops, so that checking one layer from known
inputs is one call.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from dsv41c.diagnostics import Diagnostic, UserFault
from dsv41c.kernels.catalog import CARRIERS, OPS
from dsv41c.kernels.registry import kernels_for
from dsv41c.kernels.step import Step
from dsv41c.runtime.manifest import Manifest, OpEntry
from dsv41c.runtime.recording import by_port
from dsv41c.runtime.state import Pools
from dsv41c.words import joined


def call_op(op: OpEntry, kernels: object, weights: Mapping[str, object], step: Step, values: Mapping[str, Any]) -> Any:
    """Call an op's kernel by the catalogue's convention, on values and weights by id; its bare result."""
    entry = OPS[op.kind]
    arguments: list[object] = [step] if entry.uses_step else []
    arguments += [values[op.reads[port.name]] for port in entry.reads if not port.optional]
    arguments += [weights[op.weights[name]] for name in entry.weights]
    named: dict[str, object] = {
        port.name: values[op.reads[port.name]] for port in entry.reads if port.optional and port.name in op.reads
    }
    named |= {name: weights[op.weights[name]] for name in entry.optional_weights if name in op.weights}
    return getattr(kernels, op.kind)(*arguments, **named, **op.attrs)


class ReferenceExecutor:
    """Runs a manifest's ops value by value, on pools of its own unless some are given."""

    def __init__(
        self,
        manifest: Manifest,
        weights: Mapping[str, object],
        *,
        kernels: object | None = None,
        pools: Pools | None = None,
    ) -> None:
        self.manifest = manifest
        self.weights = weights
        self.kernels = kernels if kernels is not None else kernels_for("cpu")
        self.pools = pools if pools is not None else Pools(manifest)
        self.ops = tuple(manifest.ops)

    def run(
        self,
        step: Step,
        feeds: Mapping[str, Tensor],
        *,
        first: str | int | None = None,
        until: str | int | None = None,
    ) -> dict[str, Tensor]:
        """Every value known at the end by id: feeds, session pools, and what the ops from `first` to `until` wrote.

        `first` and `until` (included) are a layer number, an op id or a value id (the op that writes it); without them,
        everything. A feed replaces the value of that id: an op that would write it still runs, and its result is
        dropped. Feeds of step values are [B, T, ...]; feeds of session values are rows [B, n, ...] and are written to
        the start of the pools of `step.slots` first. Raises `UserFault` (DSV867) for names the plan does not have, and
        KeyError, naming it, for a value that the range reads and nobody gave.
        """
        values: dict[str, Tensor] = dict(self.pools.environment())
        for value, tensor in feeds.items():
            if value in self.pools.storage_of:
                for slot, rows in zip(step.slots.tolist(), tensor, strict=True):
                    self.pools.load(value, slot, rows)
            else:
                values[value] = tensor
        begin = 0 if first is None else self.place(first)[0]
        end = len(self.ops) - 1 if until is None else self.place(until)[1]
        with torch.no_grad():
            for op in self.ops[begin : end + 1]:
                missing = [value for value in op.reads.values() if value not in values]
                if missing:
                    raise KeyError(f"`{op.id}` reads {', '.join(missing)}: feed it, or start earlier")
                written = by_port(op, self._result(op, step, values))
                values.update({value: tensor for value, tensor in written.items() if value not in feeds})
        return values

    def _result(self, op: OpEntry, step: Step, values: Mapping[str, Any]) -> Any:
        """What an op writes. What goes to another stage stays here: a mirror is all that its source holds."""
        if op.kind not in CARRIERS:
            return call_op(op, self.kernels, self.weights, step, values)
        source, (target,) = values[op.reads["value"]], op.writes.values()
        if target not in self.pools.storage_of:
            return source
        mirror: Tensor = values[target]
        mirror[step.slots] = source[step.slots]
        return mirror

    def place(self, name: str | int) -> tuple[int, int]:
        """Indices of the first and the last op that a layer number, an op id or a value id names."""
        matches = [
            index
            for index, op in enumerate(self.ops)
            if (op.layer == name if isinstance(name, int) else op.id == name or name in op.writes.values())
        ]
        if not matches:
            raise UserFault([unknown_value(self.manifest, name)])
        return matches[0], matches[-1]


def unknown_value(manifest: Manifest, name: str | int) -> Diagnostic:
    """The finding for a value, op or layer that a plan does not have."""
    from difflib import get_close_matches

    known = [value.id for value in manifest.values] + [op.id for op in manifest.ops]
    near = get_close_matches(str(name), known, n=3)
    what = f"layer {name}" if isinstance(name, int) else f"value `{name}`"
    return Diagnostic(
        "DSV867",
        f"the plan has no {what}",
        facts=(("layers", str(manifest.model.n_layers)), ("values", str(len(manifest.values)))),
        help=f"did you mean {joined([f'`{each}`' for each in near], 'or')}?"
        if near
        else "look for it in `manifest.json` of the plan, which lists values by id",
    )
