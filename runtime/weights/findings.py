"""Findings about many tensors, gathered so that one cause is one finding: by role, by layer, by number of experts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from dsv41c import words
from dsv41c.diagnostics import Diagnostic, Span
from dsv41c.runtime.manifest import WeightEntry
from dsv41c.runtime.weights.headers import Checkpoint, TensorHeader
from dsv41c.runtime.weights.names import spellings
from dsv41c.runtime.weights.shard import LISTED

_LAYER = re.compile(r"layers\.(0|[1-9]\d{0,8})\.(.+)")
_EXPERT = re.compile(r"(layers\.\d+\..*?experts\.)(0|[1-9]\d{0,8})\.")

_HELP_LAYERS = "correct the layer map of the spec, or use the checkpoint that belongs to it"
_HELP_OTHER = "use the checkpoint that belongs to the spec"
_HELP_NAMES = "use the checkpoint that belongs to the spec, or name its tensors in a way that is known here"
_HELP = {
    "DSV722": "correct the width in the spec, or use the checkpoint that belongs to it",
    "DSV723": "correct the `weights` section of the spec, or export the tensor in an encoding that it takes",
    "DSV724": "export the scale along with the weight",
    "DSV725": "correct the `weights` section of the spec if every tensor of the role disagrees; else export again",
    "DSV726": "remove the one that does not hold",
    "DSV727": "remove the scale if the tensor has been scaled already; else export the tensor again",
}
_HELP_COUNT = "set `model.n_layers` to the checkpoint's number of layers"


@dataclass(slots=True)
class Faults:
    """Faults of single tensors; equal ones of a role become one finding that names the first and counts the rest."""

    _groups: dict[tuple[str, str, str, str, str], list[TensorHeader]] = field(default_factory=dict)

    def add(self, code: str, entry: WeightEntry, tensor: TensorHeader, kind: str, text: str, help: str = "") -> None:
        """Note that `KIND NAME TEXT`; the way out is the code's unless one is given."""
        self._groups.setdefault((code, entry.role, kind, text, help or _HELP[code]), []).append(tensor)

    def diagnostics(self) -> list[Diagnostic]:
        """The findings, in the order in which their first tensors came."""
        found = []
        for (code, role, kind, text, help_text), tensors in self._groups.items():
            first = tensors[0]
            more = f" (and {len(tensors) - 1:,} more of role `{role}`)" if len(tensors) > 1 else ""
            facts = _facts([tensor.stored for tensor in tensors]) if more else ()
            message = f"{kind} `{first.stored}` {text}{more}"
            found.append(Diagnostic(code, message, Span(first.file), facts=facts, help=help_text))
        return found


def _facts(names: Sequence[str]) -> tuple[tuple[str, str], ...]:
    return (("tensors", words.shortlist([f"`{name}`" for name in names], LISTED)),)


def _by_layers(names: Iterable[str]) -> list[tuple[list[int], list[str]]]:
    """Names grouped by what is the same about them: layers in which the same names occur, and names of no layer."""
    layers: dict[int, list[str]] = {}
    alone: list[tuple[list[int], list[str]]] = []
    for name in names:
        found = _LAYER.fullmatch(name)
        if found:
            layers.setdefault(int(found[1]), []).append(found[2])
        else:
            alone.append(([], [name]))
    alike: dict[tuple[str, ...], list[int]] = {}
    for layer in sorted(layers):
        alike.setdefault(tuple(layers[layer]), []).append(layer)
    return alone + [
        (numbers, [f"layers.{layer}.{rest}" for layer in numbers for rest in rests]) for rests, numbers in alike.items()
    ]


def _listed(numbers: list[int], names: list[str]) -> str:
    if len(names) == 1:
        return f"tensor `{names[0]}`"
    where = f" of {words.layers(numbers)}" if numbers else ""
    return f"tensor `{names[0]}` and {len(names) - 1:,} more{where}"


