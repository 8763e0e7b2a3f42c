"""What to measure, and what of it a plan has no room for."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path

import torch

from dsv41c.diagnostics import Diagnostic
from dsv41c.runtime.bench.arms import ARMS
from dsv41c.runtime.bench.random_weights import held_bytes
from dsv41c.runtime.manifest import Manifest
from dsv41c.runtime.memory import pool_bytes
from dsv41c.words import counted, joined, size


@dataclass(frozen=True, slots=True)
class Cell:
    """So many sessions, each of so many tokens after its last step."""

    batch: int
    context: int


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt to read: `kinds` of `tail` (the exact one), `every` (all rows) and `bounded`."""

    tokens: int
    kinds: tuple[str, ...] = ("tail", "every")


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """What to measure. `weights`: None for random ones; `stored_experts`: None for all; `budget` in seconds.

    `steps` of a turn at most, `rounds` of turns. Nothing new is begun once `budget` is used up.
    """

    cells: tuple[Cell, ...]
    weights: Path | None = None
    stored_experts: int | None = None
    arms: tuple[str, ...] = tuple(ARMS)
    prompts: tuple[Prompt, ...] = ()
    steps: int = 50
    rounds: int = 7
    seed: int = 0
    profile: bool = False
    budget: float | None = None
    label: str | None = None


def not_measurable(manifest: Manifest, options: BenchOptions) -> list[Diagnostic]:
    """Findings (DSV880 to DSV884) where a plan or this machine has no room for what is asked."""
    found = [
        *_batches(manifest, [cell.batch for cell in options.cells]),
        *_contexts(manifest, [*(cell.context for cell in options.cells), *(item.tokens for item in options.prompts)]),
        *_arms(options.arms),
        *_experts(manifest, options.stored_experts),
    ]
    return found or (_memory(manifest, options.stored_experts) if options.weights is None else [])


def not_comparable(manifest: Manifest, against: Manifest, options: BenchOptions) -> list[Diagnostic]:
    """Findings where a plan cannot be set against another: DSV885, and those of `not_measurable` for the other."""
    devices = len(set(against.target.devices)) * against.target.tensor_parallel
    wrong = []
    if against.model != manifest.model:
        wrong.append(f"it is of another model (`{against.name}`, not `{manifest.name}`)")
    if against.target.family != manifest.target.family:
        wrong.append(f"it is for {against.target.family}, not {manifest.target.family}")
    if against.numerics != manifest.numerics:
        wrong.append("it has other numerics")
    if devices != 1:
        wrong.append(f"it takes {devices} devices, not one")
    if wrong:
        help_text = "compile the same spec with `placement.devices` of one device and without `tensor_parallel`"
        return [Diagnostic("DSV885", f"a plan to measure against does not fit: {'; '.join(wrong)}", help=help_text)]
    facts = (("plan", f"`{against.name}`, the one to measure against"),)
    return [replace(found, facts=(*facts, *found.facts)) for found in not_measurable(against, options)]


def _batches(manifest: Manifest, batches: Sequence[int]) -> list[Diagnostic]:
    limit, most = manifest.runtime.max_sessions, max(batches, default=0)
    if most <= limit:
        return []
    help_text = f"measure fewer sessions, or compile the plan with `--set runtime.max_sessions={most}`"
    return [Diagnostic("DSV880", f"a batch of {most} is more than the {limit} sessions of the plan", help=help_text)]


def _contexts(manifest: Manifest, contexts: Sequence[int]) -> list[Diagnostic]:
    limit, most = manifest.runtime.max_context, max(contexts, default=0)
    if most <= limit:
        return []
    help_text = f"measure a shorter context, or compile the plan with `--set runtime.max_context={most}`"
    return [
        Diagnostic(
            "DSV881", f"{most} tokens are more than the {limit} that a session of the plan holds", help=help_text
        )
    ]


def _arms(names: Sequence[str]) -> list[Diagnostic]:
    found = []
    for name in names:
        if name not in ARMS:
            near = get_close_matches(name, ARMS, n=1)
            help_text = f"did you mean `{near[0]}`?" if near else f"give {joined([f'`{arm}`' for arm in ARMS], 'or')}"
            found.append(Diagnostic("DSV882", f"`{name[:40]}` is no arm of a benchmark", help=help_text))
    return found


def _experts(manifest: Manifest, stored: int | None) -> list[Diagnostic]:
    if stored is None:
        return []
    routed = max((entry.count for entry in manifest.weights if "{expert}" in entry.name), default=0)
    active = max((int(op.attrs["active"]) for op in manifest.ops if op.kind == "route"), default=0)
    if active <= stored <= routed:
        return []
    message = (
        f"{counted(stored, 'stored expert')} a layer, expected {active} to {routed}, of which a token takes {active}"
    )
    return [Diagnostic("DSV883", message, help=f"give a number from {active} to {routed}, or leave it out")]


def _memory(manifest: Manifest, stored: int | None) -> list[Diagnostic]:
    """A finding where weights and state cannot fit; what else takes memory is not known beforehand."""
    needed = held_bytes(manifest, stored_experts=stored) + pool_bytes(manifest)
    there = memory_of(manifest)
    if there is None or needed <= there:
        return []
    message = f"weights and state of this plan take {size(needed)}, and the device has {size(there)}"
    help_text = "give `--stored-experts N`, or compile with a smaller `runtime.max_context` or `runtime.max_sessions`"
    return [Diagnostic("DSV884", message, help=help_text)]


def memory_of(manifest: Manifest) -> int | None:
    """Bytes of memory of the plan's device, free ones where that can be told; None where nothing can be."""
    if manifest.target.family == "cpu":
        pages = os.sysconf("SC_PHYS_PAGES") if "SC_PHYS_PAGES" in os.sysconf_names else 0
        return pages * os.sysconf("SC_PAGE_SIZE") if pages > 0 else None
    if not torch.cuda.is_available():
        return None
    return int(torch.cuda.mem_get_info(manifest.target.devices[0].replace("rocm", "cuda"))[0])
