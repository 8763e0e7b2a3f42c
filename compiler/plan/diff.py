"""What became different between two plans, in a few lines: layers that changed alike share a line.

`~` changed, `+` added, `-` removed. Positions in the spec and hashes are left out: they follow from the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dsv41c.compiler.ir import layer_of, split_stage
from dsv41c.kernels.catalog import CARRIERS
from dsv41c.runtime.manifest import EngramLayerEntry, Entry, Manifest, OpEntry, ShardEntry
from dsv41c.words import ranges, shortlist

_SECTIONS = ("tool", "name", "target", "model", "tokens", "numerics", "runtime", "engram")
_MANY = 6


@dataclass(frozen=True, slots=True)
class Difference:
    """The lines, and how many of each sort."""

    lines: tuple[str, ...]
    changed: int
    added: int
    removed: int

    @property
    def summary(self) -> str:
        """`3 changed, 1 added, 0 removed`."""
        return f"{self.changed} changed, {self.added} added, {self.removed} removed"


@dataclass(frozen=True, slots=True)
class _Change:
    """One change of one thing. Changes of the same `text` and sort are shown together, by what they happened to."""

    sort: str
    what: str
    layer: int | None
    text: str


def diff(old: Manifest, new: Manifest) -> Difference:
    """What is different in `new`."""
    changes = [*_settings(old, new), *_placed(old, new)]
    changes += _listed("value", _values(old), _values(new), ("kind", "shape", "dtype"), _value_name)
    changes += _listed("op", _ops(old), _ops(new), ("kind", "reads", "writes", "attrs"), _op_name)
    changes += _listed("weight", old.weights, new.weights, ("shape", "count", "stored", "dtype", "shard"), _op_name)
    changes += _listed("constant", old.constants, new.constants, ("attrs",), lambda entry: (entry.id, None))
    changes += _transfers(old, new)
    changes += _kernels(old, new)
    lines = tuple(_lines(changes))
    counts = {sort: sum(line.startswith(sort) for line in lines) for sort in "~+-"}
    if not lines and old != new:
        lines = ("~ positions, code or texts of the plan, not what it does",)
        counts["~"] = 1
    return Difference(lines, counts["~"], counts["+"], counts["-"])


def _lines(changes: Iterable[_Change]) -> Iterable[str]:
    """One line for the changes of one sort and text: first fold layers, then things."""
    layers: dict[tuple[str, str, str], list[int | None]] = {}
    for change in changes:
        layers.setdefault((change.sort, change.text, change.what), []).append(change.layer)
    things: dict[tuple[str, str, str], list[str]] = {}
    for (sort, text, what), numbers in layers.items():
        known = {number for number in numbers if number is not None}
        where = f"layers.{ranges(known).replace(', ', ',')}" if known else ""
        things.setdefault((sort, text, where), []).append(what)
    for (sort, text, where), names in things.items():
        yield " ".join(part for part in (sort, where, shortlist(names, _MANY), text) if part)


def _settings(old: Manifest, new: Manifest) -> Iterable[_Change]:
    before, after = (_flat({name: getattr(plan, name) for name in _SECTIONS}) for plan in (old, new))
    for path in dict.fromkeys((*before, *after)):
        if path not in before:
            yield _Change("+", path, None, _shown(after[path]))
        elif path not in after:
            yield _Change("-", path, None, "")
        elif before[path] != after[path]:
            yield _Change("~", path, None, f"{_shown(before[path])} -> {_shown(after[path])}")


def _values(plan: Manifest) -> list[Any]:
    """Values once: neither their copies on other stages, which the transfers tell, nor what state was before."""
    return [value for value in plan.values if split_stage(value.id)[0] == value.id and ".before" not in value.id]


def _ops(plan: Manifest) -> list[OpEntry]:
    """Ops that compute, reading and writing values by their own ids."""
    return [
        op.model_copy(
            update={
                ports: {name: split_stage(value)[0] for name, value in getattr(op, ports).items()}
                for ports in ("reads", "writes")
            }
        )
        for op in plan.ops
        if op.kind not in CARRIERS
    ]


def _flat(content: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in content.items():
        if isinstance(value, Entry):
            flat |= _flat(dict(value), f"{prefix}{name}.")
        elif isinstance(value, list) and value and isinstance(value[0], EngramLayerEntry):
            flat[prefix + name] = [entry.layer for entry in value]
            flat[f"{prefix}tables"] = [f"{entry.layer}: {sum(entry.primes)} rows" for entry in value]
        elif value is not None:
            flat[prefix + name] = value
    return flat


def _placed(old: Manifest, new: Manifest) -> Iterable[_Change]:
    """Layers that are on another stage or device."""
    before, after = (_homes(plan) for plan in (old, new))
    for layer in range(min(len(before), len(after))):
        (stage, device), (to, target) = before[layer], after[layer]
        if stage != to:
            yield _Change("~", "", layer, f"stage {stage} -> {to}")
        if device != target:
            yield _Change("~", "", layer, f"device {device} -> {target}")


def _homes(plan: Manifest) -> list[tuple[int, str]]:
    return [(stage.index, stage.device) for stage in plan.stages for _ in range(stage.first_layer, stage.end_layer)]


def _listed(
    word: str,
    old: Sequence[Any],
    new: Sequence[Any],
    fields: tuple[str, ...],
    name: Callable[[Any], tuple[str, int | None]],
) -> Iterable[_Change]:
    """Entries by id: those gone, those that came, and fields that differ."""
    before, after = ({entry.id: entry for entry in entries} for entries in (old, new))
    for key in dict.fromkeys((*before, *after)):
        what, layer = name(after.get(key) or before[key])
        if key not in before:
            yield _Change("+", f"{word} {what}", layer, "")
        elif key not in after:
            yield _Change("-", f"{word} {what}", layer, "")
        else:
            yield from _fields(word, what, layer, before[key], after[key], fields)


def _fields(
    word: str, what: str, layer: int | None, before: Any, after: Any, fields: tuple[str, ...]
) -> Iterable[_Change]:
    for field in fields:
        old, new = getattr(before, field), getattr(after, field)
        if old == new:
            continue
        if isinstance(old or new, ShardEntry):
            yield _Change("~", f"{word} {what}", layer, f"{field} {_split(old)} -> {_split(new)}")
            continue
        if not isinstance(old, dict):
            yield _Change("~", f"{word} {what}", layer, f"{field} {_shown(old)} -> {_shown(new)}")
            continue
        for name in dict.fromkeys((*old, *new)):
            if old.get(name) != new.get(name):
                # Without their own layer, layers that changed alike read alike.
                was, now = (_shown(side.get(name)).replace(f"@L{layer}.", ".") for side in (old, new))
                text = f"{name} {was} -> {now}"
                yield _Change("~", f"{word} {what}", layer, text)


def _split(shard: ShardEntry | None) -> str:
    return "none" if shard is None else f"{shard.axis}/{shard.count}"


def _value_name(entry: Any) -> tuple[str, int | None]:
    return entry.id.replace(f"@L{layer_of(entry.id)}", ""), layer_of(entry.id)


def _op_name(entry: Any) -> tuple[str, int | None]:
    return entry.id.removeprefix(f"layers.{entry.layer}."), entry.layer


def _transfers(old: Manifest, new: Manifest) -> Iterable[_Change]:
    """By value and stages; versions of `streams` and `pre` that moved with a boundary show as such."""
    before, after = (
        {(move.value, move.from_stage, move.to_stage): move for move in plan.transfers} for plan in (old, new)
    )
    for sort, moves, others in (("-", before, after), ("+", after, before)):
        for key, move in moves.items():
            if key not in others:
                text = f"stage {move.from_stage} -> {move.to_stage}, {move.bytes_per_token:,g} bytes per token"
                yield _Change(sort, f"transfer {move.value}", None, text)
    for key in before.keys() & after.keys():
        old_bytes, new_bytes = before[key].bytes_per_token, after[key].bytes_per_token
        if old_bytes != new_bytes:
            yield _Change("~", f"transfer {key[0]}", None, f"bytes per token {old_bytes:,g} -> {new_bytes:,g}")


def _kernels(old: Manifest, new: Manifest) -> Iterable[_Change]:
    before, after = ({entry.kernel for entry in plan.kernels} for plan in (old, new))
    yield from (_Change("+", f"kernel {name}", None, "") for name in sorted(after - before))
    yield from (_Change("-", f"kernel {name}", None, "") for name in sorted(before - after))


def _shown(value: Any) -> str:
    if isinstance(value, list):
        text = ", ".join(str(item) for item in value[:8])
        return f"[{text}{', ...' if len(value) > 8 else ''}]"
    return "none" if value is None else str(value)