def missing(
    absent: list[tuple[WeightEntry, str]], entries: Sequence[WeightEntry], checkpoint: Checkpoint
) -> list[Diagnostic]:
    """Findings for tensors that the plan needs and no file has: one for layers that lack the same tensors."""
    tried = spellings if checkpoint.gguf is None else checkpoint.gguf.family.spellings
    wanted: dict[int | None, int] = {}
    for entry in entries:
        wanted[entry.layer] = wanted.get(entry.layer, 0) + entry.count
    if len(absent) == sum(wanted.values()) and len(absent) > 1:  # another model, or names that nobody knows here
        names = [name for _, name in absent]
        text = f"none of the {len(names):,} tensors that the plan needs is in the checkpoint"
        facts = (*_facts(names), ("tried", ", ".join(tried(names[0]))))
        return [Diagnostic("DSV720", text, facts=facts, help=_HELP_NAMES)]
    found = []
    for numbers, names in _by_layers(name for _, name in absent):
        whole = bool(numbers) and len(names) == sum(wanted.get(layer, 0) for layer in numbers)
        text = f"{_listed(numbers, names)} not in checkpoint" + (" (all that the plan needs there)" if whole else "")
        facts = (*(_facts(names) if len(names) > 1 else ()), ("tried", ", ".join(tried(names[0]))))
        help_text = _HELP_COUNT if whole else _HELP_LAYERS if numbers else _HELP_OTHER
        found.append(Diagnostic("DSV720", text, facts=facts, help=help_text))
    return found


def unexpected(names: list[str], entries: Sequence[WeightEntry]) -> list[Diagnostic]:
    """Findings for tensors that nothing reads: one for layers that have the same ones, one a foreign family."""
    planned = {entry.layer for entry in entries}
    families: dict[str, list[str]] = {}
    found = []
    groups = _by_layers(names)
    beyond = [group for group in groups if group[0] and not planned & set(group[0])]
    if beyond:  # one cause, though layers differ in what they hold
        numbers = sorted(number for group in beyond for number in group[0])
        found.append(_surplus_layers(numbers, [name for group in beyond for name in group[1]]))
    for numbers, group in (group for group in groups if group not in beyond):
        if not numbers:
            families.setdefault(group[0].partition(".")[0], []).extend(group)
            continue
        text = f"{_listed(numbers, group)} in checkpoint, which the plan does not use"
        found.append(Diagnostic("DSV721", text, facts=_facts(group) if len(group) > 1 else (), help=_HELP_LAYERS))
    for group in families.values():
        text = f"{_listed([], group)} in checkpoint, which the plan does not use"
        found.append(Diagnostic("DSV721", text, facts=_facts(group) if len(group) > 1 else (), help=_HELP_OTHER))
    return found


def _surplus_layers(numbers: list[int], names: list[str]) -> Diagnostic:
    text = f"{_listed(numbers, names)} in checkpoint, and the plan has no such layer"
    return Diagnostic("DSV721", text, facts=_facts(names) if len(names) > 1 else (), help=_HELP_COUNT)


@dataclass(slots=True)
class ExpertCounts:
    """Layers whose checkpoint has experts 0 to n - 1 for another n than the plan; those experts are followers."""

    diagnostics: list[Diagnostic] = field(default_factory=list)
    surplus: set[str] = field(default_factory=set)
    _found: dict[str, int] = field(default_factory=dict)

    def beyond(self, entry: WeightEntry, expert: int) -> bool:
        """Whether a missing expert is explained by the number of experts in the file."""
        return expert >= self._found.get(entry.name.partition("{expert}")[0], entry.count)


def expert_counts(entries: Sequence[WeightEntry], checkpoint: Checkpoint) -> ExpertCounts:
    """Compare the number of experts a layer, where the file numbers them from 0 without gaps."""
    wanted = {entry.name.partition("{expert}")[0]: entry for entry in entries if "{expert}" in entry.name}
    names: dict[str, dict[int, list[str]]] = {}
    for name in checkpoint.tensors:
        found = _EXPERT.match(name)
        if found and found[1] in wanted:
            names.setdefault(found[1], {}).setdefault(int(found[2]), []).append(name)
    hidden = {found[1] for found in map(_EXPERT.match, checkpoint.damaged) if found}
    result = ExpertCounts()
    alike: dict[tuple[int, int], list[int]] = {}
    for group, experts in names.items():
        entry, count = wanted[group], len(experts)
        if count == entry.count or max(experts) != count - 1 or group in hidden or not checkpoint.complete:
            continue
        alike.setdefault((count, entry.count), []).append(entry.layer or 0)
        result._found[group] = count
        result.surplus.update(name for expert in range(entry.count, count) for name in experts[expert])
    for (count, planned), layers in alike.items():
        text = f"the checkpoint has {words.counted(count, 'expert')} in {words.layers(layers)}, the plan {planned}"
        result.diagnostics.append(Diagnostic("DSV728", text, help=f"set `moe.n_routed_experts` to {count}"))
    return result
