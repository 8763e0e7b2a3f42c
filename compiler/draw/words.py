"""A graph's answers in words: who writes a value, who reads it, what a layer reads and feeds."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from dsv41c.compiler.ir import Graph, Op
from dsv41c.compiler.select import Part, Selection, original, readers
from dsv41c.kernels.catalog import CARRIERS
from dsv41c.words import counted, joined, layers

MAX_LINES = 24
# Control characters, and those that are not seen or change the direction of the text around them.
_STRANGE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")


def who(ops: Iterable[Op]) -> str:
    """The layers that some ops belong to; ops outside the layers by their ids."""
    ops = tuple(ops)
    inside = {op.layer for op in ops if op.layer is not None}
    parts = [layers(inside)] if inside else []
    return joined([*parts, *(op.id for op in ops if op.layer is None)], "and")


def value_sentence(graph: Graph, value: str, devices: Sequence[str] = ()) -> str:
    """Who writes a value and who reads it: `compress_kv@L20: written by layer 20, read by layers 20-39`."""
    producer = graph.producer(value)
    where = f" on {devices[graph.values[value].stage]}" if len(set(devices)) > 1 else ""
    if producer is not None and producer.kind in CARRIERS:
        written = f"copy of {original(graph, value)}{where}"
    elif producer is not None:
        written = f"written by {who([producer])}{where}"
    elif graph.values[value].scope == "session":
        written = f"held since the last call{where}"
    else:
        written = "an input of the call"
    reading = [op for op in readers(graph, value) if op.kind not in CARRIERS]
    if reading:
        return f"{value}: {written}, read by {who(reading)}"
    kept = "kept for the next call" if graph.values[value].scope == "session" else "what the call returns"
    return f"{value}: {written}, {kept}"


def answers(graph: Graph, selection: Selection, devices: Sequence[str] = ()) -> tuple[str, ...]:
    """A selection's answer as sentences, no more than fit a screen."""
    lines: list[str] = []
    for part in selection.parts:
        lines += _part_lines(graph, part, devices)
    unique = tuple(dict.fromkeys(lines))
    if len(unique) > MAX_LINES:
        return (*unique[:MAX_LINES], f"... and {len(unique) - MAX_LINES} more lines like these")
    return unique


def _part_lines(graph: Graph, part: Part, devices: Sequence[str]) -> list[str]:
    item = part.item
    roots = _in_order(graph, part.root_values)
    lines = [value_sentence(graph, value, devices) for value in roots]
    if not part.root_ops:  # a value, or what only another graph has
        return lines
    if item.before == 1:
        read = _read_order(graph, part.root_ops, part.values)
        lines.append(f"{item.atom} reads: {', '.join(read) or 'nothing from elsewhere'}")
        lines += [value_sentence(graph, value, devices) for value in read]
    if item.after == 1:
        left = [
            v for v in _in_order(graph, part.values) if any(op.id in part.root_ops for op in graph.producers.get(v, ()))
        ]
        lines.append(f"{item.atom} feeds: {', '.join(left) or 'nothing'}")
        lines += [value_sentence(graph, value, devices) for value in left]
    if item.before == 2 or item.after == 2:
        lines.append(f"{'++' * (item.before == 2)}{item.atom}{'++' * (item.after == 2)}: {_reach(graph, part)}")
    if not item.before and not item.after:
        lines.append(f"{item.atom}: {counted(len(part.ops), 'op')} of {who(_ops(graph, part.ops))}")
    return lines


def _reach(graph: Graph, part: Part) -> str:
    return f"{counted(len(part.ops), 'op')} of {who(_ops(graph, part.ops))}" if part.ops else "nothing"


def _ops(graph: Graph, ids: Iterable[str]) -> list[Op]:
    wanted = set(ids)
    return [op for op in graph.ops if op.id in wanted]


def _in_order(graph: Graph, values: Iterable[str]) -> list[str]:
    wanted = set(values)
    return [value for value in graph.values if value in wanted]


def _read_order(graph: Graph, ops: Iterable[str], values: Iterable[str]) -> list[str]:
    wanted = set(values)
    return list(dict.fromkeys(v for op in _ops(graph, ops) for v in op.read_ids if v in wanted))


def escaped(text: str) -> str:
    """A text that stays within one comment line or string, and moves no cursor, whatever it holds."""
    return _STRANGE.sub(" ", text)


def spelled(text: str, keep: str = "") -> str:
    """A text in which such characters, but for those to keep, are written out as JSON would: `\\u202e`."""
    return _STRANGE.sub(lambda found: found[0] if found[0] in keep else f"\\u{ord(found[0]):04x}", text)
