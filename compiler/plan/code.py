"""Regions as functions: identifiers, calls and their layout. Text only; the templates put it into a file.

Nothing of the spec gets into code but identifiers made from value ids and Python literals. Layouts are those of `ruff
format` at 120 columns, so that plans need no formatter.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping

from dsv41c.compiler.ir import Op, Scalar
from dsv41c.compiler.passes import Region
from dsv41c.compiler.plan.model import LINE_LENGTH, BlockModel, FunctionModel, StepModel
from dsv41c.diagnostics import Span
from dsv41c.kernels.catalog import COLLECTIVES
from dsv41c.kernels.fusion import CALLS
from dsv41c.runtime.manifest import identifier, weight_identifier

_MIX = "mixing coefficients; the streams collapse with the pre-mix carried from the sublayer before"
# The block of code an op belongs to, by kind; mix, collapse, norm and expand by their sublayer too.
_BLOCKS: Mapping[str, str] = {
    "embed": "token embedding, one copy a stream",
    "engram_ids": "n-gram hash ids of every engram layer",
    "engram_rows": "engram: table rows of the n-grams, gated onto the streams",
    "attn.mix": f"attention input: {_MIX}",
    "query": "query, and this call's rows of the window",
    "compress": "compressed KV: complete groups pooled and appended",
    "index_query": "selection: score every group by the index keys, keep the best",
    "attend": "attend to window and selection; the ring is written after it was read",
    "ffn.mix": f"expert input: {_MIX}",
    "route": "routed experts and the shared one",
    "final.collapse": "the last collapse, norm and logits",
    "attention_input": "attention input: mixing coefficients, collapse and norm, query and window rows",
    "attention_output": "attention and its output, back onto the streams; the ring is written after it was read",
    "attention_output_shard": "attention and its output, summed over the shards, back onto the streams",
    "ffn": "expert sublayer: mixing coefficients, collapse and norm, routing, routed experts and the shared one",
    "ffn_shard": "expert sublayer: mixing, collapse and norm, routing, a part of every expert; summed over the shards",
    "logits": "the last collapse, norm and logits",
}
_BLOCK_OF: Mapping[str, str] = {
    "engram_gate": "engram_rows",
    "window_rows": "query",
    "index_keys": "compress",
    "index_score": "index_query",
    "index_candidates": "index_query",
    "index_select": "index_query",
    "select_candidates": "index_query",
    "select_topk": "index_query",
    "window_store": "attend",
    "output": "attend",
    "experts": "route",
    "shared_expert": "route",
    "head": "final.collapse",
}


def shown(text: str) -> str:
    """A text from outside as it may stand in a comment or docstring: one line, nothing that ends a string."""
    return "".join(c if c.isprintable() and c not in "\"'\\`" else f"<U+{ord(c):04X}>" for c in text)


def literal(value: Scalar) -> str:
    """An attribute as a Python literal, strings in double quotes where that needs no escapes."""
    text = repr(value)
    return f'"{text[1:-1]}"' if text.startswith("'") and '"' not in text else text


def function(region: Region, summary: str, headline: str) -> FunctionModel:
    """The function of a region. `summary` goes into the comment above it, `headline` begins its docstring."""
    ops = [call.op for call in region.calls]
    layer = ops[0].layer
    names = _names(ops, layer)
    parameters = ("kernels", "weights", "step", *(names[value] for value in region.reads))
    results = tuple(names[value] for value in region.writes)
    return FunctionModel(
        position=shown(str(region.span)),
        summary=summary,
        name=region.function,
        parameters=parameters,
        parameters_layout=_layout(f"def {region.function}(", parameters, "):", indent=0),
        headline=headline,
        doc=_doc(region),
        blocks=tuple(_blocks(ops, names, region.span)),
        results=results,
        results_layout="line" if len(f"    return {', '.join(results)}") <= LINE_LENGTH else "column",
    )


def _names(ops: list[Op], layer: int | None) -> dict[str, str]:
    """An identifier for each value of a function; two values with one name would be a bug of ours."""
    names = {value: identifier(value, layer) for op in ops for value in (*op.read_ids, *op.write_ids)}
    if len(set(names.values())) != len(names):
        raise ValueError(f"two values of {ops[0].id} share a name: {names}")
    return names


def _doc(region: Region) -> tuple[str, ...]:
    return (*_wrapped("Reads: ", region.reads), *_wrapped("Writes: ", region.writes))


def _wrapped(head: str, values: Iterable[str]) -> list[str]:
    text = head + ", ".join(values) + "."
    return textwrap.wrap(
        text,
        LINE_LENGTH,
        initial_indent="    ",
        subsequent_indent="    " + " " * len(head),
        break_long_words=False,
        break_on_hyphens=False,
    )


def _blocks(ops: list[Op], names: Mapping[str, str], home: Span) -> Iterable[BlockModel]:
    current = ""
    steps: list[StepModel] = []
    for op in ops:
        block = _block(op) or current
        if steps and block != current:
            yield BlockModel(_BLOCKS[current], tuple(steps))
            steps = []
        current = block
        steps.append(_step(op, names, home))
    yield BlockModel(_BLOCKS[current], tuple(steps))


def _block(op: Op) -> str | None:
    """The key of an op's block, None where it goes with the op before."""
    if op.kind in ("mix", "collapse"):
        place = op.id.split(".")[-2]
        return "final.collapse" if place == "final" else f"{place}.mix"
    if op.kind in ("norm", "expand", *COLLECTIVES):
        return None
    return _BLOCK_OF.get(op.kind, op.kind)


def _step(op: Op, names: Mapping[str, str], home: Span) -> StepModel:
    arguments = _arguments(op, names)
    targets = ", ".join(names[value] for value in op.write_ids)
    elsewhere = (op.span.file, op.span.line) != (home.file, home.line)
    comment = f"  # {shown(str(op.span))}" if elsewhere else ""
    layout = _layout(f"    {targets} = kernels.{op.kind}(", arguments, f"){comment}", indent=4)
    return StepModel(targets, op.kind, arguments, layout, comment)


def _arguments(op: Op, names: Mapping[str, str]) -> tuple[str, ...]:
    """Arguments in the catalogue's calling convention, which fused kinds have too."""
    entry = CALLS[op.kind]
    optional = {port.name for port in entry.reads if port.optional}
    weights = [(name, f"weights.{weight_identifier(weight)}") for name, weight in op.weights]
    required = [names[value] for port, value in op.reads if port not in optional]
    required += [weight for name, weight in weights if name in entry.weights]
    named = [(port, names[value]) for port, value in op.reads if port in optional]
    named += [(name, weight) for name, weight in weights if name in entry.optional_weights]
    named += [(name, literal(value)) for name, value in op.attrs]
    return (*(["step"] if entry.uses_step else []), *required, *(f"{name}={text}" for name, text in named))


def _layout(head: str, items: tuple[str, ...], tail: str, indent: int) -> str:
    """How `ruff format` lays out a bracket: on the line, on a line of its own, or one item a line."""
    joined = ", ".join(items)
    if len(head) + len(joined) + len(tail) <= LINE_LENGTH:
        return "line"
    return "hug" if indent + 4 + len(joined) <= LINE_LENGTH else "column"
