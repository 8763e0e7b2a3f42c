"""What to measure, and what of it a plan has no room for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path

from dsv41c.diagnostics import Diagnostic
from dsv41c.runtime.bench.arms import ARMS
from dsv41c.runtime.manifest import Manifest, ModelEntry
from dsv41c.words import counted, joined


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
    """Findings (DSV880 to DSV883) where a plan has not what is asked of it. Of memory `room.too_large` knows."""
    return [
        *_batches(manifest, [cell.batch for cell in options.cells]),
        *_contexts(manifest, [*(cell.context for cell in options.cells), *(item.tokens for item in options.prompts)]),
        *_arms(options.arms),
        *_experts(manifest, options.stored_experts),
    ]


def not_comparable(manifest: Manifest, against: Manifest, options: BenchOptions) -> list[Diagnostic]:
    """Findings where a plan cannot be set against another: DSV885, and those that `not_measurable` has for it alone."""
    wrong = [
        f"its {name} is {there}, not {here}"
        for name, there, here in _settings(manifest, against, options)
        if there != here
    ]
    if against.model != manifest.model:
        wrong.append(f"it is of another model: {_other(manifest.model, against.model)}")
    devices = len(set(against.target.devices)) * against.target.tensor_parallel
    if devices != 1:
        wrong.append(f"it takes {devices} devices, not one")
    if wrong:
        help_text = "compile the same spec once more, with `placement.devices` of one device, without `tensor_parallel`"
        return [Diagnostic("DSV885", f"a plan to measure against does not fit: {'; '.join(wrong)}", help=help_text)]
    known = {found.message for found in not_measurable(manifest, options)}
    facts = (("plan", f"`{against.name}`, the one to measure against"),)
    return [
        replace(found, facts=(*facts, *found.facts))
        for found in not_measurable(against, options)
        if found.message not in known
    ]


def _settings(manifest: Manifest, against: Manifest, options: BenchOptions) -> Iterator[tuple[str, object, object]]:
    """What has to be the same: name, the other plan's, this one's."""
    yield "family of devices", against.target.family, manifest.target.family
    for name in type(manifest.numerics).model_fields:
        yield f"`numerics.{name}`", getattr(against.numerics, name), getattr(manifest.numerics, name)
    yield "`runtime.capture`", against.runtime.capture, manifest.runtime.capture
    if options.prompts:
        yield "`runtime.prefill_chunk`", against.runtime.prefill_chunk, manifest.runtime.prefill_chunk
    if against.engram is not None and manifest.engram is not None:
        yield "`engram.storage`", against.engram.storage, manifest.engram.storage


def _other(model: ModelEntry, against: ModelEntry) -> str:
    names = [name for name in type(model).model_fields if getattr(model, name) != getattr(against, name)]
    return ", ".join(f"`{name}` {getattr(against, name)}, not {getattr(model, name)}" for name in names)


def _batches(manifest: Manifest, batches: Sequence[int]) -> list[Diagnostic]:
    limit, most = manifest.runtime.max_sessions, max(batches, default=0)
    if most <= limit:
        return []
    help_text = f"measure fewer sessions, or compile the plan with `--set runtime.max_sessions={most}`"
    return [
        Diagnostic(
            "DSV880", f"a batch of {most} is more than the plan has: {counted(limit, 'session')}", help=help_text
        )
    ]


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
