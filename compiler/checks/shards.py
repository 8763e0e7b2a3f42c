"""Checks of tensor parallelism: every width that is split over the processes of a stage divides by their number, and
what one of them has of a sum goes to the collective that adds it up.

What is stored with a scale a block, or rounded in blocks, is split between blocks, so that no scale is of two shards.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dsv41c.compiler.checks.ledger import Ledger, value
from dsv41c.compiler.checks.view import View
from dsv41c.compiler.checks.wiring import port
from dsv41c.compiler.ir import Graph
from dsv41c.compiler.spec.dims import BLOCK
from dsv41c.compiler.spec.models import Attention, Model, Moe, Numerics, Section, Weights
from dsv41c.diagnostics import Diagnostic, Label
from dsv41c.kernels.catalog import COLLECTIVES
from dsv41c.kernels.encodings import BLOCKED
from dsv41c.words import joined

_MOST_WAYS = 6


@dataclass(frozen=True, slots=True)
class _Width:
    """A width that is split: the key of the spec that it comes from, what it is, and the block that stays whole.

    `factor`: the key beside it whose number has to divide first, of a product.
    """

    section: str
    key: str
    what: str
    width: int
    block: int = 1
    factor: str = ""

    def splits(self, shards: int) -> bool:
        """Whether so many shards have whole blocks of it."""
        return self.width % (shards * self.block) == 0


def uneven(view: View, ledger: Ledger) -> None:
    """Every width that is shared divides by the number of shards; that number is the one cause of all that do not."""
    if view.placement is None or view.placement.tensor_parallel == 1:
        return
    shards = view.placement.tensor_parallel
    widths = list(_widths(view))
    ways = [str(count) for count in range(1, shards) if all(width.splits(count) for width in widths)]
    uneven = {width.key for width in widths if not width.splits(shards)}
    found = [width for width in widths if width.key in uneven and width.factor not in uneven]
    if not found:
        return
    named = []
    labels, facts = [], []
    for width in found:
        whole = f" in whole blocks of {width.block}" if width.width % shards == 0 else ""
        named.append(f"{width.what} {width.width}{whole}")
        labels.append(Label(view.place(width.section, width.key), f"does not divide by {shards}{whole}"))
        facts.append((f"{width.section}.{width.key}", str(getattr(view.loaded.sections[width.section], width.key))))
        facts += [(f"a shard's part of `{width.key}`", str(width.width // shards))] if whole else []
    message = f"{shards} shards do not evenly share {joined(named, 'and')}"
    help_text = f"set `placement.tensor_parallel` to {joined(ways[-_MOST_WAYS:], 'or')}"
    place = view.place("placement", "tensor_parallel")
    ledger.report(Diagnostic("DSV507", message, place, tuple(labels), tuple(facts), help_text))


def _widths(view: View) -> Iterator[_Width]:
    """The widths of the valid sections."""
    sections = view.loaded.sections
    model, attention, moe = sections.get("model"), sections.get("attention"), sections.get("moe")
    stored, rounded, experts = _blocks(sections.get("weights"), sections.get("numerics"))
    if isinstance(attention, Attention):
        heads, groups = attention.n_heads, attention.o_groups
        yield _Width("attention", "n_heads", "`attention.n_heads`", heads)
        yield _Width("attention", "o_groups", "`attention.o_groups`", groups)
        queries = heads * attention.head_dim
        yield _Width("attention", "head_dim", "the output of wq_b, heads times head_dim,", queries, stored, "n_heads")
        latent = groups * attention.o_lora_rank
        yield _Width(
            "attention", "o_lora_rank", "the input of wo_b, o_groups times o_lora_rank,", latent, rounded, "o_groups"
        )
    if isinstance(moe, Moe):
        yield _Width("moe", "inter_dim", "`moe.inter_dim`", moe.inter_dim, max(rounded, experts))
    if isinstance(model, Model):
        yield _Width("model", "vocab_size", "`model.vocab_size`", model.vocab_size)


def _blocks(weights: Section | None, numerics: Section | None) -> tuple[int, int, int]:
    """The blocks of linears as they are stored, as their inputs are rounded too, and of routed experts as stored."""
    stored = BLOCK if isinstance(weights, Weights) and weights.linear in BLOCKED else 1
    rounded = BLOCK if isinstance(numerics, Numerics) and numerics.activation_quant == "fp8" else 1
    experts = BLOCK if isinstance(weights, Weights) and weights.experts in BLOCKED else 1
    return stored, max(stored, rounded), experts


def part_as_whole(graph: Graph, ledger: Ledger) -> None:
    """A shard's part of a sum is read by the `all_reduce` of as many shards, and by nothing else.

    That of routed experts goes into the shared expert's, which is of as many shards.
    """
    for op in graph.ops:
        shards = dict(op.attrs).get("shards")
        if shards is None or op.kind in COLLECTIVES:
            continue
        adds = "shared_expert" if op.kind == "experts" else "all_reduce"
        for part in op.write_ids:
            wrong = [r for r in graph.readers(part) if r.kind != adds or dict(r.attrs).get("shards") != shards]
            if not wrong or not ledger.sound(value(part)):
                continue
            reader = wrong[0]
            message = f"`{reader.id}` reads `{part}`, which is one shard's part of a sum of {shards}"
            labels = (Label(op.span, f"`{op.id}` gives a part"),)
            facts = ((f"kind of `{reader.id}`", reader.kind), (f"shards of `{op.id}`", str(shards)))
            help_text = f"read what the `all_reduce` of {shards} shards makes of `{part}`"
            if reader.kind == adds:
                help_text = f"set `shards` of `{reader.id}` to {shards}"
            finding = Diagnostic("DSV508", message, reader.span, labels, facts, help_text)
            ledger.report(finding, [value(part), *(port(reader, name) for name, read in reader.reads if read == part)])
