"""Fused kinds made of single ops: what native ones are compared with and fall back on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dsv41c.kernels.catalog import OPS
from dsv41c.kernels.fusion import FusedKind, part_name


def compose(kind: FusedKind, kernels: object) -> Callable[..., Any]:
    """A kernel of a fused kind that calls, one after the other, the kernels of its ops: attributes of `kernels`.

    It takes what `kind.signature` says, by the catalogue's convention: `kernel(step, *reads, *weights, **optional reads
    and weights, **attrs)`. An optional argument may be None, which is as good as absent. Returns the writes in order,
    one bare and several as a tuple. Raises TypeError where arguments are missing or unknown.
    """
    signature = kind.signature
    by_place = [port.name for port in signature.reads if not port.optional] + list(signature.weights)
    optional = {port.name for port in signature.reads if port.optional}
    optional |= {*signature.optional_weights, *signature.optional_attrs}
    wanted = set(signature.attrs)

    def composed(step: object, *arguments: object, **named: object) -> Any:
        if len(arguments) != len(by_place):
            raise TypeError(f"{kind.name} takes {len(by_place)} arguments behind `step`: {', '.join(by_place)}")
        if not wanted <= named.keys() <= wanted | optional:
            raise TypeError(f"{kind.name} does not take these keywords: {', '.join(named)}")
        given = dict(zip(by_place, arguments, strict=True))
        given |= {name: value for name, value in named.items() if value is not None}
        made: dict[tuple[str, str], object] = {}
        for op in kind.covers:
            made |= _by_port(op, call_part(kind, op, kernels, step, given, made))
        writes = tuple(made[port] for port in kind.leaves.values())
        return writes[0] if len(writes) == 1 else writes

    composed.__name__ = composed.__qualname__ = kind.name
    return composed


def call_part(
    kind: FusedKind,
    op: str,
    kernels: object,
    step: object,
    given: Mapping[str, object],
    made: Mapping[tuple[str, str], object],
) -> Any:
    """Call the kernel of an op that a fused kind covers. Its `op` tells from a traceback which one failed."""
    entry = OPS[op]

    def read(port: str) -> object:
        source, name = kind.wires[op, port]
        return made[source, name] if source else given.get(name)

    arguments: list[object] = [step] if entry.uses_step else []
    arguments += [read(port.name) for port in entry.reads if not port.optional]
    arguments += [given[part_name(op, weight)] for weight in entry.weights]
    named = {port.name: read(port.name) for port in entry.reads if port.optional and (op, port.name) in kind.wires}
    named |= {weight: given.get(part_name(op, weight)) for weight in entry.optional_weights}
    named |= {attr: given.get(part_name(op, attr)) for attr in entry.optional_attrs}
    named = {name: value for name, value in named.items() if value is not None}
    return getattr(kernels, op)(*arguments, **named, **{attr: given[part_name(op, attr)] for attr in entry.attrs})


def _by_port(op: str, result: object) -> dict[tuple[str, str], object]:
    """What an op's kernel returned, by its ports. No covered op has optional writes."""
    ports = [port.name for port in OPS[op].writes]
    parts = (result,) if len(ports) == 1 else result
    assert isinstance(parts, tuple), f"{op} returns {len(ports)} values"
    return {(op, port): part for port, part in zip(ports, parts, strict=True)}
